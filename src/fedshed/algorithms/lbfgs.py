"""L-BFGS at the Master with federated gradients: what Spark and most practitioners use.

Nocedal and Wright, Numerical Optimization (2nd ed.), Algorithm 7.4; the initial matrix is the diagonal of the
Hessian at the start (one vector from each agent), scaled by the newest secant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.gradients import GradientAlgorithm, LocalScale, Scale, mean_scale, with_diagonal
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import Point
from fedshed.protocol.conversation import Flow, Problem
from fedshed.protocol.messages import Message

Initial: TypeAlias = Callable[[Vector], Vector]


class LbfgsState(State[Scale], frozen=True):
    """The Master's state with its secants s = theta^{t+1} - theta^t, y = g_{t+1} - g_t, oldest first."""

    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None  # theta and g of the last step


class Lbfgs(GradientAlgorithm[LbfgsState], frozen=True, tag=True):
    """theta^{t+1} = theta^t - eta_t B_t g_t, B_t from the last `memory` secants."""

    memory: Annotated[int, Meta(ge=1, le=1000)] = 20
    line_search: LineSearch = TwoExchange()
    summable: ClassVar[bool] = True
    state: ClassVar[type[LbfgsState]] = LbfgsState
    first: ClassVar[type[Message]] = LocalScale

    def step(self, problem: Problem, state: LbfgsState) -> Flow[tuple[LbfgsState, Info]]:
        """Remember the newest secant, then go along -B g."""
        g = gradient(problem, state)
        s, y = remembered(state.s, state.y, state.last, state.theta, g, self.memory)
        scale = mean_scale(problem, state) + problem.l2
        direction = -two_loop(g, s, y, lambda v: v / scale)
        state = replace(state, s=s, y=y, last=(state.theta, g))
        step = yield from self.line_search(self, problem, state, g, direction)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, stopped=step.stopped)

    def scaled(self, point: Point) -> Message:
        """With the first answer, the diagonal of the Hessian."""
        return with_diagonal(point)


def remembered(
    s: Matrix | None,
    y: Matrix | None,
    last: tuple[Vector, Vector] | None,
    theta: Vector,
    g: Vector,
    memory: int,
) -> tuple[Matrix, Matrix]:
    """The secants with the newest one, the oldest dropped; one without curvature is not kept."""
    n = len(theta)
    s = np.zeros((0, n)) if s is None else s
    y = np.zeros((0, n)) if y is None else y
    if last is None or memory == 0:
        return s, y
    ds, dy = theta - last[0], g - last[1]
    if ds @ dy <= 1e-12 * np.linalg.norm(ds) * np.linalg.norm(dy):
        return s, y
    return np.vstack([s, ds])[-memory:], np.vstack([y, dy])[-memory:]


def two_loop(g: Vector, s: Matrix, y: Matrix, initial: Initial, scaled: bool = True) -> Vector:
    """B g by the two-loop recursion; `initial` is the initial inverse Hessian, scaled by the last secant."""
    q, alphas = g.copy(), []
    curvature = np.sum(s * y, axis=1)
    for j in reversed(range(len(s))):
        alphas.append((s[j] @ q) / curvature[j])
        q = q - alphas[-1] * y[j]
    gamma = curvature[-1] / (y[-1] @ initial(y[-1])) if len(s) and scaled else 1.0
    r = gamma * initial(q)
    for j, alpha in zip(range(len(s)), reversed(alphas), strict=True):
        r = r + s[j] * (alpha - (y[j] @ r) / curvature[j])
    return r
