"""L-BFGS at the Master with federated gradients, the method of Spark and of most practitioners.

Nocedal and Wright, Numerical Optimization (2nd ed.), Algorithm 7.4; the initial matrix comes from the
diagonal of the Hessian at the start (one vector from each agent) and from the secants: `initial_diagonal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.gradients import (
    GradientAlgorithm,
    LocalGradient,
    LocalScale,
    Scale,
    mean_scale,
    with_diagonal,
)
from fedshed.algorithms.linesearch import Fused, LineSearch
from fedshed.algorithms.linked import LINK_FIELDS, LINK_MESSAGES, Linked
from fedshed.algorithms.linked_agents import LinkCache
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import Point
from fedshed.protocol import links
from fedshed.protocol.conversation import Agent, AgentId, Flow, Problem, Replies
from fedshed.protocol.links import AtCurrentPoint, FirstRequest
from fedshed.protocol.messages import Local, Message, Update

Initial: TypeAlias = Callable[[Vector], Vector]
EXPONENTS = (1.0, 0.5, 0.0)  # of the diagonal at the start in the initial matrix


class LbfgsState(State[Scale | None], frozen=True, rename=LINK_FIELDS):
    """The Master's state with its secants s = theta^{t+1} - theta^t, y = g_{t+1} - g_t, oldest first."""

    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None  # theta and g of the last step
    frame: bytes = b""  # this and what follows over coded links only: see `Linked`
    move: bytes = b""
    accuracy_factor: float = 1.0
    agents_without_cache: tuple[AgentId, ...] = ()


class Lbfgs(Linked[LbfgsState], GradientAlgorithm[LbfgsState], frozen=True, tag=True):
    """L-BFGS: theta^{t+1} = theta^t - eta_t B_t g_t, where B_t comes from the last `memory` secants.

    Parameters
    ----------
    precision : Exact, Bits, EntropyCoded or Differences, default Exact()
        How precisely arrays travel. With Differences() messages are coded in both directions.
    memory : int, default 150
        The number of secants, from 1 to 1000. They stay at the Master: more of them cost no bytes.
    line_search : TwoExchange or Fused, default Fused()
        How the step size eta_t is found.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Lbfgs(memory=10)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    memory: Annotated[int, Meta(ge=1, le=1000)] = 150  # secants that are kept
    line_search: LineSearch = Fused()  # how eta_t is found
    messages: ClassVar[tuple[type[Message], ...]] = (*GradientAlgorithm.messages, *LINK_MESSAGES)
    state: ClassVar[type[LbfgsState]] = LbfgsState
    first: ClassVar[type[Message]] = LocalScale
    requests = ((Update, None), (FirstRequest, None))

    @property
    def summable(self) -> bool:  # others say it for the whole class
        """Over coded links the Master needs each agent's own gradient."""
        return not self.linked

    def step(self, problem: Problem, state: LbfgsState) -> Flow[tuple[LbfgsState, Info]]:
        """Remember the newest secant, then go along -B g."""
        g = gradient(problem, state)
        s, y = update_secants(state.s, state.y, state.last, state.theta, g, self.memory)
        H0 = initial_diagonal(s, y, self._diagonal(problem, state))
        direction = -two_loop(g, s, y, lambda v: v / H0)
        state = replace(state, s=s, y=y, last=(state.theta, g))
        if self.linked:
            hessian = bfgs_product(s, y, lambda v: v * H0)
            state, direction = self.round_direction(problem, state, g, direction, hessian)
        step = yield from self.search_step_size(self.line_search, problem, state, g, direction)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, stopped=step.stopped)

    def _diagonal(self, problem: Problem, state: LbfgsState) -> Vector:
        """The diagonal of the Hessian at the start; with coded links the rounded one that everyone holds."""
        if self.linked:
            return np.square(links.units_of(state.frame, problem.n))
        return mean_scale(problem, state) + problem.l2

    def absorb(self, problem: Problem, state: LbfgsState, replies: Replies[LocalGradient]) -> LbfgsState:
        """Costs and gradients move to theta^t."""
        return self.clear_answered(super().absorb(problem, state, replies), replies)

    def answer_kind(self, part: Any) -> type[Message]:
        """f_i and g_i; with the diagonal at the start, which coded links ask for first."""
        return Local if isinstance(part, AtCurrentPoint) else super().answer_kind(part)

    def respond(
        self, agent: Agent, cache: LinkCache | None, part: Update | FirstRequest, own_part: None
    ) -> tuple[LinkCache | None, Message]:
        """f_i and g_i, over a coded link what is new of g_i; the diagonal at the start."""
        if cache is None:
            assert isinstance(part, Update)
            return GradientAlgorithm.respond(self, agent, cache, part, own_part)
        if isinstance(part, FirstRequest):
            return self.respond_first(agent, cache, part)
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        return self.code_gradient(agent, cache, part, Local(point.value, point.gradient, None))

    def scaled(self, point: Point) -> Message:
        """With the first answer, the diagonal of the Hessian."""
        return with_diagonal(point)


