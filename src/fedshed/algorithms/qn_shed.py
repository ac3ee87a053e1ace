"""QN-SHED: SHED with secants at the Master, entropy-coded eigenpairs, and one exchange an iteration.

Every accepted step gives the Master a secant of the *global* gradient for nothing; H_hat^-1 is the initial
matrix of an L-BFGS product with them (docs/beyond.md).  An agent spends its budget on the message that buys
the most curvature: nothing, some eigenpairs, or the packed Hessian where it is smaller than the pairs left.
Everything is in the units of the diagonal D of the global Hessian at the start, so the units of columns do
not matter: eigenpairs are those of D^-1/2 H_i D^-1/2, and gradients and directions have their steps there.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.lbfgs import bfgs_product, remembered, two_loop
from fedshed.algorithms.linesearch import Fused, LineSearch
from fedshed.algorithms.linked import LINK_MESSAGES, Held, Linked
from fedshed.algorithms.shed import Rho, Shed, Spectrum, TailMean
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature
from fedshed.linalg import Automatic, Kernel, leading
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.columns import Narrow, narrowed
from fedshed.linalg.rows import Rows, diagonal, with_units
from fedshed.objectives import Objective, Point
from fedshed.protocol import links
from fedshed.protocol.conversation import Agent, AgentId, Flow, Problem, Replies
from fedshed.protocol.messages import Eigenpairs, Local, Message, Share, Update
from fedshed.protocol.precision import Differences, Precision


class LocalWhole(Message, frozen=True):
    """f^(i), g^(i) and the whole Hessian of iteration k, packed: n(n + 1)/2 numbers, not n - 1 pairs."""

    loss: float
    gradient: Gradient
    k: int
    hessian: Packed


class QnState(State[SharedCurvature], frozen=True):
    """The Master's state with its secants, oldest first, the last point and gradient, and its links'."""

    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None
    frame: bytes = b""
    move: bytes = b""
    care: float = 1.0
    lost: tuple[AgentId, ...] = ()


class QnShed(Linked[Any], Shed, frozen=True, tag=True):
    """theta^{t+1} = theta^t - eta_t B_t g_t, B_t = L-BFGS from H_hat_t^-1 with the last `memory` secants."""

    precision: Precision = Differences()
    channel: Channel = Constant(6)
    line_search: LineSearch = Fused()
    rho: Rho = TailMean()
    memory: int = 20
    kernel: Kernel = Automatic(approximate=True)

    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local, LocalWhole, *LINK_MESSAGES)
    state: ClassVar[Any] = QnState
    cache: ClassVar[Any] = Held
    composite: ClassVar[bool] = False  # secants are of the smooth part, and steps are not its steps
    linked: ClassVar[bool] = True  # in any precision: agents must know the units

    # --- at the Master ---------------------------------------------------------------------------

    def step(self, problem: Problem, state: Any) -> Flow[tuple[Any, Info]]:
        """A quasi-Newton step; Newton's own where every agent sent its whole Hessian at theta^t."""
        g = gradient(problem, state)
        s, y = remembered(state.s, state.y, state.last, state.theta, g, self.memory)
        state, direction = self._directed(problem, replace(state, s=s, y=y, last=(state.theta, g)), g)
        step = yield from self.searched(self.line_search, problem, state, g, direction)
        held = [known.curvature for known in state.known.values()]
        renewed, q_max = sum(h.k == state.t for h in held), max(h.q for h in held)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, renewed, q_max, step.stopped)

    def _directed(self, problem: Problem, state: Any, g: Vector) -> tuple[Any, Vector]:
        """The direction as it is sent; H_hat, as large as all pairs, is gone before the agents answer."""
        H, s, y = curvature(problem, state), state.s, state.y
        exact = self.exact_curvature(problem, state) is not None
        direction = -H.solve(g) if exact else -two_loop(g, s, y, H.solve, scaled=False)
        return self.rounded(problem, state, g, direction, bfgs_product(s, y, H.product))

    def begun(self, state: Any) -> Any:
        """The units are known; eigenpairs come with the update at the same point."""
        return state

    def _modelled(self, state: Any, i: AgentId) -> bool:
        return i in state.known and state.known[i].curvature is not None

    def absorb(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """As SHED, in the units of the diagonal."""
        after = super().absorb(problem, state, replies)
        units = links.units_of(state.frame, problem.n)
        known = {
            i: one
            if one.curvature.units is units  # one array for all, until an agent's Hessian is renewed
            else replace(one, curvature=replace(one.curvature, units=units))
            for i, one in after.known.items()
        }
        return self.healed(replace(after, known=known), replies)

    def due(self, problem: Problem, state: State[SharedCurvature], i: AgentId, held: SharedCurvature) -> bool:
        """As the policy says, and at once for a link that carries a whole Hessian in a round."""
        whole_in_a_round = held.complete and held.t == held.k
        return whole_in_a_round or super().due(problem, state, i, held)

    def pairs_of(self, i: AgentId, local: Any) -> Eigenpairs | None:
        """The curvature of an answer; a whole Hessian is taken apart, vectors are made unit again."""
        if isinstance(local, LocalWhole):
            return _taken_apart(local)
        pairs = super().pairs_of(i, local)
        if pairs is None:
            return None
        norms = np.sqrt(np.square(pairs.vectors).sum(axis=1, keepdims=True))
        vectors = pairs.vectors / np.where(norms > 0, norms, 1.0)
        return Eigenpairs(pairs.k, pairs.start, pairs.values, vectors, pairs.rho, pairs.last)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """A whole Hessian must be the one asked for, as eigenpairs must."""
        if not isinstance(answer, LocalWhole):
            return super().refusal(problem, part, own_part, answer)
        share = getattr(own_part, "part", None)
        if share is None:
            return "it sent a whole Hessian, which was not asked for"
        fits = share.more and answer.k == share.k
        return None if fits else f"it sent the whole Hessian of k={answer.k}; asked for was k={share.k}"

    # --- at an agent -----------------------------------------------------------------------------

    def anchor(self, cache: Any) -> Vector | None:
        """theta^k of the Hessian that an agent holds."""
        return super().anchor(None if cache is None else cache.inner)

    def kernel_used(self, cache: Any) -> str | None:
        """The kernel that drew an agent's eigenpairs."""
        return super().kernel_used(None if cache is None else cache.inner)

    def answered(self, agent: Agent, held: Held, part: Update, own_part: Share) -> tuple[Held, Any]:
        """f_i, g_i and what the link carries; the packed Hessian where it costs less than the pairs left."""
        n = agent.objective.dim
        there = Agent(agent.name, InUnits(agent.objective, links.units_of(held.frame, n)))
        spectrum, local = Shed.respond(self, there, held.inner, part, own_part)
        held = replace(held, inner=spectrum)
        if local.pairs is None or spectrum is None or len(local.pairs.values) <= (n + 1) / 2:
            return held, local
        V, rho = spectrum.pairs.vectors, spectrum.pairs.values[spectrum.pairs.q]
        H = (V.T * (spectrum.pairs.values[: len(V)] - rho)) @ V + rho * np.eye(n)
        return held, LocalWhole(local.loss, local.gradient, own_part.k, pack(H))

    def spectrum(self, point: Point, k: int, theta: Vector, need: int) -> Spectrum:
        """The first pairs of the Hessian at a point, and its trace."""
        trace = float(diagonal(point.factor).sum())
        return Spectrum(k, theta, leading(point.narrow, need, self.kernel), trace)


class InUnits:
    """An objective whose curvature is diag(1/r) H diag(1/r); costs and gradients are as they were."""

    def __init__(self, objective: Objective, units: Vector) -> None:
        self._objective, self._units = objective, units
        self.weight, self.dim = objective.weight, objective.dim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def at(self, theta: Vector) -> Point:
        """The cost at theta."""
        return cast(Point, PointInUnits(self._objective, self._objective.at(theta), self._units))


class PointInUnits:
    """A point of `InUnits`."""

    def __init__(self, objective: Objective, point: Point, units: Vector) -> None:
        self._objective, self._point, self._units = objective, point, units

    def __getattr__(self, name: str) -> Any:
        return getattr(self._point, name)

    @cached_property
    def factor(self) -> Rows:
        """F diag(1/r)."""
        return with_units(self._point.factor, 1 / self._units)

    @property
    def narrow(self) -> Narrow:
        """The same on the columns that matter: of equal columns the units may differ."""
        columns = getattr(self._objective, "columns_in", lambda _: None)(self._units)
        return narrowed(self.factor) if columns is None else Narrow(columns.narrow(self.factor), columns)


def _taken_apart(local: LocalWhole) -> Eigenpairs:
    n = len(local.gradient)
    values, columns = np.linalg.eigh(unpack(local.hessian, n))
    values = np.maximum(values[::-1], 0.0)
    return Eigenpairs(local.k, 0, values[: n - 1], columns.T[::-1][: n - 1], float(values[-1]), last=True)
