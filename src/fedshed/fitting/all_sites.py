"""All sites of a protected study as one: an agent called "all", whose answers are sums over all of them.

The Master and every site play the same study with it.  At the Master its answers come from masked sums, at a
site from the sums that the Master sends around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.algorithms.base import Algorithm, AnyAlgorithm
from fedshed.algorithms.registry import check_summable
from fedshed.exchange import Transport
from fedshed.exchange.group import usable
from fedshed.exchange.groups import Group
from fedshed.exchange.sites import Sites, Stage
from fedshed.exchange.sums import ALL, blanks, column_scales, join, scaling_of, split
from fedshed.exchange.wire import Traffic
from fedshed.linalg.arrays import Vector
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan
from fedshed.preparation.messages import CODEC, MESSAGES
from fedshed.privacy.addends import Addends, Totals
from fedshed.privacy.discrete_gaussian import noise
from fedshed.privacy.fixed_point import fraction_for
from fedshed.privacy.policy import curvature
from fedshed.protected.follow import Exchange
from fedshed.protocol.codec import Codec, codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Declined, Message
from fedshed.protocol.replies import Reply, Request
from fedshed.protocol.sums import Scaling
from fedshed.solve.private_fit import PrivateFit
from fedshed.solve.stages import BESIDE_THE_FIT, FIT, fit_stage, private_stage

PREPARATION = -1  # the label of the preparation's exchanges; others have their stage's number


class Playing(Struct, frozen=True):
    """The fit that a study has come to: what both ends need to read its messages."""

    problem: Problem
    played: AnyAlgorithm | PrivateFit
    plan: DesignPlan | None = None
    contrasts: int = 1

    @property
    def private(self) -> PrivateFit | None:
        """The private fit, where the study is private."""
        return self.played if isinstance(self.played, PrivateFit) else None

    def stage(self, label: int) -> Stage:
        """The conversation of a label."""
        if isinstance(self.played, PrivateFit):
            return private_stage(self.played, label)
        if label == FIT:
            return fit_stage(self.played)
        if label not in BESIDE_THE_FIT:
            raise ProtocolError(
                f"no conversation has the number {label}; install the same version of fedshed at both ends"
            )
        return BESIDE_THE_FIT[label]

    def dim(self, label: int) -> int:
        """Parameters of the model that a conversation is about."""
        return self.contrasts if self.stage(label).null else self.problem.n

    def units(self, label: int) -> Vector:
        """Powers of two near the sizes of the columns; the model without columns has only intercepts."""
        return np.ones(self.contrasts) if self.stage(label).null else column_scales(self.problem)


class AllTables:
    """The tables of a study as those of one site, which `exchange` asks.

    `most` says how many iterations are allowed.  `sites` is how many sites the last sums were over: every
    site knows it from its own set, and the masks of a smaller set would not cancel.
    """

    one_process = False
    names: Sequence[str] = (ALL,)
    groups: Sequence[Group] = ()

    def __init__(
        self, exchange: Exchange, most: Callable[[AnyAlgorithm], int | None] = lambda algorithm: None
    ) -> None:
        self._exchange, self._most, self.sites = exchange, most, 0
        self.counted = Traffic()  # bytes of the messages of one agent
        self.playing: Playing | None = None
        self._codecs: dict[int, Codec] = {PREPARATION: CODEC}

    def prepare(self) -> AbstractContextManager[Transport]:
        """The preparation, as a transport."""
        return nullcontext(_AllTransport(self, PREPARATION))

    def play(self, plan: DesignPlan, problem: Problem, algorithm: AnyAlgorithm) -> Sites:
        """The fit, whose algorithm must need no more than sums."""
        contrasts = family_of(plan.study.loss).levels(len(plan.classes or ()))
        return self.start(Playing(problem, algorithm, plan, contrasts))

    def play_private(self, plan: DesignPlan, problem: Problem, private: PrivateFit) -> Sites:
        """The private fit, of which every answer has noise."""
        return self.start(Playing(problem, private, plan))

    def start(self, playing: Playing) -> Sites:
        """The fit of a problem, wherever it comes from."""
        if isinstance(playing.played, Algorithm):
            check_summable(playing.played)
        self.playing = playing
        return _AllSites(self)

    def budget(self) -> None:
        """A site's link carries the same messages as every other's."""

    def approved_algorithm(self, n: int) -> None:
        """None: every site computes itself what a protected study runs."""

    def most_iterations(self, algorithm: AnyAlgorithm) -> int | None:
        """Iterations that the approved study allows."""
        return self._most(algorithm)

    def told(self) -> Traffic:
        """Nothing is said beside the exchanges."""
        return Traffic()

    def ask(self, label: int, payload: bytes) -> bytes:
        """The reply of all sites to a request."""
        reply = self._exchange(label, payload)
        up, down = self.counted.uplink_bytes + len(reply), self.counted.downlink_bytes + len(payload)
        self.counted = Traffic(uplink_bytes=up, downlink_bytes=down)
        return reply

    # --- what an exchange's messages are ----------------------------------------------------------

    def codec(self, label: int) -> Codec:
        """How the messages of a conversation are read."""
        if label not in self._codecs:
            self._codecs[label] = codec_of(self.fit.stage(label).conversation, self.fit.dim(label))
        return self._codecs[label]

    @property
    def fit(self) -> Playing:
        """The fit, which begins after the preparation."""
        if self.playing is None:
            raise ProtocolError("the fit was asked for before the preparation has ended")
        return self.playing

    def units(self, label: int) -> Vector | float:
        """The size of each coefficient's column, where a conversation has coefficients."""
        return 1.0 if label == PREPARATION else self.fit.units(label)

    def scaling(self, label: int, weight: float = 1.0) -> Scaling:
        """How a conversation's numbers are weighed and scaled on their way."""
        if label == PREPARATION:
            return Scaling(units=True)
        if self.fit.private is not None:
            return Scaling()
        return scaling_of(self.fit.problem, weight, self.fit.stage(label).null)

    def addends(
        self, label: int, request: Request, parts: Sequence[Any], weight: float = 1.0
    ) -> tuple[bytes, Addends, int]:
        """A site's answers: what all sites have in common, the numbers to be added, and their bits.

        Those of a private fit get this site's part of the noise.
        """
        if label != PREPARATION and self.fit.private is not None:
            public, exact = split(parts, Scaling())
            drawn = [z for part in request.parts for z in noise(self.fit.private.noise_of(part).tolist())]
            if len(drawn) != len(exact.wide) or len(exact.slim):
                raise ProtocolError("an answer in a private fit has a number without noise")
            return public, replace(exact, noise=tuple(drawn)), fraction_for(1.0)
        if label == PREPARATION:
            return *split(parts, self.scaling(label)), fraction_for(1.0)
        empty = blanks(self.fit.stage(label).conversation, request.parts, self.fit.dim(label))
        total = self.fit.problem.weights[ALL]
        return *split(parts, self.scaling(label, weight), empty), fraction_for(total)

    def reply(self, label: int, payload: bytes, public: bytes, totals: Totals) -> bytes:
        """The reply of all sites to a request, from their sums."""
        self.sites = totals.sites
        codec = self.codec(label)
        request = codec.decode_request(payload)
        parts = usable(request.parts, join(public, totals, self.scaling(label), self._kinds(label)))
        for part in parts:
            if isinstance(part, Declined):
                raise DataError(part.why)
        hessians = int(any(map(curvature, parts)))
        return codec.encode_reply(Reply(request.run, request.number, hessians, parts))

    def _kinds(self, label: int) -> Sequence[type[Message]]:
        return MESSAGES if label == PREPARATION else self.fit.stage(label).conversation.messages


class _AllTransport:
    """One conversation with all sites as one."""

    stateless = False

    def __init__(self, tables: AllTables, label: int) -> None:
        self._tables, self._label = tables, label

    def agents(self) -> Sequence[str]:
        """The one agent."""
        return (ALL,)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """One exchange."""
        return [(site, self._tables.ask(self._label, payload)) for site, payload in payloads.items()]


class _AllSites:
    stateless = False

    def __init__(self, tables: AllTables) -> None:
        self._tables = tables

    def open(self, stage: Stage) -> AbstractContextManager[Transport]:
        """The conversation of a stage."""
        return nullcontext(_AllTransport(self._tables, stage.number))
