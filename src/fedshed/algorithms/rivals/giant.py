"""GIANT and related methods: each agent solves a linear system with its own Hessian and the global gradient.

GIANT: Wang, Roosta, Xu, Mahoney, NeurIPS 2018; here the exact harmonic mean (docs/paper.md 14).
Determinantal averaging: Derezinski, Mahoney, NeurIPS 2019.  DONE: Dinh et al., IEEE TPDS 2022.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.gradients import GradientAlgorithm, short_ridge
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.messages import Local, Message, Update

MOST_ITERATIONS = 10_000  # of Richardson's method in one exchange


class Solve(Message, frozen=True):
    """H_i(theta)^-1 g for the global gradient g, ridge included; l2 is one number, or one per coefficient."""

    theta: Vector
    g: Vector
    l2: Scalars


class Direction(Message, frozen=True):
    """An agent's own Newton direction, and the logarithm of its weight among the agents of equal size."""

    p: Vector
    log_weight: float


class Giant(GradientAlgorithm[State[None]], frozen=True, tag=True):
    """GIANT: theta^{t+1} = theta^t - eta_t sum_i p_i H_i^-1 g_t, an average of local Newton directions.

    Sending the global gradient g_t to the agents costs one exchange more per iteration.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Giant()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    line_search: LineSearch = TwoExchange()  # how eta_t is found
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Local, Solve, Direction)
    state = State[None]
    requests = ((Update, None), (Solve, None))

    def step(self, problem: Problem, state: State[None]) -> Flow[tuple[State[None], Info]]:
        """Broadcast g, average the local Newton directions, search along them."""
        g = gradient(problem, state)
        ask = Ask((Solve(state.theta, g, short_ridge(problem)),), dict.fromkeys(problem.agents))
        replies = yield from self.collect(ask, problem, state)
        direction = -_mean_direction(problem, replies)
        step = yield from self.line_search(self, problem, state, g, direction)
        info = Info(step.eta, 2 + self.line_search.rounds, renewed=len(replies), stopped=step.stopped)
        return step.state, info

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """A direction for a Solve, a cost and a gradient for an Update."""
        return (
            wrong_type_reason(answer, Direction)
            if isinstance(part, Solve)
            else super().refusal(problem, part, own_part, answer)
        )

    def respond(
        self, agent: Agent, cache: None, part: Update | Solve, own_part: None
    ) -> tuple[None, Message]:
        """f_i and g_i, or the local Newton direction."""
        if not isinstance(part, Solve):
            return super().respond(agent, cache, part, own_part)
        H = gram(agent.objective.at(part.theta).factor) + np.diag(np.broadcast_to(part.l2, part.g.shape))
        return None, Direction(self.local_direction(H, part.g), self.log_weight(H))

    def local_direction(self, H: Matrix, g: Vector) -> Vector:
        """H^-1 g; without a penalty, a site whose own Hessian is singular cannot take part."""
        return DensePlusRidge(H, np.full(len(g), np.finfo(float).tiny)).solve(g)

    def log_weight(self, H: Matrix) -> float:
        """0: all agents of equal size have the same weight."""
        return 0.0


class GiantDeterminantal(Giant, frozen=True, tag=True):
    """GIANT with each direction weighted by det H_i, which removes the bias of averaging inverses.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.GiantDeterminantal()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    def log_weight(self, H: Matrix) -> float:
        """log det H_i."""
        return float(np.linalg.slogdet(H)[1])


class Done(Giant, frozen=True, tag=True):
    """DONE: GIANT whose agents solve approximately, by Richardson iterations.

    The iterations are x <- x + a (g - H x) with a = 1 / lambda_1(H).

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.
    iterations : int, default 40
        The number of iterations of an agent per exchange.

    Raises
    ------
    ConfigError
        If `iterations` is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Done(iterations=80)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    iterations: Annotated[int, Meta(ge=1, le=MOST_ITERATIONS)] = 40  # Richardson iterations per direction

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise ConfigError(f"iterations must be from 1 to {MOST_ITERATIONS}, not {self.iterations}")

    def local_direction(self, H: Matrix, g: Vector) -> Vector:
        """H^-1 g, approximated by `iterations` iterations."""
        a = 1 / np.linalg.norm(H, 2)
        x = np.zeros_like(g)
        for _ in range(self.iterations):
            x = x + a * (g - H @ x)
        return x


def _mean_direction(problem: Problem, replies: Replies[Direction]) -> Vector:
    """sum_i w_i p_i / sum_i w_i, in log space: determinants overflow."""
    logs = np.array([np.log(problem.p[i]) + replies[i][0].log_weight for i in problem.agents])
    weights = np.exp(logs - logs.max())
    directions = np.array([replies[i][0].p for i in problem.agents])
    mean: Vector = weights @ directions / weights.sum()
    return mean
