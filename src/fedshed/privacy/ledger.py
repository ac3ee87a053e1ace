"""The sums of an audit file: what each study was told, and what has left of each table, over all studies."""

from __future__ import annotations

from msgspec import Struct, field

from fedshed.privacy.entry import APPROVED, REVOKED, TURNED_AWAY, WITNESSED, Entry

# kinds of requests of a design that a study makes once, or a few times, beside its fit
BESIDE = (
    "Inspect",
    "Scatter",
    "Evaluate",
    "Tabulate",
    "Recalibrate",
    "AskCounts",
    "CheckSurvival",
    "AskEstimate",
)
IN_FIT = ("Play", *BESIDE)
SEARCH = "search:"  # before the digest of a search, among the points


class StudyRecord(Struct):
    """What a study was told: numbers over all its approvals, the rest since the last."""

    numbers: int = 0
    refusals: int = 0
    refused_for: str = ""  # the rule of the last refusal
    answers: int = 0
    points: set[str] = field(default_factory=set)  # digests of the parameters it asked about
    asked: dict[str, set[str]] = field(default_factory=dict)  # digests of its requests, by kind
    refused: set[str] = field(default_factory=set)  # digests of requests: one that is repeated counts once
    built: set[str] = field(default_factory=set)  # digests of the plans it has prepared
    plans: set[str] = field(default_factory=set)  # and of those it has fitted
    leverage: float | None = None


class TableRecord(Struct):
    """What has left of a table, whichever study asked for it."""

    numbers: int = 0
    curvature: int = 0
    columns: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)  # digests: what left before tells nothing new
    by_plan: dict[str, tuple[int, int]] = field(default_factory=dict)  # numbers and curvature
    rho: float = 0.0  # spent by private studies, in zCDP: it adds up


class Ledger(Struct):
    """All of it, as the entries of an audit file add up."""

    studies: dict[str, StudyRecord] = field(default_factory=dict)
    tables: dict[str, TableRecord] = field(default_factory=dict)
    away: dict[str, int] = field(default_factory=dict)  # requests turned away, by day
    witnessed: dict[str, int] = field(default_factory=dict)  # records that a site keeps of protected runs

    def study(self, name: str) -> StudyRecord:
        """The record of a study."""
        return self.studies.setdefault(name, StudyRecord())

    def table(self, name: str) -> TableRecord:
        """The record of a table."""
        return self.tables.setdefault(name, TableRecord())

    def take(self, entry: Entry) -> None:
        """Add an entry; an approval begins a study again, but what has left of its table stays counted."""
        if entry.what == APPROVED:
            self.studies[entry.study] = StudyRecord(numbers=self.study(entry.study).numbers)
        elif entry.what == TURNED_AWAY:
            self.away[entry.time[:10]] = self.away.get(entry.time[:10], 0) + 1
        elif entry.what == WITNESSED:
            self.witnessed[entry.run] = max(entry.record, self.witnessed.get(entry.run, 0))
        elif entry.rule:
            self._refused(entry)
        elif entry.what != REVOKED:
            self._released(entry)

    def _refused(self, entry: Entry) -> None:
        """A refusal is an answer too: one number."""
        study = self.study(entry.study)
        study.refusals += not entry.request or entry.request not in study.refused
        study.refused.add(entry.request)
        study.answers += 1
        study.numbers += entry.scalars
        study.refused_for = entry.rule
        self.table(entry.table).numbers += entry.scalars

    def _released(self, entry: Entry) -> None:
        study, table = self.study(entry.study), self.table(entry.table)
        study.numbers += entry.scalars
        study.answers += 1
        study.points |= set(entry.points)
        if entry.kind:
            study.asked.setdefault(entry.kind, set()).add(entry.request)
        if entry.kind == "Build":
            study.built.add(entry.plan)
        if entry.kind in IN_FIT:
            study.plans.add(entry.plan)
        if entry.leverage is not None:
            study.leverage = max(study.leverage or 0.0, entry.leverage)
        table.numbers += entry.scalars
        table.curvature += entry.curvature
        table.rho += entry.rho
        table.columns |= set(entry.columns)
        if entry.answer:
            table.answers.add(entry.answer)
        if entry.plan:
            numbers, curvature = table.by_plan.get(entry.plan, (0, 0))
            table.by_plan[entry.plan] = numbers + entry.scalars, curvature + entry.curvature
