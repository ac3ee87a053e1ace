"""QN-SHED: SHED with secants at the Master, entropy-coded eigenpairs, and one exchange per iteration.

Every accepted step gives the Master a secant of the *global* gradient without any further message; H_hat^-1
is the initial matrix of an L-BFGS product with them (docs/beyond.md).  An agent spends its budget on the
message that adds the most curvature: nothing, some eigenpairs, or the packed Hessian where it is smaller than
the remaining pairs.  Everything is in the units of the diagonal D of the global Hessian at the start, so the
units of columns do not matter: eigenpairs are those of D^-1/2 H_i D^-1/2, and gradients and directions are
rounded in these units.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, cast

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.eigenpair_cache import Spectrum
from fedshed.algorithms.lbfgs import bfgs_product, two_loop, update_secants
from fedshed.algorithms.linesearch import Fused, LineSearch
from fedshed.algorithms.linked import LINK_FIELDS, LINK_MESSAGES, Linked
from fedshed.algorithms.linked_agents import LinkCache
from fedshed.algorithms.rho import Rho, TailMean
from fedshed.algorithms.shed import Shed
from fedshed.algorithms.shed_curvature import SharedCurvature, mean_hessian
from fedshed.linalg import Automatic, Kernel, Leading
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.objectives import Objective, Point
from fedshed.protocol import links
from fedshed.protocol.conversation import Agent, AgentId, Flow, Problem, Replies
from fedshed.protocol.links import FirstRequest
from fedshed.protocol.messages import Eigenpairs, Local, LocalWhole, Message, Share, Update
from fedshed.protocol.precision import Differences, Precision


class QnState(State[SharedCurvature], frozen=True, rename=LINK_FIELDS):
    """The Master's state with its secants, oldest first, the last point and gradient, and its links'."""

    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None
    frame: bytes = b""
    move: bytes = b""
    accuracy_factor: float = 1.0
    agents_without_cache: tuple[AgentId, ...] = ()


class QnShed(Linked[Any], Shed, frozen=True, tag=True):
    """QN-SHED: SHED whose approximate Hessian is corrected by secants of the global gradient.

    theta^{t+1} = theta^t - eta_t B_t g_t, where B_t is the L-BFGS matrix that starts from H_hat_t^-1 and uses
    the last `memory` secants. Messages are entropy coded (docs/beyond.md).

    Parameters
    ----------
    precision : Differences, Exact, Bits or EntropyCoded, default Differences()
        How precisely arrays travel, in both directions.
    renewal : Renewal, default Fibonacci()
        At which iterations an agent computes a new Hessian.
    channel : Channel, default Constant(6)
        How many eigenpairs an agent's link carries per round.
    line_search : Fused or TwoExchange, default Fused()
        How the step size eta_t is found.
    rho : TailMean, NextEigenvalue or Midpoint, default TailMean()
        The number that stands for the eigenvalues that have not been sent.
    kernel : Kernel, default Automatic(approximate=True)
        How an agent computes its eigenpairs.
    memory : int, default 20
        The number of secants.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.QnShed(channel=fedshed.Constant(3))
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    precision: Precision = Differences()
    channel: Channel = Constant(6)
    line_search: LineSearch = Fused()
    rho: Rho = TailMean()
    memory: int = 20  # secants that are kept
    kernel: Kernel = Automatic(approximate=True)

    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local, LocalWhole, *LINK_MESSAGES)
    requests = ((Update, Share), (FirstRequest, None))
    state: ClassVar[Any] = QnState
    cache: ClassVar[Any] = LinkCache
    composite: ClassVar[bool] = False  # secants are of the smooth part, and steps are not its steps
    linked: ClassVar[bool] = True  # in any precision: agents must know the units

    # --- at the Master ---------------------------------------------------------------------------

    def step(self, problem: Problem, state: QnState) -> Flow[tuple[QnState, Info]]:
        """A quasi-Newton step; Newton's own where every agent sent its whole Hessian at theta^t."""
        g = gradient(problem, state)
        s, y = update_secants(state.s, state.y, state.last, state.theta, g, self.memory)
        state, direction = self._round_quasi_newton(
            problem, replace(state, s=s, y=y, last=(state.theta, g)), g
        )
        step = yield from self.search_step_size(self.line_search, problem, state, g, direction)
        held = [known.curvature for known in state.known.values()]
        renewed, q_max = sum(h.k == state.t for h in held), max(h.q for h in held)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, renewed, q_max, step.stopped)

    def _round_quasi_newton(self, problem: Problem, state: QnState, g: Vector) -> tuple[QnState, Vector]:
        """The direction as it is sent; H_hat, as large as all pairs, is freed before agents answer."""
        H, s, y = mean_hessian(problem, state), state.s, state.y
        assert s is not None
        assert y is not None
        exact = self.exact_curvature(problem, state) is not None
        direction = -H.solve(g) if exact else -two_loop(g, s, y, H.solve)
        return self.round_direction(problem, state, g, direction, bfgs_product(s, y, H.product))

    def state_after_first_replies(self, state: QnState) -> QnState:
        """The units are known; eigenpairs come with the update at the same point."""
        return state

    def _has_model(self, state: QnState, i: AgentId) -> bool:
        return i in state.known and state.known[i].curvature is not None

    def absorb(self, problem: Problem, state: QnState, replies: Replies[Local | LocalWhole]) -> QnState:
        """As SHED, in the units of the diagonal."""
        after = super().absorb(problem, state, cast(Replies[Local], replies))
        units = links.units_of(state.frame, problem.n)
        known = {
            i: one
            if one.curvature.units is units  # one array for all, until an agent's Hessian is renewed
            else replace(one, curvature=replace(one.curvature, units=units))
            for i, one in after.known.items()
        }
        healed: QnState = self.clear_answered(replace(after, known=known), replies)
        return healed

    def due(self, problem: Problem, state: State[SharedCurvature], i: AgentId, held: SharedCurvature) -> bool:
        """As the policy says, and at once if the link carries a whole Hessian in one round."""
        whole_in_a_round = held.complete and held.t == held.k
        return whole_in_a_round or super().due(problem, state, i, held)

    def pairs_of(self, local: Any) -> Eigenpairs | None:
        """The curvature of an answer; a whole Hessian is decomposed, and vectors are normalised again."""
        if isinstance(local, LocalWhole):
            return _decompose(local)
        pairs = super().pairs_of(local)
        if pairs is None:
            return None
        return Eigenpairs(
            pairs.k, pairs.start, pairs.values, _normalize_rows(pairs.vectors), pairs.rho, pairs.last
        )

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """A whole Hessian must be the one asked for, as eigenpairs must."""
        if not isinstance(answer, LocalWhole):
            return super().refusal(problem, part, own_part, answer)
        share = getattr(own_part, "part", None)
        if share is None:
            return "it sent a whole Hessian that was not asked for"
        fits = share.more and answer.k == share.k
        return None if fits else f"it sent the whole Hessian of k={answer.k}; asked for was k={share.k}"

    # --- at an agent -----------------------------------------------------------------------------

    def anchor(self, cache: Any) -> Vector | None:
        """theta^k of the Hessian that an agent holds."""
        return super().anchor(None if cache is None else cache.inner)

    def kernel_used(self, cache: Any) -> str | None:
        """The kernel that drew an agent's eigenpairs."""
        return super().kernel_used(None if cache is None else cache.inner)

    def respond(
        self, agent: Agent, cache: LinkCache | None, part: Update | FirstRequest, own_part: Share | None
    ) -> tuple[LinkCache, Message]:
        """f_i, g_i and what the link carries; the packed Hessian where it costs less than the pairs left."""
        if cache is None:
            raise ProtocolError(f"site {agent.name!r} was sent an Update without its point and units")
        if isinstance(part, FirstRequest):
            return self.respond_first(agent, cache, part)
        assert own_part is not None  # see `requests`
        n = agent.objective.dim
        in_units = Agent(agent.name, InUnits(agent.objective, links.units_of(cache.frame, n)))
        spectrum, local = Shed.respond(self, in_units, cache.inner, part, own_part)
        held = replace(cache, inner=spectrum)
        if local.pairs is None or spectrum is None or len(local.pairs.values) <= (n + 1) / 2:
            return self.code_gradient(agent, held, part, local)
        whole = LocalWhole(local.loss, local.gradient, own_part.k, _pack_hessian(spectrum))
        return self.code_gradient(agent, held, part, whole)


