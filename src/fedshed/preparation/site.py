"""A site in the preparation: bytes in, bytes out, and its table at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import DataError, Error, QuotingError
from fedshed.preparation import scaling, units
from fedshed.preparation.describe import describe
from fedshed.preparation.design import Design
from fedshed.preparation.messages import CODEC, Build, Constants, Describe, Ready, Refused, Spread, Values
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.study import Study
from fedshed.protocol.codec import Reply
from fedshed.protocol.messages import Message
from fedshed.tables.frames import Frame
from fedshed.tables.stored import Table


def asked_study(payload: bytes) -> Study:
    """The study that an encoded request is about."""
    part: Any = CODEC.decode_request(payload).parts[0]
    study: Study = part.study if isinstance(part, Describe) else part.plan.study
    return study


class Preparer:
    """One site's answers, each a function of its frame and the request alone: asked twice, it answers alike.

    A site that was given the study beforehand answers no other.
    """

    def __init__(self, name: str, frame: Any, study: Study | None = None) -> None:
        self.name, self.frame, self._study = name, Frame(frame), study
        self.least = 1  # rows that have a value which is named; a gate may demand more
        self._built: tuple[DesignPlan, Table, Design] | None = None

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        request = CODEC.decode_request(payload)
        answers: list[Any] = [self._answer(part) for part in request.parts]
        return CODEC.encode_reply(Reply(request.run, request.number, 0, answers))

    def table(self, plan: DesignPlan) -> Table:
        """This site's rows as the plan has them."""
        return self._build(plan)[0]

    def forget(self) -> None:
        """Lose what was built, as a restarted process would."""
        self._built = None

    def _build(self, plan: DesignPlan) -> tuple[Table, Design]:
        # Names and notes come after the design, and do not change it.
        unnamed = replace(plan, names=(), terms=(), notes=())
        if self._built is None or self._built[0] != unnamed:
            self._built = unnamed, *plan.build(self.frame)
        return self._built[1:]

    def _answer(self, part: Any) -> Message:
        try:
            return self._reply(part)
        except QuotingError:
            return Refused("its table has a level that was not agreed on; prepare again")
        except Error as error:
            return Refused(str(error))

    def _reply(self, part: Any) -> Message:
        study = part.study if isinstance(part, Describe) else part.plan.study
        if self._study is not None and study != self._study:
            raise DataError("was asked for another study than the one it was given; give all the same study")
        if isinstance(part, Describe):
            return describe(part.study, self.frame, self.least)
        if isinstance(part, Build):
            return self.ready(part.plan)
        if isinstance(part, Spread):
            return scaling.deviations(self.table(part.plan), part.means)
        if isinstance(part, Constants):
            return self._values(part)
        raise DataError(f"does not know how to answer {type(part).__name__}")

    def ready(self, plan: DesignPlan) -> Ready:
        """That the design is built, and what the Master needs to know of it."""
        table, design = self._build(plan)
        rows = len(table.y)
        measured = units.moments(plan, self.frame, table.weights) if plan.scales is None else ()
        return Ready(
            rows,
            self.frame.rows - rows,
            float(rows if table.weights is None else np.sum(table.weights)),
            design.names,
            design.terms,
            scaling.constant(table),
            scaling.sums(table) if plan.study.standardize and plan.scales is None else None,
            *measured,
        )

    def _values(self, part: Constants) -> Values:
        """The values of columns that do not vary here, and of no others: they would be a row's."""
        table = self.table(part.plan)
        if not set(part.columns) <= set(scaling.constant(table)):
            raise DataError("was asked for the value of a column that varies; prepare again")
        return Values(table.X[0, list(part.columns)])
