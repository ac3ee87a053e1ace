"""The exchange after the fit of a survival model: concordant pairs, and whether hazards are proportional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.linalg.arrays import Packed, Scalars, Vector, pack, unpack
from fedshed.objectives.time_scale import POOLED, TimeScale, Transform
from fedshed.protocol.conversation import (
    Agent,
    AgentId,
    Conversation,
    Flow,
    Problem,
    answers_of,
    everyone,
    require_plausible,
)
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, Added, Rule
from fedshed.solve.scatter import SCATTER


class CheckSurvival(Message, frozen=True):
    """Asks for pairs of rows, and for the sums of a score test of proportional hazards, at theta.

    The function g of time is the same at all sites (`fedshed.objectives.time_scale`): the time or its
    logarithm, or a function that increases in steps, with a value for each cell of a grid and one after it.
    """

    theta: Vector
    transform: Transform = "identity"
    times: Scalars | None = None
    values: Scalars | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.times is None, self.values is None) != ((self.transform not in POOLED,) * 2):
            raise ValueError(f"a scale has times and values if it is one of {', '.join(POOLED)}")
        if self.times is None or self.values is None:
            return
        if not len(self.times) or len(self.values) != len(self.times) + 1:
            raise ValueError("a scale has a value for each cell of its grid, and one for later times")
        if (np.diff(self.times) <= 0).any() or (np.diff(self.values) < 0).any():
            raise ValueError("the times of a scale increase, and its values do not decrease")

    @property
    def scale(self) -> TimeScale:
        """The function g."""
        return TimeScale(self.transform, self.times, self.values)


class SurvivalChecked(Message, frozen=True):
    """The weight of pairs; and sums over events of g (x - m), of g V and of g^2 V.

    m and V are the mean and the covariance of the columns in the risk set of an event (Grambsch and Therneau
    1994, Biometrika 81, 515).
    """

    concordant: float
    discordant: float
    tied: float
    score: Vector
    cross: Packed
    square: Packed

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "concordant": FINE, "discordant": FINE, "tied": FINE, "score": Added(power=1, fine=True),
        "cross": SCATTER, "square": SCATTER,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.concordant, self.discordant, self.tied) < -1e-6:
            raise ValueError("a number of pairs is at least 0")


def _impossible(problem: Problem, site: AgentId, answer: SurvivalChecked) -> str | None:
    """Why no site can have this answer, if it cannot."""
    pairs = answer.concordant + answer.discordant + answer.tied
    if pairs > problem.weights[site] ** 2 / 2 * (1 + 1e-9):
        return f"counts pairs of weight {pairs:.6g} in rows of weight {problem.weights[site]:.6g}"
    values = np.linalg.eigvalsh(unpack(answer.square, problem.n))
    if values[0] < -1e-8 * max(values[-1], 0.0) - 1e-150:
        return "sent a sum of covariances that is negative in some direction"
    return None


class SurvivalCheck(Conversation, frozen=True, tag=True):
    """One exchange at the estimate."""

    transform: Transform | None = None  # at a site that approved a study: the only scale of time
    grid: tuple[float, ...] = ()  # and the only times at which its steps may be
    messages: ClassVar[tuple[type[Message], ...]] = (CheckSurvival, SurvivalChecked)
    requests = ((CheckSurvival, None),)

    def flow(self, problem: Problem, asked: CheckSurvival) -> Flow[dict[AgentId, SurvivalChecked]]:
        """Each site's answer, in sorted order."""
        replies = yield from everyone([asked], problem)
        answers = answers_of(replies, SurvivalChecked, CheckSurvival)
        return require_plausible(answers, lambda i, answer: _impossible(problem, i, answer))

    def respond(
        self, agent: Agent, cache: None, part: CheckSurvival, own_part: Any
    ) -> tuple[None, SurvivalChecked]:
        """The sums over this site's pairs and events."""
        model, scale = agent.objective, part.scale
        if self.transform is not None and part.transform != self.transform:
            raise ProtocolError("the study that was approved tests hazards on another scale of time")
        if self.transform is not None and scale.times is not None and tuple(scale.times) != self.grid:
            raise ProtocolError("the study that was approved has another grid of times")
        try:
            score, cross, square = model.proportionality(part.theta, scale)
        except DataError as error:
            raise DataError(f"site {agent.name!r}: {error}") from None
        concordant, discordant, tied = (max(0.0, each) for each in model.pair_counts(part.theta))
        return None, SurvivalChecked(concordant, discordant, tied, score, pack(cross), pack(square))
