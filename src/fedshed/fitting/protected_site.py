"""A site's part in a protected study: it replays it from the sums, and adds its own numbers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.exchange.inprocess import Handler
from fedshed.exchange.site import Site
from fedshed.fitting.all_sites import PREPARATION, AllTables, Playing
from fedshed.linalg.arrays import Vector
from fedshed.objectives import LinearModel
from fedshed.objectives.build import held_objective, local_objective
from fedshed.preparation.messages import Ready, Refused
from fedshed.preparation.site import Preparer
from fedshed.privacy.addends import Addends, Totals
from fedshed.protected.comparing import check_request, points_of, with_own_matrices
from fedshed.protected.follow import Asked, Exchange, Follower, ended
from fedshed.protocol.messages import Declined
from fedshed.protocol.replies import Request


class Rows(Protocol):
    """A site's own rows, and what answers for them."""

    name: str

    def answering(self, label: int, playing: Playing | None) -> Handler:
        """What answers a conversation."""
        ...

    def weight(self, playing: Playing | None) -> float:
        """The weight of the rows, in a fit."""
        ...


class ObjectiveRows:
    """Rows that are at hand as a local cost."""

    def __init__(self, name: str, objective: LinearModel) -> None:
        self.name, self._objective = name, objective

    def answering(self, label: int, playing: Playing | None) -> Handler:
        """The site of a stage."""
        if playing is None:
            raise ProtocolError("the fit was asked for before the preparation has ended")
        stage = playing.stage(label)
        model = self.held(playing) if stage.held else self.objective(playing)
        return Site(self.name, model.null() if stage.null else model, stage.conversation)

    def weight(self, playing: Playing | None) -> float:
        """The weight of the rows."""
        return 1.0 if playing is None else self.objective(playing).weight

    def objective(self, playing: Playing) -> LinearModel:
        """The local cost of a fit."""
        return self._objective

    def held(self, playing: Playing) -> LinearModel:
        """The rows that were held out."""
        raise ProtocolError("the study does not hold out rows (holdout), so there is nothing to evaluate")


class TableRows(ObjectiveRows):
    """The rows of a table, which become a local cost once the plan of the design is known."""

    def __init__(self, preparer: Preparer) -> None:
        self.name, self._preparer = preparer.name, preparer
        self._built: LinearModel | None = None

    def answering(self, label: int, playing: Playing | None) -> Handler:
        """The site in the preparation, or in a stage of the fit."""
        return self._preparer if label == PREPARATION else super().answering(label, playing)

    def objective(self, playing: Playing) -> LinearModel:
        """The local cost of the design that the site's own replay came to."""
        assert playing.plan is not None
        if self._built is None:
            plan, table = playing.plan, self._preparer.table(playing.plan)
            self._built = local_objective(self.name, table, plan.study.loss, plan.classes, plan.intercept)
        return self._built

    def held(self, playing: Playing) -> LinearModel:
        """The rows that the study holds out, of which only sums over all sites leave."""
        plan = playing.plan
        if plan is None or plan.study.holdout is None:
            return super().held(playing)
        table = self._preparer.held(plan)
        return held_objective(self.name, table, plan.loss, plan.classes, plan.intercept)


ALONE = 1e-12  # of a site's sum: less is rounding


class Taken(Struct, frozen=True):
    """The sums of an exchange, before the replay has gone on from them."""

    asked: list[Any]  # the parts of the Master's request
    public: bytes
    totals: Totals


Record: TypeAlias = Callable[[AllTables, int, Request, Sequence[Any], Addends], None]


