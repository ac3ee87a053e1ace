"""What an algorithm is: a Master's round as a generator of requests, and an agent that answers them.

A round has two halves, both generators that yield an `Ask` and receive the `Replies`:

    observe   costs, gradients (and curvature) at theta^t, unless they came with the last line search;
    step      a direction, a step size, theta^{t+1}.

Between them the engine sees the gradient and may stop.  States are frozen and made of plain data, so a
checkpoint is their encoding and a failed round changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.linalg.arrays import Scalars, Vector
from fedshed.protocol.conversation import AgentId, Ask, Conversation, Flow, Problem, Replies
from fedshed.protocol.messages import Update


class Curvature(Protocol):
    """A symmetric positive semidefinite matrix, known by its products."""

    def matvec(self, s: Vector) -> Vector:
        """H s."""
        ...


@runtime_checkable
class OfPairs(Protocol):
    """Curvature that is made of eigenpairs."""

    @property
    def q(self) -> int:
        """How many of them are held."""
        ...


TOGETHER = 256  # agents whose vectors are added at a time
C = TypeVar("C", bound=Curvature | None)


class SiteModel(Struct, Generic[C], frozen=True, gc=False):
    """All the Master knows of one agent: f and g at w, the last point it answered at, and its curvature.

    Elsewhere the agent is its model m(theta) = f + g's + s'H_hat s / 2 with s = theta - w.
    """

    w: Vector
    f: float
    g: Vector
    curvature: C

    @property
    def pairs(self) -> int | None:
        """Eigenpairs held of the agent, where its curvature is made of them."""
        return self.curvature.q if isinstance(self.curvature, OfPairs) else None

    def at(self, theta: Vector) -> bool:
        """Whether f and g are exact at theta."""
        return self.w is theta or np.array_equal(self.w, theta)

    def cost(self, theta: Vector) -> float:
        """m(theta); f itself at theta = w."""
        if self.at(theta):
            return self.f
        s = theta - self.w
        return float(self.f + self.g @ s + 0.5 * s @ self._product(s))

    def gradient(self, theta: Vector) -> Vector:
        """The gradient of m at theta; g itself at theta = w."""
        return self.g if self.at(theta) else self.g + self._product(theta - self.w)

    def _product(self, s: Vector) -> Vector:
        return np.zeros_like(s) if self.curvature is None else self.curvature.matvec(s)


class State(Struct, Generic[C], frozen=True):
    """The Master between two rounds: theta^t, what it knows of each agent, and the last three ||g||."""

    t: int
    theta: Vector
    known: dict[AgentId, SiteModel[C]]
    norms: tuple[float, ...] = ()
    updated: int = 0  # the iteration whose update is in `known`

    @property
    def fresh(self) -> bool:
        """Whether `known` holds the update at theta^t, so that nobody need be asked for it again.

        It follows from `known` itself: a step that moves theta or t without new answers is never fresh.
        """
        return self.updated == self.t and any(known.at(self.theta) for known in self.known.values())

    def joint_cost(self) -> float:
        """A penalty at theta^t that is no sum over agents, where an algorithm has one."""
        return 0.0

    def joint_gradient(self) -> Vector | None:
        """Its gradient; None where there is none, or it is not known yet."""
        return None

    def silent(self, problem: Problem) -> tuple[AgentId, ...]:
        """Agents whose answer at theta^t is missing."""
        known, theta = self.known, self.theta
        return tuple(
            [i for i in problem.agents if i not in known or not (known[i].w is theta or known[i].at(theta))]
        )


S = TypeVar("S", bound=State[Any])


class Info(Struct, frozen=True):
    """What the reader of a trace wants to know of one iteration."""

    eta: float
    rounds: int  # as the paper counts them
    renewed: int = 0  # agents that renewed their Hessian
    q_max: int = 0  # most eigenpairs held of one agent
    stopped: str | None = None  # why no step was possible


def cost(problem: Problem, state: State[Any]) -> float:
    """f(theta^t), from exact costs where the agent answered and from its model where not."""
    p, known, theta = problem.p, state.known, state.theta
    total = sum([p[i] * known[i].cost(theta) for i in problem.agents])
    return total + problem.penalty(state.theta) + state.joint_cost()


def gradient(problem: Problem, state: State[Any]) -> Vector:
    """g_t = sum_i p_i g_t^(i) + l2 theta^t, of the smooth part."""
    gradients = [state.known[i].gradient(state.theta) for i in problem.agents]
    g = weighted_sum(problem, gradients, start=problem.l2 * state.theta)
    joint = state.joint_gradient()
    return g if joint is None else g + joint


def weighted_sum(problem: Problem, rows: Sequence[Scalars], start: Scalars) -> Scalars:
    """start + sum_i p_i rows_i, added one after the other in the order of the agents."""
    shares, total = np.fromiter(problem.p.values(), float), start
    for first in range(0, len(rows), TOGETHER):
        part = np.concatenate([total, *rows[first : first + TOGETHER]]).reshape(-1, len(start))
        part[1:] *= shares[first : first + TOGETHER, None]
        total = np.add.accumulate(part, axis=0)[-1]
    return total


class Algorithm(Conversation, Generic[S], frozen=True, tag=True):
    """An algorithm is immutable configuration; subclasses say what is asked, learnt, and done with it."""

    partial: ClassVar[bool] = False  # can do without an agent it has a model of
    summable: ClassVar[bool] = False  # the Master needs only sums over the sites, weighted by p_i
    compare_only: ClassVar[bool] = False  # a rival for comparisons: no study at sites may have it
    composite: ClassVar[bool] = False  # has a step for an absolute penalty (fedshed.algorithms.composite)
    state: ClassVar[Any]  # type of the Master's state

    @property
    def losses(self) -> tuple[str, ...] | None:
        """The losses it is for; None: any convex one."""
        return None

    @property
    def pooled(self) -> bool:
        """Whether its limit is the optimum of the pooled rows, however unequal the sites are."""
        return True

    def start(self, problem: Problem, theta: Vector) -> S:
        """The Master's state before the first round (t = 1: docs/paper.md 1): nothing is known."""
        start: S = self.state(t=1, theta=theta, known={})
        return start

    def ask(self, problem: Problem, state: S) -> Ask:
        """The request for the update at theta^t."""
        raise NotImplementedError

    def absorb(self, problem: Problem, state: S, replies: Replies) -> S:
        """The state with what the replies to `ask` say."""
        raise NotImplementedError

    def step(self, problem: Problem, state: S) -> Flow[tuple[S, Info]] | tuple[S, Info]:
        """From the update at theta^t to theta^{t+1}; the new state comes from a line search or `advance`."""
        raise NotImplementedError

    def update(self, state: S) -> Update:
        """The request for f_i and g_i at theta^t, as accurate as the last step makes it worth."""
        return Update(state.t, state.theta, self.precision.accuracy(state.norms, len(state.theta)))

    def confirm(self, problem: Problem, state: S) -> Flow[S]:
        """The state with exact answers of all agents at theta^t, before convergence is declared on it."""
        if not self.lossy and not state.silent(problem):
            return state
        ask = self.ask(problem, state)
        parts = tuple(replace(part, accuracy=0.0) if self.lossy else part for part in ask.parts)
        replies = yield replace(ask, parts=parts, needed=frozenset(ask.each))
        return self.absorb(problem, state, replies)

    def salvage(self, problem: Problem, state: S, trial: S, replies: Replies) -> S:
        """What is worth keeping of an update at a trial point that was rejected: nothing, by default."""
        return state

    def assume_forgotten(self, state: S) -> S:
        """The state that trusts no agent's memory, after a resume."""
        return state

    def exact_curvature(self, problem: Problem, state: S) -> Any:
        """The exact Hessian at theta^t as an operator with `solve`, where the Master holds it; else None."""
        return None

    def observe(self, problem: Problem, state: S) -> Flow[S]:
        """f_i, g_i (and curvature) at theta^t; every agent must have answered once before the first step."""
        if state.fresh:
            return state
        replies = yield from self.collect(self.ask(problem, state), problem, state)
        return replace(self.absorb(problem, state, replies), updated=state.t)

    def collect(self, ask: Ask, problem: Problem, state: S) -> Flow[Replies]:
        """The replies of all agents, but for those that their model can stand for."""
        needed = (i for i in ask.each if not (self.partial and i in state.known))
        replies = yield replace(ask, needed=frozenset(needed))
        return replies


def advance(state: S, theta: Vector, g: Vector) -> S:
    """The state at theta^{t+1}, before anything is known there."""
    norms = (*state.norms[-2:], float(np.linalg.norm(g)))
    return replace(state, t=state.t + 1, theta=theta, norms=norms)


def step_sizes(beta: float, start: int, count: int) -> Scalars:
    """beta^start, ..., beta^(start + count - 1)."""
    etas: Scalars = np.power(beta, np.arange(start, start + count, dtype=float))
    return etas