class InUnits:
    """An objective whose curvature is diag(1/r) H diag(1/r); costs and gradients are as they were."""

    def __init__(self, objective: Objective, units: Vector) -> None:
        self._objective, self._units = objective, units
        self.weight, self.dim = objective.weight, objective.dim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def at(self, theta: Vector) -> Point:
        """The cost at theta."""
        return cast(Point, PointInUnits(self._objective.at(theta), self._units))


class PointInUnits:
    """A point of `InUnits`."""

    value, gradient = property(attrgetter("_point.value")), property(attrgetter("_point.gradient"))

    def __init__(self, point: Point, units: Vector) -> None:
        self._point, self._units = point, units

    def __getattr__(self, name: str) -> Any:
        return getattr(self._point, name)

    def leading_eigenpairs(self, count: int, kernel: Kernel) -> Leading:
        """The leading eigenpairs of diag(1/r) H diag(1/r)."""
        return self._point.leading_eigenpairs(count, kernel, self._units)

    def trace(self) -> float:
        """Its trace."""
        return self._point.trace(self._units)


def _normalize_rows(vectors: Matrix) -> Matrix:
    """Vectors as rows, of one agent or of many, made unit again where they are not 0."""
    norms = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    unit: Matrix = vectors / np.where(norms > 0, norms, 1.0)
    return unit


def _pack_hessian(spectrum: Spectrum) -> Packed:
    """The packed Hessian of which all pairs were drawn."""
    V, rho = spectrum.pairs.vectors, spectrum.pairs.values[spectrum.pairs.q]
    return pack((V.T * (spectrum.pairs.values[: len(V)] - rho)) @ V + rho * np.eye(V.shape[1]))


def _decompose(local: LocalWhole) -> Eigenpairs:
    n = len(local.gradient)
    values, columns = np.linalg.eigh(unpack(local.hessian, n))
    values = np.maximum(values[::-1], 0.0)
    return Eigenpairs(local.k, 0, values[: n - 1], columns.T[::-1][: n - 1], float(values[-1]), last=True)
