"""A site in the preparation, behind its gate."""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any

from msgspec.structs import replace

from fedshed._utils.errors import DisclosureError
from fedshed.objectives.build import local_objective
from fedshed.preparation.cells import design_objections
from fedshed.preparation.counts import hidden
from fedshed.preparation.describe import rarest
from fedshed.preparation.messages import CODEC, Ready, Refused, Schema, Tallies
from fedshed.preparation.site import Preparer
from fedshed.preparation.tallies import smallest_block
from fedshed.privacy.policy import Gate, Objection, scalars
from fedshed.privacy.tables import objections

log = logging.getLogger("fedshed")


def masked(answer: Any, least: int) -> Any:
    """An answer in which no count tells of fewer than `least` rows that miss a value."""
    if isinstance(answer, Refused):
        return _without_counts(answer)
    if isinstance(answer, Ready):
        missing = tuple((name, hidden(count, least)) for name, count in answer.missing)
        secret = any(count < 0 for _, count in missing)  # or the difference would tell it
        rounded = -least * (answer.dropped // least + 1)
        dropped = rounded if secret else hidden(answer.dropped, least)
        return replace(answer, dropped=dropped, missing=missing)
    if isinstance(answer, Schema):
        fields = tuple(replace(field, missing=hidden(field.missing, least)) for field in answer.fields)
        secret = any(field.missing < 0 for field in fields) or 0 < answer.rows - answer.complete < least
        rows = answer.complete if secret and answer.complete else answer.rows
        return replace(answer, rows=rows, fields=fields)
    return answer


def _without_counts(answer: Refused) -> Refused:
    """A refusal without a count of rows, which could be compared with a number of the asker's choice."""
    if " rows" not in answer.reason or not any(map(str.isdigit, answer.reason)):
        return answer
    log.error("%s", answer.reason)
    return Refused("its rows do not fit the study; the site's own log says why")


class GuardedPreparer:
    """A site in the preparation, behind its gate: the rules hold for what is described and summed up too.

    So a study that leaves few rows of a large table, or names a column's values, is refused before anything
    of them leaves.
    """

    def __init__(self, preparer: Preparer, gate: Gate) -> None:
        self._preparer, self._gate = preparer, gate
        self._name, self._frame = preparer.name, preparer.frame
        preparer.least = max(preparer.least, gate.policy.min_rows_per_level)  # rows of a histogram's block
        preparer.named = gate.policy.min_rows_per_class
        least, rows = gate.policy.min_rows, self._frame.rows
        self._few = [Objection(f"at least {least} rows (min_rows)", f"there are {rows}")] * (rows < least)

    def handle(self, payload: bytes) -> bytes:
        """The reply, once it is on record."""
        reply = b"" if self._few else self._masked(self._preparer.handle(payload))
        parts = CODEC.decode_reply(reply).parts if reply else []
        asked = CODEC.decode_request(payload).parts[: len(parts)]
        found = (self._objections(*pair) for pair in zip(asked, parts, strict=True))
        broken = [*self._few, *chain.from_iterable(found)]
        what = "+".join(type(part).__name__ for part in parts) or "preparation"
        try:
            count = sum(map(scalars, parts)) + sum(isinstance(part, Refused) for part in parts)
            return self._gate.release(what, reply, count, broken)
        except DisclosureError as error:
            raise DisclosureError(f"site {self._name!r}: {error}") from None

    def _masked(self, reply: bytes) -> bytes:
        """The reply without counts of so few rows that they would tell of these."""
        answer = CODEC.decode_reply(reply)
        least = self._gate.policy.min_rows_per_level
        return CODEC.encode_reply(replace(answer, parts=[masked(part, least) for part in answer.parts]))

    def _objections(self, asked: Any, answer: Any) -> list[Objection]:
        """What the policy has against an answer; a refusal says no more than that it is one."""
        policy = self._gate.policy
        if isinstance(answer, Refused):
            return []
        if isinstance(answer, Schema):
            return policy.unnameable(rarest(asked.study, self._frame, answer), asked.study.target)
        plan, tallied = asked.plan, isinstance(answer, Tallies)
        table, design = self._preparer.stand_in(plan) if tallied else self._preparer.built(plan)
        objective = local_objective(self._name, table, plan.study.loss, plan.classes, plan.intercept)
        found = objections(policy, objective) + design_objections(policy, plan, self._frame, design)
        return found + (policy.too_small(smallest_block(answer)) if tallied else [])
