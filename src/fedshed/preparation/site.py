"""A site in the preparation: bytes in, bytes out, and its table at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedshed.codec import Reply
from fedshed.datasets.tables import Table
from fedshed.errors import DataError, Error
from fedshed.messages import Message
from fedshed.preparation import design
from fedshed.preparation.describe import describe
from fedshed.preparation.frames import Frame
from fedshed.preparation.messages import CODEC, Build, Describe, Ready, Refused
from fedshed.preparation.plan import Plan
from fedshed.preparation.study import Study


class Preparer:
    """One site's answers, each a function of its frame and the request alone: asked twice, it answers alike.

    A site that was given the study beforehand answers no other.
    """

    def __init__(self, name: str, frame: Any, study: Study | None = None) -> None:
        self._name, self._frame, self._study = name, Frame(frame), study
        self._built: tuple[Plan, Table] | None = None

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        request = CODEC.decode_request(payload)
        answers: list[Any] = [self._answer(part) for part in request.parts]
        return CODEC.encode_reply(Reply(request.run, request.number, 0, answers))

    def table(self, plan: Plan) -> Table:
        """This site's rows as the plan has them."""
        if self._built is None or self._built[0] != plan:
            self._built = plan, plan.table(self._frame)
        return self._built[1]

    def forget(self) -> None:
        """Lose what was built, as a restarted process would."""
        self._built = None

    def _answer(self, part: Any) -> Message:
        try:
            return self._reply(part)
        except Error as error:
            return Refused(str(error))

    def _reply(self, part: Any) -> Message:
        study = part.study if isinstance(part, Describe) else part.plan.study
        if self._study is not None and study != self._study:
            raise DataError("was asked for another study than the one it was given; give all the same study")
        if isinstance(part, Describe):
            return describe(part.study, self._frame)
        if isinstance(part, Build):
            return self._ready(part.plan)
        raise DataError(f"does not know how to answer {type(part).__name__}")

    def _ready(self, plan: Plan) -> Ready:
        table = self.table(plan)
        weight = float(len(table.y) if table.weights is None else np.sum(table.weights))
        names, terms = design.names(plan)
        return Ready(len(table.y), self._frame.rows - len(table.y), weight, names, terms)
