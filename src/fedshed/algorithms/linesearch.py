"""Federated Armijo backtracking (Algorithm 2, docs/paper.md 9), and the full step for least squares.

There are two exchange patterns that give the same iterates bit for bit:
`TwoExchange` asks for the costs along the direction, and leaves the next update to the next round;
`Fused` asks for the costs and for the update at the full step in one exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, Error
from fedshed.algorithms import composite
from fedshed.algorithms.base import State, advance, cost, step_sizes
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import LEAD, AgentId, Ask, Problem, Replies
from fedshed.protocol.limits import MOST_STEP_SIZES
from fedshed.protocol.messages import Search, Undefined

if TYPE_CHECKING:
    from fedshed.algorithms.base import AnyAlgorithm
    from fedshed.protocol.conversation import Flow

SMALLEST_STEP = 2.0**-40
NO_STEP = "the line search found no step size above 2^-40 that lowers the cost"
TIE = 1e-12  # of what is compared: nearer, and another processor's rounding may decide otherwise


class Step(Struct, frozen=True):
    """The result of a line search.

    Attributes
    ----------
    eta : float
        The accepted step size; 0 if none was found.
    state : State
        The Master's state at the new point.
    """

    eta: float
    state: Any

    @property
    def stopped(self) -> str | None:
        """The reason why no step was possible; None if there was one."""
        return None if self.eta > 0 else NO_STEP


class FullStep(Struct, frozen=True, tag=True):
    """eta = 1 without a search (Algorithm 1), which is enough for least squares.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.ALGORITHMS["shed-ls"].algorithm.line_search == fedshed.FullStep()
    True
    """

    rounds: ClassVar[int] = 0

    def __call__(
        self, algorithm: AnyAlgorithm, problem: Problem, state: State[Any], g: Vector, direction: Vector
    ) -> Flow[Step]:
        """The step from theta to theta + direction."""
        steepest = composite.steepest(problem, state.theta, g)
        return Step(1.0, advance(state, state.theta + direction, steepest))
        yield  # a flow that asks nothing


class _Armijo(Struct, frozen=True, tag=True):
    """The first eta = beta^j with f(theta + eta p) <= f(theta) + alpha eta g'p; `candidates` at a time."""

    alpha: float = 0.1
    beta: float = 0.5
    candidates: int = 8
    rounds: ClassVar[int] = 1
    fused: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 0.5 and 0 < self.beta < 1 and 1 <= self.candidates <= MOST_STEP_SIZES):
            raise ConfigError(
                f"a line search needs 0 < alpha < 1/2, 0 < beta < 1 and candidates from 1 to "
                f"{MOST_STEP_SIZES}, not {self.alpha}, {self.beta}, {self.candidates}"
            )

    def __call__(
        self, algorithm: AnyAlgorithm, problem: Problem, state: State[Any], g: Vector, direction: Vector
    ) -> Flow[Step]:
        """Ask for batches of candidates until one is accepted or all are below 2^-40."""
        if not np.isfinite(direction).all():
            raise Error(
                f"the direction at iteration {state.t} is not finite; rescale the columns or raise l2"
            )
        f0, slope, tried = cost(problem, state), composite.slope(problem, state.theta, g, direction), 0
        smooth, g = float(g @ direction), composite.steepest(problem, state.theta, g)
        while self.beta**tried >= SMALLEST_STEP:
            etas = step_sizes(self.beta, tried, self.candidates)
            search = Search(
                state.theta, direction, etas[etas >= SMALLEST_STEP], slopes=self._drowns(f0, slope)
            )
            trial = advance(state, state.theta + direction, g) if self.fused and tried == 0 else None
            ask = self._ask(algorithm, problem, search, trial)
            replies = yield from algorithm.collect(ask, problem, state)
            eta = self._choose_step_size(problem, state, f0, (slope, smooth), search, replies)
            if trial is not None:
                trial = advance(state, state.theta + direction, g)  # a replay has the Master's bits now
                update = _updates(replies)
                if eta == 1.0:
                    return Step(eta, replace(algorithm.absorb(problem, trial, update), updated=trial.t))
                state = algorithm.salvage(problem, state, trial, update)
            if eta > 0:
                return Step(eta, advance(state, state.theta + eta * direction, g))
            tried += self.candidates
        return Step(0.0, state)

    def _ask(
        self, algorithm: AnyAlgorithm, problem: Problem, search: Search, trial: State[Any] | None
    ) -> Ask:
        """The request for the costs, and for the update at the trial point if there is one."""
        if trial is None:
            return Ask((search,), dict.fromkeys(problem.agents))
        update = algorithm.ask(problem, trial)
        return Ask((search, *(replace(part, theta=None) for part in update.parts)), update.each)

    def _drowns(self, f0: float, slope: float) -> bool:
        """Whether the decrease asked for is too small to be seen in differences of costs."""
        return bool(self.alpha * abs(slope) <= 100 * _slack(f0))

    def _choose_step_size(
        self, problem: Problem, state: State[Any], f0: float, slopes: tuple[float, float], search: Search,
        replies: Replies[Any],
    ) -> float:  # fmt: skip
        """Armijo; where rounding hides the decrease, the slope decides (Hager and Zhang 2005).

        For a quadratic, f(eta) <= f(0) + alpha eta f'(0) is the same as f'(eta) <= (2 alpha - 1) f'(0).
        """
        slope = slopes[0]
        for j, eta in enumerate(search.etas):
            with np.errstate(over="ignore", invalid="ignore"):  # an infinite cost is simply not accepted
                f, rise = _along(problem, state, search, float(eta), j, replies)
            missed = [f - (f0 + self.alpha * eta * slope + _slack(f0))]
            missed += [] if rise is None else [rise - self._most(problem, state, search, float(eta), slopes)]
            if _is_accepted(missed, problem, state, search, float(eta), (f0, slope)):
                return float(eta)
        return 0.0

    def _most(
        self, problem: Problem, state: State[Any], search: Search, eta: float, slopes: tuple[float, float]
    ) -> float:
        """The largest slope of the smooth part at eta with which a quadratic fulfils Armijo's condition.

        With an absolute penalty L that is 2 alpha slope - f'(0) - 2 (L(eta) - L(0)) / eta.
        """
        slope, smooth = slopes
        if problem.l1 is None:
            return (2 * self.alpha - 1) * slope
        rise = problem.lasso(state.theta + eta * search.direction) - problem.lasso(state.theta)
        return 2 * self.alpha * slope - smooth - 2 * rise / eta