class SiteSteps:
    """What a site checks and computes in a protected study (`fedshed.protected.Steps`).

    `procedure` is the Master's own.  `record` is told what is about to leave, and may forbid it.
    """

    def __init__(
        self, procedure: Callable[[AllTables], Any], rows: Rows,
        most: Callable[[AnyAlgorithm], int | None] = lambda algorithm: None,
        record: Record = lambda *_: None,
    ) -> None:  # fmt: skip
        self._rows, self._record = rows, record
        self._answering: dict[int, Handler] = {}
        self._taken: Taken | None = None
        self._answered: Request
        self._own: Sequence[Any] = ()  # the site's answers to the request that was checked last

        def play(exchange: Exchange) -> Any:
            self.tables = AllTables(exchange, most)
            return procedure(self.tables)

        self._follower = Follower(play)

    def check(self, label: int, payload: bytes) -> None:
        """Refuse any request but the one that follows from the sums so far."""
        self._advance(label, payload)
        own = self._awaited()
        if own.label != label:
            raise ProtocolError(
                f"the Master asks in conversation {label}, but the sums demand conversation {own.label}"
            )
        codec = self.tables.codec(label)
        mine, asked = codec.decode_request(own.payload), codec.decode_request(payload)
        check_request(mine, asked, self.tables.units(label))
        self._answered = with_own_matrices(mine, asked)

    def addends(self, label: int, payload: bytes) -> tuple[bytes, Addends, int]:
        """The site's own numbers for the request that was checked last.

        What it cannot compute at all is an error, and stays here.
        """
        playing, request, codec = self.tables.playing, self._answered, self.tables.codec(label)
        if label not in self._answering:
            self._answering[label] = self._rows.answering(label, playing)
        common = codec.encode_common(request.run, request.number, request.parts)
        asked = codec.encode_request(common, request.mine)
        parts = codec.decode_reply(self._answering[label].handle(asked)).parts
        for part in parts:
            if isinstance(part, Refused):
                raise DataError(f"site {self._rows.name!r}: {part.reason}")
            if isinstance(part, Declined):
                raise DataError(part.why)
        self._own = parts
        public, addends, fraction = self.tables.addends(label, request, parts, self._rows.weight(playing))
        self._record(self.tables, label, request, parts, addends)
        return public, addends, fraction

    def take(self, label: int, payload: bytes, public: bytes, totals: Totals) -> None:
        """Take the sums of an exchange; the replay goes on from them when the next request is known."""
        self._advance(label, payload)
        codec = self.tables.codec(label)
        asked = codec.decode_request(payload).parts
        if label == PREPARATION and self._own:
            all_sites = codec.decode_reply(self.tables.reply(label, payload, public, totals)).parts
            _check_company(self._own, all_sites)
        self._taken, self._own = Taken(asked, public, totals), ()

    def close(self) -> None:
        """End the replay."""
        self._follower.close()

    def _advance(self, label: int, payload: bytes) -> None:
        """Let the replay go on from the sums that were taken, to the request that must come next."""
        if self._taken is None:
            return
        own, taken = self._awaited(), self._taken
        reply = self.tables.reply(own.label, own.payload, taken.public, taken.totals)
        self._follower.answer(reply, taken.asked, self._points(label, payload))
        self._taken = None

    def _points(self, label: int, payload: bytes) -> list[Vector]:
        """The points of the Master's next request."""
        if label == PREPARATION or self.tables.playing is None:
            return []
        return points_of(self.tables.codec(label).decode_request(payload))

    def _awaited(self) -> Asked:
        if self._follower.asked is None:
            raise ended(self._follower)
        return self._follower.asked


def _check_company(own: Sequence[Any], all_sites: Sequence[Any]) -> None:
    """Refuse to go on with a column to which no other site adds: its sums would be this site's alone."""
    for mine, total in zip(own, all_sites, strict=True):
        if not isinstance(mine, Ready) or mine.sums is None or total.sums is None:
            continue
        alone = (mine.sums != 0) & (np.abs(total.sums - mine.sums) <= ALONE * np.abs(mine.sums))
        if alone.any():
            name = mine.names[int(np.flatnonzero(alone)[0])]
            raise DataError(
                f"column {name!r} of the design is 0 in all rows of other sites, so that its sums would "
                "reveal this site alone; merge the level with others, or leave out the column"
            )
