"""A site in the preparation, behind its gate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from typing import Any

from msgspec.structs import replace

from fedshed._utils.errors import DisclosureError, Error, ProtocolError
from fedshed.objectives.build import local_objective
from fedshed.preparation.cells import design_objections
from fedshed.preparation.counts import hidden
from fedshed.preparation.describe import predictors, rarest
from fedshed.preparation.filling import fewest_observed
from fedshed.preparation.messages import CODEC, Describe, Ready, Refused, Schema, Tallies
from fedshed.preparation.site import Preparer
from fedshed.preparation.study import Study
from fedshed.preparation.tallies import smallest_block
from fedshed.privacy.gate import Asked, Gate
from fedshed.privacy.policy import Objection, scalars
from fedshed.privacy.tables import objections
from fedshed.protocol.codec import encode
from fedshed.tables.frames import Frame

log = logging.getLogger("fedshed")


def masked(answer: Any, least: int, columns: Sequence[str] = ()) -> Any:
    """An answer in which no count tells of fewer than `least` rows that miss a value."""
    if isinstance(answer, Refused):
        return Refused(without_values(answer.reason, columns))
    if isinstance(answer, Ready):
        missing = tuple((name, hidden(count, least)) for name, count in answer.missing)
        secret = any(count < 0 for _, count in missing)  # or the difference would tell it
        rounded = -least * (answer.dropped // least + 1)
        dropped = rounded if secret else hidden(answer.dropped, least)
        return replace(answer, dropped=dropped, missing=missing)
    if isinstance(answer, Schema):
        fields = tuple(
            replace(field, missing=hidden(field.missing, least), problem=_problem(field.problem, field.name))
            for field in answer.fields
        )
        secret = any(field.missing < 0 for field in fields) or 0 < answer.rows - answer.complete < least
        rows = answer.complete if secret and answer.complete else answer.rows
        return replace(answer, rows=rows, fields=fields)
    return answer


def without_values(reason: str, columns: Sequence[str]) -> str:
    """A refusal in fixed words, except for the name of a column that the study itself uses.

    Any other word could be compared with a number of the asker's choice; the site's log has the details.
    """
    log.error("%s", reason)
    named = next((column for column in columns if repr(column) in reason), None)
    what = (
        "its rows do not fit the study" if named is None else f"its column {named!r} does not fit the study"
    )
    return f"{what}; the site's own log says why"


def _problem(reason: str, column: str) -> str:
    return without_values(reason, [column]) if reason else ""


class GuardedPreparer:
    """A site in the preparation, behind its gate: the rules hold for what is described and summed up too.

    So a study that leaves few rows of a large table, or names a column's values, is refused before anything
    of them leaves.
    """

    def __init__(self, preparer: Preparer, gate: Gate) -> None:
        self._preparer, self._gate = preparer, gate
        self._name = preparer.name
        preparer.least = max(preparer.least, gate.policy.min_rows_per_level)  # rows of a histogram's block
        preparer.named = gate.policy.min_rows_per_class
        least, rows = gate.policy.min_rows, preparer.frame.rows
        self._few = [Objection(f"at least {least} rows (min_rows)", f"there are {rows}")] * (rows < least)

    @property
    def _frame(self) -> Frame:
        """The rows that the study which was asked about last is fitted to."""
        return self._preparer.frame

    def handle(self, payload: bytes) -> bytes:
        """The reply, once it is on record."""
        asked = CODEC.decode_request(payload).parts
        if len(asked) != 1:
            raise ProtocolError("a request of the preparation has one part")
        reply = b"" if self._few else self._masked(self._preparer.handle(payload), asked)
        parts = CODEC.decode_reply(reply).parts if reply else []
        found = (self._objections(*pair) for pair in zip(asked[: len(parts)], parts, strict=True))
        broken = [*self._few, *chain.from_iterable(found)]
        try:
            return self._released(asked, parts, reply, broken)
        except DisclosureError as error:
            raise DisclosureError(f"site {self._name!r}: {error}") from None

    def _released(self, asked: list[Any], parts: list[Any], reply: bytes, broken: list[Objection]) -> bytes:
        """A reply that the gate lets out; one in which the site refuses is put on record as that."""
        what = "+".join(type(part).__name__ for part in parts) or "preparation"
        refused = next((part.reason for part in parts if isinstance(part, Refused)), None)
        if refused is not None:
            self._gate.refuse(what, "a table that fits the study", refused)
            return reply
        return self._gate.release(what, reply, sum(map(scalars, parts)), broken, self._asked(asked, parts))

    def _asked(self, asked: list[Any], parts: list[Any]) -> Asked:
        """The request as it goes on record."""
        return Asked(
            kind=type(asked[0]).__name__,
            request=sha256(encode(asked)).hexdigest(),
            plan="" if isinstance(asked[0], Describe) else asked[0].plan.digest,
            parameters=len(predictors(_study(asked), self._frame)) + 1,
            answer=sha256(encode((asked, parts))).hexdigest(),
        )

    def _named(self, asked: list[Any]) -> tuple[str, ...]:
        """The columns that a study uses, by its own words or because it uses all."""
        study = _study(asked)
        try:
            return *study.beside, *predictors(study, self._frame)
        except Error:  # of a formula that cannot be read
            return study.beside

    def _masked(self, reply: bytes, asked: list[Any]) -> bytes:
        """The reply without counts of so few rows that they would tell of these; sums tell of all sites."""
        answer, columns = CODEC.decode_reply(reply), self._named(asked)
        least = 1 if _study(asked).protected else self._gate.policy.min_rows_per_level
        return CODEC.encode_reply(
            replace(answer, parts=[masked(part, least, columns) for part in answer.parts])
        )

    def _objections(self, asked: Any, answer: Any) -> list[Objection]:
        """What the policy has against an answer; a refusal says no more than that it is one."""
        policy = self._gate.policy
        if isinstance(answer, Refused):
            return []
        if isinstance(answer, Schema):
            return policy.unnameable(rarest(asked.study, self._frame, answer), asked.study.marked)
        plan, tallied = asked.plan, isinstance(answer, Tallies)
        table, design = self._preparer.stand_in(plan) if tallied else self._preparer.built(plan)
        objective = local_objective(self._name, table, plan.study.loss, plan.classes, plan.intercept)
        found = objections(policy, objective) + design_objections(policy, plan, self._frame, design)
        if not tallied:
            return found
        found += policy.too_small(smallest_block(answer))
        return found + policy.too_few_observed(fewest_observed(plan, answer.sums))


def _study(asked: list[Any]) -> Study:
    """The study that a request is about."""
    study: Study = asked[0].study if isinstance(asked[0], Describe) else asked[0].plan.study
    return study
