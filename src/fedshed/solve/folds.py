"""The exchange of a path: sums over the rows of all but one fold, for every fold at a point of its own.

One request carries a theta for all rows and one for each fold that is left out, so that a cross-validated
path takes as many exchanges as one path.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.objectives.folds import WithoutRows
from fedshed.protocol.conversation import Agent, Conversation, Problem
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message
from fedshed.solve.inspection_checks import semidefinite

MOST_FOLDS = 100


class AskFolds(Message, frozen=True):
    """Asks for sums at each theta: over all rows of the site (0), or all but those of a fold (1, 2, ...)."""

    thetas: Matrix
    left_out: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=MOST_FOLDS)], ...], Meta(max_length=MOST_FOLDS + 1)
    ]
    folds: Annotated[int, Meta(ge=0, le=MOST_FOLDS)]
    seed: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.thetas) != len(self.left_out) or any(k > self.folds for k in self.left_out):
            raise ValueError(f"{len(self.thetas)} points for {len(self.left_out)} of {self.folds} folds")


class FoldSums(Message, frozen=True):
    """Sums over the rows that stay, and the deviance and weight of those left out; no loss: one overflows.

    Where all rows stay, the deviance and the weight are theirs.
    """

    weight: float
    loss: float | None
    gradient: Vector
    hessian: Packed
    held: float
    held_weight: float


class FoldAnswer(Message, frozen=True):
    """The sums at each point."""

    points: Annotated[tuple[FoldSums, ...], Meta(max_length=MOST_FOLDS + 1)]


class Folds(Conversation, frozen=True, tag=True):
    """Loss, gradient and Hessian at many points, each without the rows of a fold."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskFolds, FoldAnswer)
    requests = ((AskFolds, None),)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """An answer has sums at each point, of weights that are not negative."""
        if not isinstance(answer, FoldAnswer) or len(answer.points) != len(part.left_out):
            return f"it sent a {type(answer).__name__} to {len(part.left_out)} points"
        if any(min(one.weight, one.held_weight, one.held) < 0 for one in answer.points):
            return "it sent a negative weight or deviance"
        if not _same_rows(problem, answer, part.left_out):
            return "its folds do not add up to its rows"
        if not all(semidefinite(unpack(one.hessian, problem.n)) for one in answer.points):
            return "it sent a Hessian that is negative in some direction"
        return None

    def respond(self, agent: Agent, cache: None, part: AskFolds, own_part: Any) -> tuple[None, FoldAnswer]:
        """The sums over this site's rows."""
        fold = agent.objective.fold_of_each(agent.name, part.folds, part.seed)
        points = zip(part.thetas, part.left_out, strict=True)
        return None, FoldAnswer(
            tuple(_sums(agent.objective.without(theta, fold == k if k else None)) for theta, k in points)
        )


def _same_rows(problem: Problem, answer: FoldAnswer, left_out: tuple[int, ...]) -> bool:
    """Whether the rows that stay and those left out are at each point those of a site."""
    points = zip(answer.points, left_out, strict=True)
    whole = [one.weight + one.held_weight if k else one.weight for one, k in points]
    whole += [one.held_weight for one, k in zip(answer.points, left_out, strict=True) if not k]
    return any(np.allclose(whole, weight, rtol=1e-9) for weight in problem.weights.values())


def _sums(found: WithoutRows) -> FoldSums:
    """What is sent of a point; nothing but weights where it lies too far away to compute."""
    numbers = found.loss, found.held, found.gradient.sum(), found.hessian.sum()
    if not all(map(isfinite, numbers)):
        zeros = np.zeros_like(found.gradient), pack(np.zeros_like(found.hessian))
        return FoldSums(found.weight, None, *zeros, 0.0, found.held_weight)
    return FoldSums(
        found.weight, found.loss, found.gradient, pack(found.hessian), found.held, found.held_weight
    )
