"""Federated Armijo backtracking (Algorithm 2, docs/paper.md 9), and the full step of least squares.

A line search is a part of its own, with two exchange patterns that give the same iterates bit for bit:
`TwoExchange` asks for the costs along the direction, and leaves the next update to the next round;
`Fused` asks for the costs and for the update at the full step in one exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithm import Ask, Problem, Replies, State, advance, cost, step_sizes
from fedshed.arrays import Vector
from fedshed.errors import ConfigError, Error
from fedshed.messages import Search, Undefined

if TYPE_CHECKING:
    from fedshed.algorithm import Algorithm, Flow

SMALLEST_STEP = 2.0**-40


class Step(Struct, frozen=True):
    """The accepted step size and the Master's state at the new point; eta = 0 says that none was found."""

    eta: float
    state: Any

    @property
    def stopped(self) -> str | None:
        """Why no step was possible, if none was."""
        return None if self.eta > 0 else "the line search found no step above 2^-40 that lowers the cost"


class FullStep(Struct, frozen=True, tag=True):
    """eta = 1 without asking (Algorithm 1)."""

    rounds: ClassVar[int] = 0

    def __call__(
        self, algorithm: Algorithm[Any], problem: Problem, state: State[Any], g: Vector, direction: Vector
    ) -> Flow[Step]:
        """theta + direction."""
        return Step(1.0, advance(state, state.theta + direction, g))
        yield  # a flow that asks nothing


class _Armijo(Struct, frozen=True, tag=True):
    """The first eta = beta^j with f(theta + eta p) <= f(theta) + alpha eta g'p; `candidates` at a time."""

    alpha: float = 0.1
    beta: float = 0.5
    candidates: int = 8
    rounds: ClassVar[int] = 1
    fused: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 0.5 and 0 < self.beta < 1 and self.candidates >= 1):
            raise ConfigError(
                f"Armijo needs 0 < alpha < 1/2, 0 < beta < 1 and candidates >= 1, "
                f"not {self.alpha}, {self.beta}, {self.candidates}"
            )

    def __call__(
        self, algorithm: Algorithm[Any], problem: Problem, state: State[Any], g: Vector, direction: Vector
    ) -> Flow[Step]:
        """Ask for batch after batch of candidates until one is accepted or all are below 2^-40."""
        if not np.isfinite(direction).all():
            raise Error(
                f"the direction at iteration {state.t} is not finite; rescale the columns or raise l2"
            )
        tried = 0
        while self.beta**tried >= SMALLEST_STEP:
            etas = step_sizes(self.beta, tried, self.candidates)
            search = Search(state.theta, direction, etas[etas >= SMALLEST_STEP])
            trial = advance(state, state.theta + direction, g) if self.fused and tried == 0 else None
            ask = self._ask(algorithm, problem, search, trial)
            replies = yield from algorithm.collect(ask, problem, state)
            eta = self._first_accepted(problem, state, g, search, replies)
            if trial is not None:
                update = {i: parts[1:] for i, parts in replies.items() if not isinstance(parts[1], Undefined)}
                if eta == 1.0:
                    return Step(eta, replace(algorithm.absorb(problem, trial, update), fresh=True))
                state = algorithm.salvage(problem, state, trial, update)
            if eta > 0:
                return Step(eta, advance(state, state.theta + eta * direction, g))
            tried += self.candidates
        return Step(0.0, state)

    def _ask(
        self, algorithm: Algorithm[Any], problem: Problem, search: Search, trial: State[Any] | None
    ) -> Ask:
        """The request for the costs, and for the update at the trial point if there is one."""
        if trial is None:
            return Ask((search,), dict.fromkeys(problem.agents))
        update = algorithm.ask(problem, trial)
        return Ask((search, *(replace(part, theta=None) for part in update.parts)), update.each)

    def _first_accepted(
        self, problem: Problem, state: State[Any], g: Vector, search: Search, replies: Replies
    ) -> float:
        f0, slope = cost(problem, state), float(g @ search.direction)
        slack = (
            4 * np.finfo(float).eps * max(1.0, abs(f0))
        )  # near the optimum f-differences drown in rounding
        for j, eta in enumerate(search.etas):
            with np.errstate(over="ignore", invalid="ignore"):  # an infinite cost is simply not accepted
                f = _cost_along(problem, state, search.direction, float(eta), j, replies)
            if f <= f0 + self.alpha * eta * slope + slack:
                return float(eta)
        return 0.0


class TwoExchange(_Armijo, frozen=True, tag=True):
    """The paper's pattern: one exchange for the update, one for the costs."""


class Fused(_Armijo, frozen=True, tag=True):
    """One exchange for the costs and for the update at eta = 1; what a rejected trial brought is salvaged."""

    fused: ClassVar[bool] = True


def _cost_along(
    problem: Problem, state: State[Any], direction: Vector, eta: float, j: int, replies: Replies
) -> float:
    """f at theta + eta * direction: one function for f0 and all candidates (promise 5 of docs/design.md).

    An agent counts with its reported costs if it answered here *and* at theta^t, else with its model.
    """
    theta = state.theta + eta * direction
    total = 0.0
    for i in problem.agents:
        known = state.known[i]
        exact = i in replies and known.at(state.theta)
        total += problem.p[i] * (replies[i][0].values[j] if exact else known.cost(theta))
    return total + problem.ridge(theta)


LineSearch: TypeAlias = FullStep | TwoExchange | Fused
