"""DANE: every agent minimises its own cost, corrected by the global gradient; the Master averages.

Shamir, Srebro, Zhang, ICML 2014, with a constant step as there.  AIDE: Reddi, Konecny, Richtarik, Poczos,
Smola (2016), here with one round of DANE in each step of its acceleration (`momentum`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Info, State, advance, cost, gradient, step_sizes
from fedshed.algorithms.gradients import (
    GradientAlgorithm,
    LocalSmoothness,
    Scale,
    mean_scale,
    short_ridge,
    with_smoothness,
)
from fedshed.algorithms.rivals.divergence import divergence_reason
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.linalg.rows import gram
from fedshed.objectives import Objective, Point
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, wrong_type_reason
from fedshed.protocol.messages import Local, Message, Update

NEWTON_STEPS = 50  # of an agent in one exchange
EXACT_ENOUGH = 1e-9  # of eta g: a smaller local gradient is a minimum
ROUNDING = 32 * float(np.finfo(float).eps)
HINT = "raise mu (it is too small for sites that differ this much), or use a method with a line search"


class Subproblem(Message, frozen=True):
    """The minimum of f_i(x) + x' diag(l2) x / 2 - (g_i - eta g)'x + mu ||x - theta||^2 / 2, less theta.

    g_i is the gradient of the first two terms at theta, which the agent computes; `pull` is eta g.
    """

    theta: Vector
    pull: Vector
    l2: Scalars  # one number, or one a coefficient
    mu: float


class Move(Message, frozen=True):
    """The minimum of an agent's subproblem, relative to theta."""

    move: Vector


class DaneState(State[Scale], frozen=True):
    """The Master's state with the last average, which gives the momentum, and the cost at the start."""

    previous: Vector | None = None
    first: float | None = None


class Dane(GradientAlgorithm[DaneState], frozen=True, tag=True):
    """DANE: agents minimise their own cost, corrected by the global gradient; the Master averages the minima.

    theta^{t+1} = sum_i p_i argmin_x f_i(x) - (g_i - eta g)'x + mu ||x - theta^t||^2 / 2.

    For least squares theta^{t+1} - theta* = (I - eta sum_i p_i (H_i + mu I)^-1 H) (theta^t - theta*): the
    method converges if and only if the spectral radius of this matrix is below 1. Heterogeneous sites violate
    this unless mu is large.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    mu : float, default 0.01
        The proximal coefficient, in units of K = sum_i p_i lambda_1(H_i(theta^1)) + max l2.
    eta : float, default 1.0
        The factor of the global gradient.
    momentum : float, default 0.0
        The extrapolation of AIDE, at least 0 and below 1.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Dane(mu=0.02)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    # K = sum_i p_i lambda_1(H_i(theta^1)) + max l2; 0.01 was the best of 0.001 to 0.1 on F5 (docs/beyond.md)
    mu: float = 0.01  # in units of K, what holds a local solution near theta^t
    eta: float = 1.0  # the weight of the global gradient in the local problems
    momentum: float = 0.0  # AIDE's extrapolation
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Local, LocalSmoothness, Subproblem, Move)
    requests = ((Update, None), (Subproblem, None))
    first: ClassVar[type[Message]] = LocalSmoothness
    state: ClassVar[type[DaneState]] = DaneState
    compare_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.mu < np.inf and 0 < self.eta < np.inf and 0 <= self.momentum < 1):
            raise ConfigError(
                f"DANE needs a finite mu >= 0, eta > 0 and 0 <= momentum < 1, "
                f"not {self.mu}, {self.eta}, {self.momentum}"
            )

    def step(self, problem: Problem, state: DaneState) -> Flow[tuple[DaneState, Info]]:
        """Broadcast g, average the local minima; no line search, as in the paper."""
        g, f = gradient(problem, state), cost(problem, state)
        first = f if state.first is None else state.first
        if stopped := divergence_reason(state, f, first, HINT):
            return state, Info(self.eta, 2, stopped=stopped)
        mu = self.mu * float(mean_scale(problem, state)[0] + problem.l2.max())
        part = Subproblem(state.theta, self.eta * g, short_ridge(problem), mu)
        replies = yield from self.collect(Ask((part,), dict.fromkeys(problem.agents)), problem, state)
        moves = [problem.p[i] * replies[i][0].move for i in problem.agents]
        x = state.theta + np.sum(moves, axis=0)
        previous = x if state.previous is None else state.previous
        after = advance(state, x + self.momentum * (x - previous), g)
        return replace(after, previous=x, first=first), Info(self.eta, 2, renewed=len(replies))

    def scaled(self, point: Point) -> Message:
        """With the first answer, the smoothness constant, which mu is relative to."""
        return with_smoothness(point)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """A move for a subproblem, a cost and a gradient for an Update."""
        if isinstance(part, Subproblem):
            return wrong_type_reason(answer, Move)
        return super().refusal(problem, part, own_part, answer)

    def respond(
        self, agent: Agent, cache: None, part: Update | Subproblem, own_part: None
    ) -> tuple[None, Message]:
        """f_i and g_i, or the minimum of the subproblem."""
        if not isinstance(part, Subproblem):
            return super().respond(agent, cache, part, own_part)
        return None, Move(local_minimum(agent.objective, part))


def local_minimum(objective: Objective, part: Subproblem) -> Vector:
    """s = x - theta at the minimum of the subproblem, by Newton's method with Armijo's rule.

    Where h is f_i less its tangent at theta, it minimises h(theta + s) + pull's + s' diag(l2 + mu) s / 2.
    """
    start = point = objective.at(part.theta)
    ridge = np.broadcast_to(part.l2, part.pull.shape) + part.mu
    sizes = float(np.linalg.norm(part.pull)), float(np.linalg.norm(start.gradient))
    enough = max(EXACT_ENOUGH * sizes[0], ROUNDING * sum(sizes))
    s = np.zeros_like(part.pull)
    for _ in range(NEWTON_STEPS):
        g = point.gradient - start.gradient + part.pull + ridge * s
        if np.linalg.norm(g) <= enough:
            break
        p = -DensePlusRidge(gram(point.factor), ridge).solve(g)
        f = _local_cost(start, part, ridge, s, point)
        for eta in step_sizes(0.5, 0, 40):
            point = objective.at(part.theta + s + eta * p)
            most = f + 0.1 * eta * float(g @ p) + ROUNDING * max(1.0, abs(f))
            if _local_cost(start, part, ridge, s + eta * p, point) <= most:
                break
        s = s + eta * p
    return s


def _local_cost(start: Point, part: Subproblem, ridge: Vector, s: Vector, point: Point) -> float:
    """The cost of the subproblem at theta + s, up to a constant."""
    return float(point.value + (part.pull - start.gradient) @ s + 0.5 * s @ (ridge * s))
