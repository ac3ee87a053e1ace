"""The only way out of a site: what no rule forbids leaves, once it is on record; the rest is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from fedshed._utils.errors import DisclosureError
from fedshed.privacy.audit import Audit
from fedshed.privacy.ledger import IN_FIT, SEARCH, StudyRecord, TableRecord
from fedshed.privacy.policy import Objection, Policy
from fedshed.protocol.limits import MOST_LINES

# Requests of a kind that a study may make, each as often as it likes: the preparation has one way to go.
DIFFERENT = {
    "Describe": 1, "Tally": 4, "Build": 2, "Spread": 1, "Constants": 1, "Inspect": 12, "Scatter": 2,
    "Evaluate": 1, "Tabulate": 1, "Recalibrate": MOST_LINES,  # two grids would differ by single rows
    "AskCounts": 1, "CheckSurvival": 1, "AskEstimate": 1,
}  # fmt: skip
MOST_ANSWERS = 5000  # to one approved study, over all its runs
SUMS = 10  # of a linear model beside its cross-product: rows, weight, squares of the target, ...
# kinds whose answers do not follow from a cross-product
APART = ("Scatter", "Evaluate", "Tabulate", "Recalibrate")
CHARGED = "Privacy"  # the kind of an entry that charges a private study
ENDED = "the study has ended at this site after too many refusals and must be approved again; the last one: "


class Scope(Struct, frozen=True):
    """Whose answers a gate lets out: the study, and the table they are computed from."""

    study: str
    table: str = ""
    rows: int = 0
    model: str = ""
    pinned: bool = False  # an approved study may ask in one way only
    points: int | None = None  # parameters it may ask about
    budget: float = 1.0  # times the policy's ceilings over all studies
    plan: str = ""  # the only plan that is answered, if the site has pinned one


class Asked(Struct, frozen=True):
    """A request, and what the answer to it gives away."""

    kind: str = ""  # of a request that an approved study may make in one way only
    request: str = ""  # its SHA-256
    points: tuple[str, ...] = ()  # SHA-256 of each theta
    plan: str = ""  # SHA-256 of the plan
    columns: tuple[str, ...] = ()  # of the design
    parameters: int = 1  # columns of the design, the intercept and classes included
    answer: str = ""  # SHA-256 of what the answer says
    curvature: int = 0  # numbers of it that are entries of Hessians or eigenvectors
    cross_product: tuple[int, int] | None = None  # of a linear model: numbers and curvature that tell all
    leverage: float | None = None

    @property
    def in_fit(self) -> bool:
        """Whether it is asked of a design, after the preparation."""
        return self.kind in IN_FIT


class DesignFacts(Struct, frozen=True):
    """The design that a fit is of, as far as a record needs it."""

    plan: str = ""  # SHA-256 of the plan
    columns: tuple[str, ...] = ()
    parameters: int = 1  # columns of the design, the intercept and classes included
    quadratic: bool = False  # of a linear model, all of whose answers follow from one cross-product
    parameter: float | None = None  # of the family, where it is searched for: a point has it too

    def asked(
        self, *, kind: str, request: str, points: tuple[str, ...], answer: str, curvature: int,
        leverage: float | None,
    ) -> Asked:  # fmt: skip
        """A request of a fit of this design; squared scores do not follow from a cross-product."""
        entries, n = self.parameters * (self.parameters + 1) // 2, self.parameters
        return Asked(
            kind=kind,
            request=request,
            points=points,
            plan=self.plan,
            columns=self.columns,
            parameters=n,
            answer=answer,
            curvature=curvature,
            cross_product=(entries + n + SUMS, entries) if self.quadratic and kind not in APART else None,
            leverage=leverage,
        )


def columns_used(table: TableRecord, columns: Sequence[str], parameters: int) -> int:
    """Columns of all designs of a table so far, this one included, by which the budget is measured."""
    return max(len(table.columns | set(columns)), parameters)


class Gate:
    """What leaves a site in one study: nothing that a rule forbids, and nothing that is not on record."""

    def __init__(self, policy: Policy, audit: Audit, study: str | Scope) -> None:
        self.policy, self._audit = policy, audit
        self.scope = Scope(study) if isinstance(study, str) else study

    def release(
        self, what: str, reply: bytes, count: int, objections: Sequence[Objection] = (),
        asked: Asked = Asked(),  # noqa: B008 - it is frozen
    ) -> bytes:  # fmt: skip
        """The reply, which gives away `count` numbers; DisclosureError names the rule that forbids it."""
        with self._audit.alone():  # or two processes could each release what is left
            count, curvature = self._new(count, asked)
            broken = objections or self._limits(count, curvature, asked)
            rules = "; ".join(dict.fromkeys(one.rule for one in broken))
            details = "; ".join(one.detail for one in broken)
            facts = self._refusal(asked) if broken else self._facts(asked, curvature)
            self._audit.append(self.scope.study, what, reply, count, rules, details, **facts)
        if broken:
            raise DisclosureError(f"its disclosure policy demands {rules}")
        return reply

    def charge(self, rho: float, run: str) -> None:
        """Put on record what a run of a private study costs, before any of it is answered, and once.

        DisclosureError where the table's budget over all studies does not allow it; nothing is spent then.
        A run that begins again with other noise is another run.
        """
        with self._audit.alone():  # or two studies could each spend what is left
            if run in self._audit.ledger.study(self.scope.study).asked.get(CHARGED, ()):
                return
            broken = self.policy.overspent(self._spent, rho)
            facts = {"kind": CHARGED, "request": run, "table": self.scope.table}
            rules, details = "; ".join(one.rule for one in broken), "; ".join(one.detail for one in broken)
            spent = 0.0 if broken else rho
            self._audit.append(self.scope.study, CHARGED, b"", 0, rules, details, rho=spent, **facts)
        if broken:
            raise DisclosureError(f"its disclosure policy demands {rules}")

    def spent(self) -> float:
        """What private studies have cost of the table's privacy so far, in zCDP's rho."""
        with self._audit.alone():
            return self._spent

    @property
    def _spent(self) -> float:
        """Of all tables of the site: one that has changed in a row still holds the others."""
        return sum(table.rho for table in self._audit.ledger.tables.values())

    def refuse(self, what: str, rule: str, detail: str = "") -> None:
        """Put on record that something was refused."""
        self._audit.append(self.scope.study, what, rule=rule, detail=detail, table=self.scope.table)

    @property
    def ended(self) -> str:
        """Why the study has ended here, if it was refused too often to go on."""
        with self._audit.alone():
            study = self._audit.ledger.study(self.scope.study)
        if self.scope.pinned and study.answers >= MOST_ANSWERS:
            return f"the study has ended here after {MOST_ANSWERS} answers, and has to be approved again"
        return ENDED + study.refused_for if study.refusals >= self.policy.max_refusals else ""

    def _refusal(self, asked: Asked) -> dict[str, Any]:
        """What an entry says of a request that was refused."""
        return {"kind": asked.kind, "request": asked.request, "plan": asked.plan, "table": self.scope.table}

    def _facts(self, asked: Asked, curvature: int) -> dict[str, Any]:
        """What an entry says of the request."""
        used = self._table.columns
        return {
            "curvature": curvature,
            "kind": asked.kind,
            "request": asked.request,
            "points": asked.points,
            "plan": asked.plan,
            "table": self.scope.table,
            "columns": tuple(name for name in asked.columns if name not in used),
            "answer": asked.answer,
            "model": self.scope.model if asked.kind == "Describe" else "",
            "leverage": asked.leverage,
        }

    @property
    def _table(self) -> TableRecord:
        return self._audit.ledger.table(self.scope.table)

    def _new(self, count: int, asked: Asked) -> tuple[int, int]:
        """Numbers and curvature that have not left before: the same answer again tells nothing new."""
        if asked.answer and asked.answer in self._table.answers:
            return 0, 0
        if asked.cross_product is None:
            return count, asked.curvature
        gone = self._table.by_plan.get(asked.plan, (0, 0))
        most = tuple(max(0, whole - before) for whole, before in zip(asked.cross_product, gone, strict=True))
        return min(count, most[0]), min(asked.curvature, most[1])

    def _limits(self, count: int, curvature: int, asked: Asked) -> list[Objection]:
        """The ceilings that this answer would break."""
        study = self._audit.ledger.study(self.scope.study)
        found = self.policy.exceeded(study.numbers, count)
        if self.scope.rows:
            found += self._budget(count, curvature, asked)
        if self.scope.points is not None and self._most_points(study, asked) > self.scope.points:
            most = f"at most {self.scope.points} points in a study (points in the study's file)"
            found.append(Objection(most, f"{len(study.points)} were asked about"))
        known = self._planned(asked, study) and self._as_before(asked, study.asked)
        if self.scope.pinned and not known:
            once = "one plan in a study; ask the site to approve the study again if the tables have changed"
            found.append(Objection(once, f"another {asked.kind} than before"))
        return found

    def _most_points(self, study: StudyRecord, asked: Asked) -> int:
        """How many parameters, or searches, a study has asked about: the larger number of both."""
        points = study.points | set(asked.points)
        searches = sum(point.startswith(SEARCH) for point in points)
        return max(searches, len(points) - searches)

    def _planned(self, asked: Asked, study: StudyRecord) -> bool:
        """Whether a fit is of the one plan that was prepared, and that the site may have pinned."""
        if not asked.in_fit:
            return True
        return (
            asked.plan in study.built
            and study.plans | {asked.plan} == {asked.plan}
            and self.scope.plan in ("", asked.plan)
        )

    def _as_before(self, asked: Asked, before: dict[str, set[str]]) -> bool:
        """Whether an approved study asks what it has asked, or takes the next step that it may."""
        if asked.kind not in DIFFERENT:
            return True
        requests = before.get(asked.kind, set()) | {asked.request}
        return len(requests) <= DIFFERENT[asked.kind]

    def _budget(self, count: int, curvature: int, asked: Asked) -> list[Objection]:
        """The ceilings over all studies, in proportion to the rows and columns that are used."""
        table, scope = self._table, self.scope
        cells = scope.budget * scope.rows * columns_used(table, asked.columns, asked.parameters)
        found = []
        if table.curvature + curvature > self.policy.max_curvature * cells:
            most = (
                f"at most {self.policy.max_curvature:g} entries of Hessians per row and column over all "
                "studies (max_curvature): use algorithm = lbfgs, or ask the site "
                "for a larger budget (fedshed site approve STUDY --budget FACTOR)"
            )
            found.append(Objection(most, f"{table.curvature} have left, {curvature} more were asked for"))
        if table.numbers + count > self.policy.max_numbers * cells:
            most = (
                f"at most {self.policy.max_numbers:g} numbers per row and column over all studies "
                "(max_numbers): fit fewer columns, or ask the site for a larger budget (fedshed site approve "
                "STUDY --budget FACTOR)"
            )
            found.append(Objection(most, f"{table.numbers} have left, {count} more were asked for"))
        return found