def update_secants(
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


def initial_diagonal(s: Matrix, y: Matrix, diagonal: Vector) -> Vector:
    """H_0 = M / gamma with M = D^p mean(D)^(1-p); the diagonal D itself while there are no secants.

    p has the least sum of log(s'M s y'M^-1 y / (s'y)^2) over the secants: by Cauchy and Schwarz no term is
    negative, and it is 0 only if y is a multiple of M s.  gamma is the largest s'y / y'M^-1 y: secants find
    steep directions first, and H_0 stands for what they have not found, which is flatter.
    """
    if not len(s):
        return diagonal
    curvature, best = np.sum(s * y, axis=1), (np.inf, diagonal)
    for p in EXPONENTS:
        M = diagonal**p * np.mean(diagonal) ** (1 - p)
        inverse = np.square(y) @ (1 / M)
        misfit = float(np.sum(np.log(np.square(s) @ M / curvature) + np.log(inverse / curvature)))
        best = min(best, (misfit, M / np.max(curvature / inverse)), key=lambda found: found[0])
    return best[1]


def two_loop(g: Vector, s: Matrix, y: Matrix, initial: Initial) -> Vector:
    """B g by the two-loop recursion; `initial` is the initial inverse Hessian."""
    q, alphas = g.copy(), []
    curvature = np.sum(s * y, axis=1)
    for j in reversed(range(len(s))):
        alphas.append((s[j] @ q) / curvature[j])
        q = q - alphas[-1] * y[j]
    r = initial(q)
    for j, alpha in zip(range(len(s)), reversed(alphas), strict=True):
        r = r + s[j] * (alpha - (y[j] @ r) / curvature[j])
    return r


def bfgs_product(s: Matrix, y: Matrix, initial: Initial) -> Initial | None:
    """v -> B^-1 v, the inverse of `two_loop`; `initial` is the product with the initial Hessian.

    None where rounding leaves no positive definite matrix.

    Byrd, Nocedal and Schnabel, Math. Programming 63 (1994), equation 2.17, its matrix reduced to
    C = S'H_0 S + L D^-1 L': with C a = S'H_0 v + L D^-1 Y'v it is H_0 v - H_0 S a + Y D^-1 (Y'v - L'a).
    """
    if not len(s):
        return initial
    HS, SY = np.array([initial(one) for one in s]), s @ y.T
    D, L = np.diag(SY), np.tril(SY, -1)
    try:
        C = cho_factor(s @ HS.T + (L / D) @ L.T, check_finite=False)
    except LinAlgError:
        return None

    def product(v: Vector) -> Vector:
        q = y @ v
        a = cho_solve(C, HS @ v + L @ (q / D), check_finite=False)
        result: Vector = initial(v) - a @ HS + ((q - a @ L) / D) @ y
        return result

    return product
