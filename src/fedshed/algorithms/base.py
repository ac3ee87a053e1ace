"""The interface of an algorithm: the Master's round is a generator of requests, which agents answer.

A round has two halves, both generators that yield an `Ask` and receive the `Replies`:

    observe   costs, gradients (and curvature) at theta^t, unless they came with the last line search;
    step      a direction, a step size, theta^{t+1}.

Between the halves the engine looks at the gradient and may stop.  States are frozen and consist of plain
data, so a checkpoint is their encoding, and a failed round changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.linalg.arrays import Scalars, Vector
from fedshed.protocol.conversation import Agent, AgentId, Ask, Conversation, Flow, Problem, Replies, Requests
from fedshed.protocol.messages import Message, Update


class Curvature(Protocol):
    """A symmetric positive semidefinite matrix, given by its products with vectors."""

    def matvec(self, s: Vector) -> Vector:
        """The product H s."""
        ...


@runtime_checkable
class OfPairs(Protocol):
    """A curvature that consists of eigenpairs."""

    @property
    def q(self) -> int:
        """The number of eigenpairs held."""
        ...


TOGETHER = 256  # agents whose vectors are added at a time
C = TypeVar("C", bound=Curvature | None)


class SiteModel(Struct, Generic[C], frozen=True, gc=False):
    """What the Master knows about one agent: its last answer, and a model of its cost at other points.

    The model is m(theta) = f + g's + s'H_hat s / 2 with s = theta - w.

    Attributes
    ----------
    w : array
        The last point at which the agent answered.
    f : float
        The agent's cost at w, without the ridge.
    g : array
        Its gradient at w.
    curvature : Curvature or None
        What is known about its Hessian, H_hat.
    """

    w: Vector
    f: float
    g: Vector
    curvature: C

    @property
    def pairs(self) -> int | None:
        """The number of eigenpairs held of the agent; None if its curvature does not consist of them."""
        return self.curvature.q if isinstance(self.curvature, OfPairs) else None

    def at(self, theta: Vector) -> bool:
        """Whether the agent answered at theta, so that f and g are exact there."""
        return self.w is theta or np.array_equal(self.w, theta)

    def cost(self, theta: Vector) -> float:
        """m(theta); the exact cost f at theta = w."""
        if self.at(theta):
            return self.f
        s = theta - self.w
        return float(self.f + self.g @ s + 0.5 * s @ self._product(s))

    def gradient(self, theta: Vector) -> Vector:
        """The gradient of m at theta; the exact gradient g at theta = w."""
        return self.g if self.at(theta) else self.g + self._product(theta - self.w)

    def _product(self, s: Vector) -> Vector:
        return np.zeros_like(s) if self.curvature is None else self.curvature.matvec(s)


class State(Struct, Generic[C], frozen=True):
    """The Master's state between two rounds.

    Attributes
    ----------
    t : int
        The iteration, from 1.
    theta : array
        The point theta^t.
    known : dict
        The `SiteModel` of each agent that has answered.
    norms : tuple of float
        The last three gradient norms.
    updated : int
        The iteration whose update is in `known`.
    """

    t: int
    theta: Vector
    known: dict[AgentId, SiteModel[C]]
    norms: tuple[float, ...] = ()
    updated: int = 0  # the iteration whose update is in `known`

    @property
    def fresh(self) -> bool:
        """Whether `known` holds the update at theta^t, so that no agent has to be asked for it again.

        It follows from `known` itself: a step that moves theta or t without new answers is never fresh.
        """
        return self.updated == self.t and any(known.at(self.theta) for known in self.known.values())

    def joint_cost(self) -> float:
        """The value at theta^t of a penalty that is not a sum over agents, if the algorithm has one."""
        return 0.0

    def joint_gradient(self) -> Vector | None:
        """The gradient of that penalty; None if there is none or it is not known yet."""
        return None

    def silent(self, problem: Problem) -> tuple[AgentId, ...]:
        """The agents whose answer at theta^t is missing."""
        known, theta = self.known, self.theta
        return tuple(
            [i for i in problem.agents if i not in known or not (known[i].w is theta or known[i].at(theta))]
        )


S = TypeVar("S", bound=State[Any])
Part = TypeVar("Part", bound=Message)
OwnPart = TypeVar("OwnPart", bound=Message | None)
Answer = TypeVar("Answer", bound=Message)
Cache = TypeVar("Cache")


DIVERGED = "diverged"  # how the reason of a run begins whose cost has grown without bound


class Info(Struct, frozen=True):
    """What a trace records of one iteration, beside costs and traffic.

    Attributes
    ----------
    eta : float
        The step size.
    rounds : int
        The number of rounds as the paper counts them.
    renewed : int
        The number of agents that renewed their Hessian.
    q_max : int
        The largest number of eigenpairs held of one agent.
    stopped : str or None
        The reason why no step was possible.
    """

    eta: float
    rounds: int  # as the paper counts them
    renewed: int = 0  # agents that renewed their Hessian
    q_max: int = 0  # most eigenpairs held of one agent
    stopped: str | None = None  # why no step was possible


def cost(problem: Problem, state: State[Any]) -> float:
    """f(theta^t), from exact costs where an agent answered and from its model otherwise."""
    p, known, theta = problem.p, state.known, state.theta
    total = sum([p[i] * known[i].cost(theta) for i in problem.agents])
    return total + problem.penalty(state.theta) + state.joint_cost()


def gradient(problem: Problem, state: State[Any]) -> Vector:
    """g_t = sum_i p_i g_t^(i) + l2 theta^t, the gradient of the smooth part of the cost."""
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


class Algorithm(Conversation, Generic[S, Part, OwnPart, Answer, Cache], frozen=True, tag=True):
    """Base class of algorithms: an instance is immutable configuration.

    Its types are those of the Master's state, of what is asked of all agents and of one agent, of the answers
    to `ask`, and of what an agent remembers; None where there is nothing.

    A subclass says what is asked (`ask`), what is learnt from the answers (`absorb`), how the Master moves
    (`step`) and how an agent answers (`respond`). docs/extend.md writes one from start to end.

    Parameters
    ----------
    precision : Exact, Bits, EntropyCoded or Differences, default Exact()
        How precisely an agent's arrays travel.

    Examples
    --------
    >>> import fedshed
    >>> fedshed.algorithms.Newton().pooled
    True
    """

    partial: ClassVar[bool] = False  # can do without an agent it has a model of
    summable: ClassVar[bool] = False  # the Master needs only sums over the sites, weighted by p_i
    compare_only: ClassVar[bool] = False  # a rival for comparisons: no study at sites may have it
    composite: ClassVar[bool] = False  # has a step for an absolute penalty (fedshed.algorithms.composite)
    state: ClassVar[Any]  # type of the Master's state
    requests: ClassVar[Requests | None] = ((Update, None),)

    @property
    def losses(self) -> tuple[str, ...] | None:
        """The losses that the algorithm is for; None means any convex loss."""
        return None

    @property
    def pooled(self) -> bool:
        """Whether its limit is the optimum of the pooled rows, however heterogeneous the sites are."""
        return True

    def start(self, problem: Problem, theta: Vector) -> S:
        """The Master's state before the first round (t = 1, docs/paper.md 1), when nothing is known yet.

        Parameters
        ----------
        problem : Problem
            The agents, their weights, the penalties and the number of coefficients.
        theta : array
            The starting point.

        Returns
        -------
        State
            The state at theta.
        """
        start: S = self.state(t=1, theta=theta, known={})
        return start

    def ask(self, problem: Problem, state: S) -> Ask:
        """The request for the update at theta^t.

        Parameters
        ----------
        problem : Problem
            The agents, their weights, the penalties and the number of coefficients.
        state : State
            The Master's state.

        Returns
        -------
        Ask
            The parts for all agents, and the part for each agent.
        """
        raise NotImplementedError

    def absorb(self, problem: Problem, state: S, replies: Replies[Answer]) -> S:
        """The state with what the replies to `ask` say.

        Parameters
        ----------
        problem : Problem
            The agents, their weights, the penalties and the number of coefficients.
        state : State
            The Master's state before the replies.
        replies : dict
            The answers of each agent, by its name.

        Returns
        -------
        State
            The state after the replies.
        """
        raise NotImplementedError

    def step(self, problem: Problem, state: S) -> Flow[tuple[S, Info]] | tuple[S, Info]:
        """One step from the update at theta^t to theta^{t+1}.

        Parameters
        ----------
        problem : Problem
            The agents, their weights, the penalties and the number of coefficients.
        state : State
            The Master's state with the update at theta^t.

        Returns
        -------
        tuple of State and Info
            The new state, which comes from a line search or `advance`, and what the trace records. A step
            that needs exchanges is a generator that yields each `Ask` and returns this tuple.
        """
        raise NotImplementedError

    def respond(
        self, agent: Agent, cache: Cache | None, part: Part, own_part: OwnPart
    ) -> tuple[Cache | None, Message]:
        """An agent's answer to one part of a request, and what it remembers.

        Parameters
        ----------
        agent : Agent
            The agent's name and local cost.
        cache : object or None
            What the agent remembers; None at the start and after a loss.
        part : Message
            The part of the request that is common to all agents.
        own_part : Message or None
            The part for this agent.

        Returns
        -------
        tuple of object and Message
            The new cache and the answer.
        """
        raise NotImplementedError

    def update(self, state: S) -> Update:
        """The request for f_i and g_i at theta^t, with the accuracy that the last step justifies."""
        return Update(state.t, state.theta, self.precision.accuracy(state.norms, len(state.theta)))

    def confirm(self, problem: Problem, state: S) -> Flow[S]:
        """The state with exact answers of all agents at theta^t, before convergence is declared."""
        if not self.lossy and not state.silent(problem):
            return state
        ask = self.ask(problem, state)
        parts = tuple(replace(part, accuracy=0.0) if self.lossy else part for part in ask.parts)
        replies = yield replace(ask, parts=parts, needed=frozenset(ask.each))
        return self.absorb(problem, state, replies)

    def salvage(self, problem: Problem, state: S, trial: S, replies: Replies[Answer]) -> S:
        """The state with what can be kept of an update at a rejected trial point: by default nothing."""
        return state

    def assume_forgotten(self, state: S) -> S:
        """The state that assumes that every agent has lost its cache, as after a resume."""
        return state

    def exact_curvature(self, problem: Problem, state: S) -> Any:
        """The exact Hessian at theta^t, with a method `solve`, if the Master holds it; otherwise None."""
        return None

    def observe(self, problem: Problem, state: S) -> Flow[S]:
        """Collect f_i, g_i (and curvature) at theta^t; every agent must answer once before the first step."""
        if state.fresh:
            return state
        replies = yield from self.collect(self.ask(problem, state), problem, state)
        return replace(self.absorb(problem, state, replies), updated=state.t)

    def collect(self, ask: Ask, problem: Problem, state: S) -> Flow[Replies[Any]]:
        """The replies of all agents, except those whose model can replace their answer."""
        needed = (i for i in ask.each if not (self.partial and i in state.known))
        replies = yield replace(ask, needed=frozenset(needed))
        return replies


AnyAlgorithm: TypeAlias = Algorithm[Any, Any, Any, Any, Any]


def advance(state: S, theta: Vector, g: Vector) -> S:
    """The state at theta^{t+1}, before anything is known there.

    Parameters
    ----------
    state : State
        The state at theta^t.
    theta : array
        The new point.
    g : array
        The gradient at theta^t, whose norm is remembered.

    Returns
    -------
    State
        The state of iteration t + 1.
    """
    norms = (*state.norms[-2:], float(np.linalg.norm(g)))
    return replace(state, t=state.t + 1, theta=theta, norms=norms)


def step_sizes(beta: float, start: int, count: int) -> Scalars:
    """The step sizes beta^start, ..., beta^(start + count - 1)."""
    etas: Scalars = np.power(beta, np.arange(start, start + count, dtype=float))
    return etas
