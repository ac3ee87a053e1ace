"""Newton's method with few Hessians: exact sums as in Newton, and secants of the global gradient in between.

A step after a packed Hessian of every agent is Newton's step.  In the iterations that follow, agents send
only a cost and a gradient, and the last Hessian is the initial matrix of an L-BFGS product with the secants
since then.  The next Hessian is asked for when the secants no longer give fast convergence
(docs/protected.md).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.lbfgs import two_loop, update_secants
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.algorithms.newton import PackedHessian, hessian, make_definite
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Local, LocalHessian, Message


class HessianUpdate(Message, frozen=True):
    """The update at theta^t as in `Update`, with the packed Hessian where `hessian` is true."""

    t: Count
    theta: Vector | None
    accuracy: float
    hessian: bool


class DatedHessian(PackedHessian, frozen=True):
    """One agent's Hessian as it was sent in iteration k."""

    k: int


class SeldomState(State[DatedHessian], frozen=True):
    """The Master's state with the secants since the last Hessian, oldest first, and its last step."""

    k: int = 0  # iteration of the last Hessian
    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None  # theta and g of the last step, where every agent had answered
    damped: bool = False  # whether the full step of the last iteration was rejected
    decrements: tuple[float, ...] = ()  # -g'd of the last two steps since the last Hessian


