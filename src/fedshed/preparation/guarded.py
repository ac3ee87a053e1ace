"""A site in the preparation, behind its gate."""

from __future__ import annotations

from itertools import chain
from typing import Any

from fedshed._utils.errors import DisclosureError
from fedshed.objectives.build import local_objective
from fedshed.preparation.describe import rarest
from fedshed.preparation.messages import CODEC, Refused, Schema
from fedshed.preparation.site import Preparer
from fedshed.privacy.policy import Gate, Objection, objections, scalars


class GuardedPreparer:
    """A site in the preparation, behind its gate: the rules hold for what is described and summed up too.

    So a study that leaves few rows of a large table, or names a column's values, is refused before anything
    of them leaves.
    """

    def __init__(self, preparer: Preparer, gate: Gate) -> None:
        self._preparer, self._gate = preparer, gate
        self._name, self._frame = preparer.name, preparer.frame
        preparer.least = gate.policy.min_rows_per_class
        least, rows = gate.policy.min_rows, self._frame.rows
        self._few = [Objection(f"at least {least} rows (min_rows)", f"there are {rows}")] * (rows < least)

    def handle(self, payload: bytes) -> bytes:
        """The reply, once it is on record."""
        reply = b"" if self._few else self._preparer.handle(payload)
        parts = CODEC.decode_reply(reply).parts if reply else []
        asked = CODEC.decode_request(payload).parts[: len(parts)]
        found = (self._objections(*pair) for pair in zip(asked, parts, strict=True))
        broken = [*self._few, *chain.from_iterable(found)]
        what = "+".join(type(part).__name__ for part in parts) or "preparation"
        try:
            return self._gate.release(what, reply, sum(map(scalars, parts)), broken)
        except DisclosureError as error:
            raise DisclosureError(f"site {self._name!r}: {error}") from None

    def _objections(self, asked: Any, answer: Any) -> list[Objection]:
        """What the policy has against an answer; a refusal says nothing of the rows."""
        policy = self._gate.policy
        if isinstance(answer, Refused):
            return []
        if isinstance(answer, Schema):
            return policy.unnameable(rarest(asked.study, self._frame, answer), asked.study.target)
        plan = asked.plan
        table = self._preparer.table(plan)
        objective = local_objective(self._name, table, plan.study.loss, plan.classes, plan.intercept)
        return objections(policy, objective)
