"""First-order methods: Nesterov's accelerated gradient, and heavy ball as in GIANT's code."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Info, State, advance, gradient
from fedshed.algorithms.gradients import (
    GradientAlgorithm,
    LocalSmoothness,
    Scale,
    mean_scale,
    with_smoothness,
)
from fedshed.linalg.arrays import Vector
from fedshed.objectives import Point
from fedshed.protocol.conversation import Flow, Problem
from fedshed.protocol.messages import Message

GRID: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # step sizes that are tried, in units of 1/K


class MomentumState(State[Scale], frozen=True):
    """The Master's state with what gives the method its momentum."""

    previous: Vector | None = None  # Nesterov: the last x; heavy ball: the velocity
    age: int = 1  # Nesterov: steps since the last restart


class _FirstOrder(GradientAlgorithm[MomentumState], frozen=True):
    """A constant step size in units of 1/K, K = sum_i p_i lambda_1(H_i(theta^1)) + max l2."""

    step_size: float = 1.0  # in units of 1/K
    summable: ClassVar[bool] = True
    state: ClassVar[type[MomentumState]] = MomentumState
    first: ClassVar[type[Message]] = LocalSmoothness

    def __post_init__(self) -> None:
        if not 0 < self.step_size < np.inf:
            raise ConfigError(
                f"step_size must be a finite number above 0, in units of 1/K, not {self.step_size}"
            )

    def scaled(self, point: Point) -> Message:
        """With the first answer, the smoothness constant."""
        return with_smoothness(point)

    def _step_length(self, problem: Problem, state: MomentumState) -> float:
        return self.step_size / float(mean_scale(problem, state)[0] + problem.l2.max())


class Agd(_FirstOrder, frozen=True, tag=True):
    """Nesterov's accelerated gradient method, restarted when its momentum points uphill.

    The momentum after a steps since the last restart is (a - 1) / (a + 2). Gradient restart: O'Donoghue and
    Candes, Found. Comput. Math. 15 (2015), Section 3.2; no strong-convexity constant is needed. theta^t is
    the extrapolated point, at which gradients are taken.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    step_size : float, default 1.0
        The constant step size in units of 1/K, where K = sum_i p_i lambda_1(H_i(theta^1)) + max l2.

    Raises
    ------
    ConfigError
        If `step_size` is not a finite number above 0.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Agd(step_size=2.0)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    def step(self, problem: Problem, state: MomentumState) -> Flow[tuple[MomentumState, Info]]:
        """x = theta - s g, theta^{t+1} = x + momentum (x - previous x)."""
        g = gradient(problem, state)
        x = state.theta - self._step_length(problem, state) * g
        previous = state.theta if state.previous is None else state.previous
        uphill = g @ (x - previous) > 0
        age = 1 if uphill else state.age + 1
        theta = x + (age - 1) / (age + 2) * (x - previous)
        return replace(advance(state, theta, g), previous=x, age=age), Info(self.step_size, rounds=1)
        yield  # asks nothing


class HeavyBall(_FirstOrder, frozen=True, tag=True):
    """The heavy-ball method: v <- momentum v - s g and theta^{t+1} = theta^t + v, with a constant step s.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    step_size : float, default 1.0
        The constant step size in units of 1/K, where K = sum_i p_i lambda_1(H_i(theta^1)) + max l2.
    momentum : float, default 0.95
        The factor of the last velocity; the default is that of GIANT's code (docs/paper.md 15).

    Raises
    ------
    ConfigError
        If `step_size` is not a finite number above 0.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.HeavyBall(momentum=0.9)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    momentum: float = 0.95  # m, the share of the last step that is added

    def step(self, problem: Problem, state: MomentumState) -> Flow[tuple[MomentumState, Info]]:
        """A step along the velocity."""
        g = gradient(problem, state)
        last = np.zeros(problem.n) if state.previous is None else state.previous
        velocity = self.momentum * last - self._step_length(problem, state) * g
        after = advance(state, state.theta + velocity, g)
        return replace(after, previous=velocity), Info(self.step_size, rounds=1)
        yield  # asks nothing