def _is_accepted(
    missed: list[float], problem: Problem, state: State[Any], search: Search, eta: float,
    here: tuple[float, float],
) -> bool:  # fmt: skip
    """Whether cost and slope are low enough; in a replay, the Master's choice settles a possible tie."""
    accepted = all(by <= 0 for by in missed)
    if (lead := LEAD.get()) is None:
        return accepted
    pull = np.linalg.norm(search.direction) * np.linalg.norm(problem.l2 * state.theta)
    pulls = float(pull) + problem.lasso(state.theta)
    rounding = [TIE * max(1.0, abs(here[0])), TIE * (abs(here[1]) + pulls)]
    near = list(zip(missed, rounding, strict=False))
    if all(by <= most for by, most in near) and any(by > -most for by, most in near):
        return lead.agrees(state.theta + eta * search.direction)
    return accepted


def _slack(f0: float) -> float:
    return 4 * float(np.finfo(float).eps) * max(1.0, abs(f0))


class TwoExchange(_Armijo, frozen=True, tag=True):
    """Armijo backtracking as in the paper: one exchange for the update and one for the costs.

    The step size is the first eta = beta^j with f(theta + eta p) <= f(theta) + alpha eta g'p.

    Parameters
    ----------
    alpha : float, default 0.1
        The share of the linear decrease that is demanded, above 0 and below 1/2.
    beta : float, default 0.5
        The ratio between two successive step sizes, above 0 and below 1.
    candidates : int, default 8
        The number of step sizes whose costs are asked for in one exchange.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", line_search=fedshed.TwoExchange())
    >>> result.trace[-1].exchanges
    13
    """


class Fused(_Armijo, frozen=True, tag=True):
    """Armijo backtracking in one exchange, which asks for the costs and for the update at eta = 1.

    The iterates are those of `TwoExchange`, bit for bit; a round whose full step is accepted costs one
    exchange. The part of a rejected trial's answers that can still be used is kept.

    Parameters
    ----------
    alpha : float, default 0.1
        The share of the linear decrease that is demanded, above 0 and below 1/2.
    beta : float, default 0.5
        The ratio between two successive step sizes, above 0 and below 1.
    candidates : int, default 8
        The number of step sizes whose costs are asked for in one exchange.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton", line_search=fedshed.Fused())
    >>> result.trace[-1].exchanges
    7
    """

    fused: ClassVar[bool] = True


def _along(
    problem: Problem, state: State[Any], search: Search, eta: float, j: int, replies: Replies[Any]
) -> tuple[float, float | None]:
    """f and its slope at theta + eta * direction: one function for f0 and all candidates (docs/design.md, 5).

    An agent counts with what it reported if it answered here *and* at theta^t, else with its model.
    """
    theta = state.theta + eta * search.direction
    f, rise = 0.0, float(search.direction @ (problem.l2 * theta))
    here, p, known = state.theta, problem.p, state.known
    costs, slopes = (
        _reported_values(replies, "values", j),
        _reported_values(replies, "slopes", j) if search.slopes else {},
    )
    for i in problem.agents:
        one = known[i]
        if i in costs and (one.w is here or one.at(here)):
            f += p[i] * costs[i]
            rise += p[i] * slopes[i] if search.slopes else 0.0
        else:
            f += p[i] * one.cost(theta)
            rise += p[i] * float(one.gradient(theta) @ search.direction) if search.slopes else 0.0
    return f + problem.penalty(theta), rise if search.slopes else None


def _reported_values(replies: Replies[Any], field: str, j: int) -> dict[AgentId, float]:
    """What each agent reported at the j-th candidate."""
    return {i: getattr(parts[0], field).item(j) for i, parts in replies.items()}


def _updates(replies: Replies[Any]) -> Replies[Any]:
    """The answers that came with the costs, where they are defined."""
    return {i: parts[1:] for i, parts in replies.items() if not isinstance(parts[1], Undefined)}


LineSearch: TypeAlias = FullStep | TwoExchange | Fused