class NewtonSeldom(
    Algorithm[SeldomState, HessianUpdate, None, Local | LocalHessian, None], frozen=True, tag=True
):
    """Newton's method with a packed Hessian in few iterations and secants of the global gradient in between.

    theta^{t+1} = theta^t - eta_t B_t g_t, where B_t is the L-BFGS matrix that starts from H_k^-1, k being the
    iteration of the last Hessian, and uses the secants since then.

    A Hessian is asked for at the start and after a full step was rejected. It is also asked for from `least`
    iterations after the last one on, unless convergence is fast. Convergence is fast if the last step lowered
    the decrement -g'd at least to `paying` times its former value, one iteration later to `paying`^2 times,
    and so on.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.
    least : int, default 6
        The least number of iterations between two Hessians, from 1 to 1000, unless a full step is rejected.
    paying : float, default 0.3
        The factor that counts as fast convergence, at least 0 and below 1.

    Raises
    ------
    ConfigError
        If `least` or `paying` is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.NewtonSeldom(least=4)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    line_search: LineSearch = TwoExchange()  # how eta_t is found
    least: Annotated[int, Meta(ge=1, le=1000)] = 6  # fewest iterations between Hessians
    paying: Annotated[float, Meta(ge=0, lt=1)] = 0.3  # decrease of -g'd that needs no new Hessian

    partial: ClassVar[bool] = True
    summable: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (HessianUpdate, Local, LocalHessian)
    requests = ((HessianUpdate, None),)
    state: ClassVar[type[SeldomState]] = SeldomState
    cache = None

    def __post_init__(self) -> None:
        if not (1 <= self.least <= 1000 and 0 <= self.paying < 1):
            raise ConfigError(
                "newton-seldom needs least between 1 and 1000 and 0 <= paying < 1, "
                f"not {self.least} and {self.paying}"
            )

    # --- at the Master ---------------------------------------------------------------------------

    def ask(self, problem: Problem, state: SeldomState) -> Ask:
        """f_i and g_i at theta^t, and H_i where it is due."""
        accuracy = self.precision.accuracy(state.norms, problem.n)
        part = HessianUpdate(state.t, state.theta, accuracy, self.due(state))
        return Ask((part,), dict.fromkeys(problem.agents))

    def due(self, state: SeldomState) -> bool:
        """Whether the update at theta^t brings a Hessian: the first, or when secants no longer suffice."""
        if state.k in (0, state.t):
            return state.k == 0
        overdue = state.t - state.k - self.least + 1
        return state.damped or (overdue > 0 and not self._pays(state, overdue))

    def _pays(self, state: SeldomState, overdue: int) -> bool:
        """Whether the last step lowered the decrement fast enough; the demand grows with every iteration."""
        factor = self.paying**overdue
        return len(state.decrements) > 1 and state.decrements[1] <= factor * state.decrements[0]

    def absorb(
        self, problem: Problem, state: SeldomState, replies: Replies[Local | LocalHessian]
    ) -> SeldomState:
        """Costs and gradients move to theta^t; the Hessian of a silent agent stays the last that it sent."""
        known, k = dict(state.known), state.k
        for i, (local,) in replies.items():
            if isinstance(local, LocalHessian):
                held, k = DatedHessian(local.hessian, state.t), state.t
            else:
                held = known[i].curvature
            known[i] = SiteModel(state.theta, local.loss, local.gradient, held)
        return replace(state, known=known, k=k)

    def step(self, problem: Problem, state: SeldomState) -> Flow[tuple[SeldomState, Info]]:
        """Newton's step after a Hessian, else a quasi-Newton step; damped by the line search."""
        g = gradient(problem, state)
        state = self._remembering(problem, state, g)
        direction = -self._solve_with_secants(problem, state, g)
        decrements = (*state.decrements[-1:], -float(g @ direction))
        state = replace(state, damped=False, decrements=decrements)
        step = yield from self.line_search(self, problem, state, g, direction)
        renewed = sum(known.curvature.k == state.t for known in state.known.values())
        rounds = 1 + self.line_search.rounds
        after = replace(step.state, damped=step.eta < 1)
        return after, Info(step.eta, rounds, renewed, problem.n, step.stopped)

    def _remembering(self, problem: Problem, state: SeldomState, g: Vector) -> SeldomState:
        """The state with the newest secant, or without any after a new Hessian.

        Where a model stands for a silent agent, g is not the gradient, and gives no secant.
        """
        last = None if state.silent(problem) else (state.theta, g)
        if state.k == state.t:
            return replace(state, s=None, y=None, last=last, decrements=())
        old = None if last is None else state.last
        s, y = update_secants(state.s, state.y, old, state.theta, g, problem.n)
        return replace(state, s=s, y=y, last=last)

    def _solve_with_secants(self, problem: Problem, state: SeldomState, g: Vector) -> Vector:
        """B_t g with the initial matrix gamma H_k^-1, gamma^2 = s'y / y'H_k^-1 y of the newest secant.

        Along the newest secant the curvature has fallen by gamma^2; elsewhere it may be as it was.  So H_k is
        scaled to the geometric mean of the two.
        """
        H = hessian(problem, state)
        solve = (make_definite(H, problem) if self.lossy else H).solve
        if state.s is None or state.y is None or not len(state.s):
            return solve(g)
        s, y = state.s[-1], state.y[-1]
        gamma = float(np.sqrt((s @ y) / (y @ solve(y))))
        return two_loop(g, state.s, state.y, lambda v: gamma * solve(v))

    def exact_curvature(self, problem: Problem, state: SeldomState) -> DensePlusRidge | None:
        """H_t, when every agent sent its Hessian at theta^t, exactly."""
        fresh = all(known.curvature.k == state.t for known in state.known.values())
        exact = fresh and not state.silent(problem) and not self.precision.lossy
        return hessian(problem, state) if exact else None

    def refusal(self, problem: Problem, part: HessianUpdate, own_part: Any, answer: Any) -> str | None:
        """A Hessian comes where it was asked for, and only there."""
        return wrong_type_reason(answer, self.answer_kind(part))

    def answer_kind(self, part: HessianUpdate) -> type[Message]:
        """f_i and g_i, and H_i where it was asked for."""
        return LocalHessian if part.hessian else Local

    # --- at an agent -----------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: None, part: HessianUpdate, own_part: None
    ) -> tuple[None, Local | LocalHessian]:
        """f_i and g_i at theta^t, and H_i where it is asked for."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        if not part.hessian:
            return None, Local(point.value, point.gradient, None)
        return None, LocalHessian(point.value, point.gradient, point.hessian)
