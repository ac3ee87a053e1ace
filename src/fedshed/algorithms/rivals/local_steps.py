"""FedAvg and FedProx: every agent takes steps on its own cost, and the Master averages the end points.

FedAvg: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, AISTATS 2017, with whole gradients in place of
stochastic ones.  FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, with gradient steps as the
local solver.  The local cost has the ridge, so l2 travels.  With more than one local step their limit on
heterogeneous sites is not the pooled optimum (docs/rivals.md).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, advance, gradient
from fedshed.algorithms.gradients import LocalSmoothness, Scale, short_ridge, with_smoothness
from fedshed.linalg.arrays import Gradient, Scalars, Vector
from fedshed.objectives import Objective, Point
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message

MOST_STEPS = 10_000  # of one agent in one exchange
AT_REST = 1e-14  # of theta: a smaller move of the average is rounding


class Train(Message, frozen=True):
    """f_i and g_i at theta, with local steps of length `step` from there; with the smoothness at step = 0."""

    t: Count
    theta: Vector
    accuracy: float
    l2: Scalars  # one number, or one a coefficient
    step: float


class Shift(Message, frozen=True):
    """What an agent adds to every local gradient."""

    shift: Vector


class Trained(Message, frozen=True):
    """f_i and g_i at theta, and the mean of the gradients that the local steps followed."""

    loss: float
    gradient: Gradient
    mean_gradient: Gradient


class LocalState(State[Scale], frozen=True):
    """The Master's state with each agent's mean local gradient, where they belong to theta^t."""

    followed: dict[AgentId, Vector] = field(default_factory=dict)


S = TypeVar("S", bound=LocalState)


class _LocalSteps(
    Algorithm[S, Train, Shift | None, LocalSmoothness | Trained, None], Generic[S], frozen=True
):
    """y <- y - s (g_i(y) + l2 y + ...), `local_steps` times from theta^t; one exchange brings f, g and y."""

    local_steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 10  # gradient steps of an agent per round
    rate: float = 1.0  # s in units of 1/K, K = max_i lambda_1(H_i(theta^1)) + max l2
    messages: ClassVar[tuple[type[Message], ...]] = (Train, Shift, LocalSmoothness, Trained)
    compare_only: ClassVar[bool] = True
    requests = ((Train, Shift), (Train, None))

    def __post_init__(self) -> None:
        if not 1 <= self.local_steps <= MOST_STEPS:
            raise ConfigError(f"local_steps must be from 1 to {MOST_STEPS}, not {self.local_steps}")
        if not 0 < self.rate < 2:
            raise ConfigError(f"rate must be above 0 and below 2, in units of 1/K, not {self.rate}")

    @property
    def proximal(self) -> float:
        """The coefficient of a proximal term in the local cost, in units of K."""
        return 0.0

    def ask(self, problem: Problem, state: S) -> Ask:
        """f_i and g_i, with local steps as soon as their length is known: after the first exchange."""
        return self.training(problem, state, self.step_length(problem, state))

    def training(self, problem: Problem, state: S, step: float) -> Ask:
        """The request for local steps of this length."""
        accuracy = self.precision.accuracy(state.norms, problem.n)
        part = Train(state.t, state.theta, accuracy, short_ridge(problem), step)
        return Ask((part,), {i: self.own_part(problem, state, i) for i in problem.agents})

    def own_part(self, problem: Problem, state: S, i: AgentId) -> Shift | None:
        """None: no part of the request is for one agent alone."""
        return None

    def step_length(self, problem: Problem, state: S) -> float:
        """s = rate / ((1 + proximal) K), stable for the local steps of every agent; 0 before K is known."""
        if any(i not in state.known for i in problem.agents):
            return 0.0
        K = max(float(state.known[i].curvature.values[0]) for i in problem.agents) + problem.l2.max()
        return float(self.rate / ((1 + self.proximal) * K)) if K > 0 else 0.0

    def absorb(self, problem: Problem, state: S, replies: Replies[LocalSmoothness | Trained]) -> S:
        """Costs and gradients at theta^t; the smoothness stays as it was at the start."""
        known, followed = dict(state.known), {}
        for i, (local,) in replies.items():
            if isinstance(local, Trained):
                scale, followed[i] = known[i].curvature, local.mean_gradient
            else:
                scale = Scale(np.atleast_1d(local.scale))
            known[i] = SiteModel(state.theta, local.loss, local.gradient, scale)
        return replace(state, known=known, followed=followed)

    def step(self, problem: Problem, state: S) -> Flow[tuple[S, Info]]:
        """theta^{t+1} = sum_i p_i y_i; in the first round the local steps cost an exchange more."""
        rounds = 1
        if len(state.followed) < len(problem.agents):
            rounds, ask = 2, self.training(problem, state, self.step_length(problem, state))
            replies = yield from self.collect(ask, problem, state)
            state = self.absorb(problem, state, replies)
        return self.average(problem, state, rounds)

    def average(self, problem: Problem, state: S, rounds: int) -> tuple[S, Info]:
        """The state at the average, and why the run ends there if it no longer moves."""
        length = self.local_steps * self.step_length(problem, state)
        moves = [problem.p[i] * length * state.followed[i] for i in problem.agents]
        move = np.sum(moves, axis=0)
        after = replace(advance(state, state.theta - move, gradient(problem, state)), followed={})
        largest = max(float(np.linalg.norm(state.theta)), sum(map(float, map(np.linalg.norm, moves))))
        rests = not self.pooled and float(np.linalg.norm(move)) <= AT_REST * largest
        return after, Info(self.rate, rounds, stopped=_LIMIT if rests else None)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """The smoothness for a step of 0, else local steps."""
        return wrong_type_reason(answer, self.answer_kind(part))

    def answer_kind(self, part: Any) -> type[Message]:
        """f_i and g_i with the smoothness, or with local steps."""
        return LocalSmoothness if part.step == 0 else Trained

    def respond(
        self, agent: Agent, cache: None, part: Train, own_part: Shift | None
    ) -> tuple[None, LocalSmoothness | Trained]:
        """f_i and g_i, and the smoothness or the mean gradient of the local steps."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        if part.step == 0:
            return None, with_smoothness(point)
        shift = 0.0 if own_part is None else own_part.shift
        mean = self.run_local_steps(agent.objective, point, part, shift)
        return None, Trained(point.value, point.gradient, mean)

    def run_local_steps(
        self, objective: Objective, point: Point, part: Train, shift: Vector | float
    ) -> Vector:
        """The mean of g_i(y) + l2 y + shift + prox (y - theta) over the local steps y."""
        prox = self.proximal / (1 + self.proximal) * self.rate / part.step
        y, total = part.theta, np.zeros_like(part.theta)
        for k in range(self.local_steps):
            here = point if k == 0 else objective.at(y)
            g = here.gradient + part.l2 * y + shift + prox * (y - part.theta)
            total, y = total + g, y - part.step * g
            if not np.isfinite(y).all():
                raise ValueError(
                    f"local step {k + 1} gave numbers that are not finite; lower rate or local_steps"
                )
        return total / self.local_steps


