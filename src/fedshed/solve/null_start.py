"""Where to start: at the intercept of the model without columns, from one exchange of a few sums."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives import family_of
from fedshed.protocol.conversation import Agent, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message


class AskMoments(Message, frozen=True):
    """The sums from which the model without columns follows."""


class Moments(Message, frozen=True):
    """A site's sums; which, its loss says."""

    sums: Scalars


class NullStart(Conversation, frozen=True, tag=True):
    """One exchange before the first round; it moves no gradient."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskMoments, Moments)

    def flow(self, problem: Problem) -> Flow[Vector]:
        """theta with the intercept, its last entry (of each contrast), at the null model; 0 elsewhere."""
        replies = yield from everyone([AskMoments()], problem)
        levels = family_of(problem.loss).objective.null_levels(
            sum(answer.sums for (answer,) in replies.values())
        )
        theta = np.zeros((len(levels), problem.n // len(levels)))
        theta[:, -1] = levels
        return theta.ravel()

    def respond(self, agent: Agent, cache: None, part: AskMoments, own_part: Any) -> tuple[None, Moments]:
        """The site's sums."""
        return None, Moments(agent.objective.null_moments())
