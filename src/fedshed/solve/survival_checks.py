"""The exchange after the fit of a survival model: concordant pairs, and whether hazards are proportional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from fedshed.linalg.arrays import Packed, Vector, pack, unpack
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

Transform: TypeAlias = Literal["km", "identity", "log"]


class CheckSurvival(Message, frozen=True):
    """Asks for pairs of rows, and for the sums of a score test of proportional hazards, at theta.

    The function g of time is 1 - S(t-), S being the site's own Kaplan-Meier curve, or the time or its log.
    """

    theta: Vector
    transform: Transform = "km"


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
        model = agent.objective
        score, cross, square = model.proportionality(part.theta, part.transform)
        concordant, discordant, tied = (max(0.0, each) for each in model.pair_counts(part.theta))
        return None, SurvivalChecked(concordant, discordant, tied, score, pack(cross), pack(square))