_LIMIT = (
    "the average of the sites' models no longer moves; with more than one local step that is the pooled "
    "optimum only if the sites are alike (use scaffold, or local_steps = 1)"
)


class FedAvg(_LocalSteps[LocalState], frozen=True, tag=True):
    """FedAvg: theta^{t+1} = sum_i p_i y_i, where y_i is the end of gradient steps on the local cost f_i.

    With one local step it is gradient descent. With more, the limit on heterogeneous sites is not the pooled
    optimum (docs/rivals.md).

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    local_steps : int, default 10
        The number of local steps per round.
    rate : float, default 1.0
        The local step size in units of 1/K, where K = max_i lambda_1(H_i(theta^1)) + max l2.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.FedAvg()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm, max_iterations=20).converged
    False
    """

    state: ClassVar[type[LocalState]] = LocalState

    @property
    def pooled(self) -> bool:
        """Only gradient descent has the pooled optimum as its limit."""
        return self.local_steps == 1


class FedProx(FedAvg, frozen=True, tag=True):
    """FedProx: FedAvg with a proximal term in the local cost, which keeps local steps near theta^t.

    The local cost is f_i(y) + prox K ||y - theta^t||^2 / 2.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    local_steps : int, default 10
        The number of local steps per round.
    rate : float, default 1.0
        The local step size in units of 1/K, where K = max_i lambda_1(H_i(theta^1)) + max l2.
    prox : float, default 0.1
        The proximal coefficient in units of K, at least 0.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.FedProx()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm, max_iterations=20).converged
    False
    """

    prox: float = 0.1  # in units of K

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prox < np.inf:
            raise ConfigError(f"prox must be a finite number >= 0, in units of K, not {self.prox}")

    @property
    def proximal(self) -> float:
        """The coefficient of the proximal term."""
        return self.prox
