"""Common parts of algorithms that ask only for costs and gradients, and for one scale at the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, SiteModel, State
from fedshed.linalg.arrays import Gradient, Scalars, Vector
from fedshed.objectives import Point
from fedshed.protocol.conversation import Agent, Ask, Problem, Replies, wrong_type_reason
from fedshed.protocol.messages import Local, Message, Update
from fedshed.protocol.sums import GRADIENT, MEAN, Added, Rule

_CURVATURE = Added(mean=True, power=2)


class LocalScale(Message, frozen=True):
    """f^(i), g^(i) and the diagonal of the Hessian at the start."""

    loss: float
    gradient: Gradient
    scale: Vector

    adds: ClassVar[Mapping[str, Rule] | None] = {"loss": MEAN, "gradient": GRADIENT, "scale": _CURVATURE}


class LocalSmoothness(Message, frozen=True):
    """f^(i), g^(i) and the largest eigenvalue of the Hessian at the start."""

    loss: float
    gradient: Gradient
    scale: float

    adds: ClassVar[Mapping[str, Rule] | None] = {"loss": MEAN, "gradient": GRADIENT, "scale": _CURVATURE}


class Scale(Struct, frozen=True):
    """An agent's curvature at the start: its diagonal, or one number."""

    values: Scalars

    def matvec(self, s: Vector) -> Vector:
        """diag(values) s."""
        return self.values * s


S = TypeVar("S", bound=State[Any])
LocalGradient: TypeAlias = Local | LocalScale | LocalSmoothness


class GradientAlgorithm(Algorithm[S, Update, None, LocalGradient, None], Generic[S], frozen=True):
    """Asks every agent for f_i and g_i at theta^t; subclasses step, and may ask for a scale at t = 1."""

    messages: ClassVar[tuple[type[Message], ...]] = (Update, Local, LocalScale, LocalSmoothness)
    first: ClassVar[type[Message]] = Local  # the answer at t = 1
    cache = None

    def ask(self, problem: Problem, state: S) -> Ask:
        """f_i and g_i at theta^t."""
        return Ask((self.update(state),), dict.fromkeys(problem.agents))

    def absorb(self, problem: Problem, state: S, replies: Replies[LocalGradient]) -> S:
        """Costs and gradients move to theta^t; a scale stays as it was at the start."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            if isinstance(local, Local):
                scale = known[i].curvature if i in known else None
            else:
                scale = Scale(np.atleast_1d(local.scale))
            known[i] = SiteModel(state.theta, local.loss, local.gradient, scale)
        return replace(state, known=known)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """The scale comes with the first answer, and only with it."""
        return wrong_type_reason(answer, self.answer_kind(part))

    def answer_kind(self, part: Any) -> type[Message]:
        """f_i and g_i, with a scale at the start."""
        return self.first if part.t == 1 else Local

    def respond(self, agent: Agent, cache: None, part: Update, own_part: None) -> tuple[None, Message]:
        """f_i and g_i, and the scale at the start."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        return None, self.scaled(point) if part.t == 1 else Local(point.value, point.gradient, None)

    def scaled(self, point: Point) -> Message:
        """The first answer; without a scale unless a subclass wants one."""
        return Local(point.value, point.gradient, None)


def with_diagonal(point: Point) -> LocalScale:
    """f_i, g_i and diag H_i."""
    return LocalScale(point.value, point.gradient, point.diagonal)


def with_smoothness(point: Point) -> LocalSmoothness:
    """f_i, g_i and lambda_1(H_i); for the logistic loss the largest anywhere if theta^1 = 0."""
    from fedshed.linalg import leading_eigenpairs

    return LocalSmoothness(point.value, point.gradient, float(leading_eigenpairs(point.factor)[0][0]))


def short_ridge(problem: Problem) -> Scalars:
    """l2 as it is sent to agents whose local cost has the ridge: one number if all coefficients share it."""
    return problem.l2[:1] if np.ptp(problem.l2) == 0 else problem.l2


def mean_scale(problem: Problem, state: State[Any]) -> Scalars:
    """sum_i p_i scale_i."""
    scales = np.concatenate([state.known[i].curvature.values for i in problem.agents])
    shares = np.fromiter(problem.p.values(), float)[:, None]
    mean: Scalars = np.sum(shares * scales.reshape(len(shares), -1), axis=0)
    return mean
