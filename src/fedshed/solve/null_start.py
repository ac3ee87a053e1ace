"""Where to start: at the intercept of the model without columns, from one exchange of a few sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives import family_of
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, Rule


def levels_of(problem: Problem, sums: Mapping[AgentId, Scalars]) -> Vector:
    """The intercepts of the model without columns; sums that a site cannot have are refused by its name."""
    objective = family_of(problem.loss).objective
    usual = Counter(map(len, sums.values())).most_common(1)[0][0]
    for site, mine in sums.items():
        if len(mine) != usual or not objective.possible_moments(mine, problem.weights[site]):
            raise ProtocolError(
                f"site {site!r} sent sums of its target that rows of weight {problem.weights[site]:.6g} "
                "cannot have; run the same version of fedshed there, and check its table"
            )
    levels = objective.null_levels(np.asarray(sum(sums.values())))
    if not np.isfinite(levels).all():
        raise ProtocolError("the sums of the target over all sites give no start: they are 0 or too large")
    return levels


class AskMoments(Message, frozen=True):
    """The sums from which the model without columns follows."""


class Moments(Message, frozen=True):
    """A site's sums; which, its loss says."""

    sums: Scalars

    adds: ClassVar[Mapping[str, Rule] | None] = {"sums": FINE}


class NullStart(Conversation, frozen=True, tag=True):
    """One exchange before the first round; it moves no gradient."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskMoments, Moments)
    requests = ((AskMoments, None),)

    def flow(self, problem: Problem) -> Flow[Vector]:
        """theta with the intercept, its last entry (of each contrast), at the null model; 0 elsewhere."""
        replies = yield from everyone([AskMoments()], problem)
        answers = answers_of(replies, Moments, AskMoments)
        levels = levels_of(problem, {i: answer.sums for i, answer in answers.items()})
        if family_of(problem.loss).classes == "ordered":
            return self._thresholds(problem, levels)
        if problem.n % len(levels):
            raise ProtocolError(
                f"the sites sent sums of {len(levels) + 1} classes for {problem.n} coefficients; "
                "run the same version of fedshed at all of them"
            )
        theta = np.zeros((len(levels), problem.n // len(levels)))
        theta[:, -1] = levels
        return theta.ravel()

    @staticmethod
    def _thresholds(problem: Problem, levels: Vector) -> Vector:
        """theta with the thresholds, its last entries, at the null model."""
        if problem.n < len(levels):
            raise ProtocolError(f"the sites sent {len(levels) + 1} classes for {problem.n} coefficients")
        return np.concatenate([np.zeros(problem.n - len(levels)), levels])

    def respond(self, agent: Agent, cache: None, part: AskMoments, own_part: Any) -> tuple[None, Moments]:
        """The site's sums."""
        return None, Moments(agent.objective.null_moments())
