"""QN-SHED: SHED with secants at the Master, entropy-coded eigenpairs, and one exchange per iteration.

Every accepted step gives the Master a secant of the *global* gradient without any further message; H_hat^-1
is the initial matrix of an L-BFGS product with them (docs/beyond.md).  An agent spends its budget on the
message that adds the most curvature: nothing, some eigenpairs, or the packed Hessian where it is smaller than
the remaining pairs.  Everything is in the units of the diagonal D of the global Hessian at the start, so the
units of columns do not matter: eigenpairs are those of D^-1/2 H_i D^-1/2, and gradients and directions are
rounded in these units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.gradients import gradients_at
from fedshed.algorithms.lbfgs import bfgs_product, remembered, two_loop
from fedshed.algorithms.linesearch import Fused, LineSearch
from fedshed.algorithms.linked import LINK_MESSAGES, Linked
from fedshed.algorithms.linked_agents import Held
from fedshed.algorithms.rho import Rho, TailMean
from fedshed.algorithms.shed import Shed, Spectrum
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature
from fedshed.algorithms.shed_together import pairs_together, renewed_together, with_pairs
from fedshed.linalg import Automatic, Kernel, leading
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.columns import Narrow, narrowed
from fedshed.linalg.kernels import Stack
from fedshed.linalg.rows import Rows, diagonal, with_units
from fedshed.linalg.spectrum import leading_together
from fedshed.objectives import Objective, Point
from fedshed.objectives.plural import at_each
from fedshed.protocol import links
from fedshed.protocol.columns import Columns, Groups
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
    state: ClassVar[Any] = QnState
    cache: ClassVar[Any] = Held
    composite: ClassVar[bool] = False  # secants are of the smooth part, and steps are not its steps
    linked: ClassVar[bool] = True  # in any precision: agents must know the units
    by_kind: ClassVar[bool] = True
    plurals: ClassVar[Mapping[str, tuple[str, ...]]] = {**Linked.plurals, **Shed.plurals}

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
        """The direction as it is sent; H_hat, as large as all pairs, is freed before agents answer."""
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
        """As the policy says, and at once if the link carries a whole Hessian in one round."""
        whole_in_a_round = held.complete and held.t == held.k
        return whole_in_a_round or super().due(problem, state, i, held)

    def pairs_of(self, i: AgentId, local: Any) -> Eigenpairs | None:
        """The curvature of an answer; a whole Hessian is decomposed, and vectors are normalised again."""
        if isinstance(local, LocalWhole):
            return _taken_apart(local)
        pairs = super().pairs_of(i, local)
        if pairs is None:
            return None
        return Eigenpairs(pairs.k, pairs.start, pairs.values, _unit(pairs.vectors), pairs.rho, pairs.last)

    def taken_together(
        self, olds: Sequence[Any], shares: Sequence[Any], local: Columns, state: State[SharedCurvature]
    ) -> Sequence[SharedCurvature] | None:
        """The same of agents whose answers are alike, unless these are whole Hessians."""
        pairs: Columns | None = local.fields.get("pairs")
        if pairs is None:
            return None
        pairs = pairs.having(vectors=_unit(pairs.fields["vectors"]))
        return super().taken_together(olds, shares, local.having(pairs=pairs), state)

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

    def answered(self, agent: Agent, held: Held, part: Update, own_part: Share) -> tuple[Held, Any]:
        """f_i, g_i and what the link carries; the packed Hessian where it costs less than the pairs left."""
        n = agent.objective.dim
        there = Agent(agent.name, InUnits(agent.objective, links.units_of(held.frame, n)))
        spectrum, local = Shed.respond(self, there, held.inner, part, own_part)
        held = replace(held, inner=spectrum)
        if local.pairs is None or spectrum is None or len(local.pairs.values) <= (n + 1) / 2:
            return held, local
        return held, LocalWhole(local.loss, local.gradient, own_part.k, _packed(spectrum))

    def answered_together(
        self, agents: Sequence[Agent], helds: Sequence[Held], part: Any, own_parts: Sequence[Any]
    ) -> tuple[Sequence[Held], Groups] | None:
        """The same of many agents."""
        units = links.units_of(helds[0].frame, agents[0].objective.dim)
        there = [Agent(agent.name, InUnits(agent.objective, units)) for agent in agents]
        points, inners = at_each(agents, part.theta), [held.inner for held in helds]
        inners = renewed_together(self, there, inners, part, own_parts, points, units)
        spectra, pairs = pairs_together(self, there, inners, part, own_parts)
        groups = with_pairs(gradients_at(points), pairs)
        helds = [replace(held, inner=spectrum) for held, spectrum in zip(helds, spectra, strict=True)]
        return helds, [(rows, _shorter(answers, [spectra[k] for k in rows])) for rows, answers in groups]

    def spectrum(self, point: Point, k: int, theta: Vector, need: int) -> Spectrum:
        """The first pairs of the Hessian at a point, and its trace."""
        trace = float(diagonal(point.factor).sum())
        return Spectrum(k, theta, leading(point.narrow, need, self.kernel), trace)

    def spectra(self, factors: Stack, k: int, theta: Vector, need: int) -> list[Spectrum] | None:
        """The same of many agents."""
        found = leading_together(factors, need, self.kernel)
        if found is None:
            return None
        traces = diagonal(factors).sum(axis=1).tolist()
        return [Spectrum(k, theta, *each) for each in zip(found, traces, strict=True)]


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
        """The same on the columns that matter; equal columns may have different units."""
        columns = getattr(self._objective, "columns_in", lambda _: None)(self._units)
        return narrowed(self.factor) if columns is None else Narrow(columns.narrow(self.factor), columns)


def _unit(vectors: Matrix) -> Matrix:
    """Vectors as rows, of one agent or of many, made unit again where they are not 0."""
    norms = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    unit: Matrix = vectors / np.where(norms > 0, norms, 1.0)
    return unit


def _packed(spectrum: Spectrum) -> Packed:
    """The packed Hessian of which all pairs were drawn."""
    V, rho = spectrum.pairs.vectors, spectrum.pairs.values[spectrum.pairs.q]
    return pack((V.T * (spectrum.pairs.values[: len(V)] - rho)) @ V + rho * np.eye(V.shape[1]))


def _shorter(answers: Columns, spectra: Sequence[Spectrum]) -> Columns:
    """The answers of many agents, with packed Hessians where these cost less than the pairs left."""
    pairs, n = answers.fields["pairs"], answers.fields["gradient"].shape[1]
    if pairs is None or pairs.fields["values"].shape[1] <= (n + 1) / 2:
        return answers
    common = {name: answers.fields[name] for name in ("loss", "gradient")}
    fields = {**common, "k": pairs.fields["k"], "hessian": np.stack([_packed(one) for one in spectra])}
    return Columns(LocalWhole, fields, answers.count)


def _taken_apart(local: LocalWhole) -> Eigenpairs:
    n = len(local.gradient)
    values, columns = np.linalg.eigh(unpack(local.hessian, n))
    values = np.maximum(values[::-1], 0.0)
    return Eigenpairs(local.k, 0, values[: n - 1], columns.T[::-1][: n - 1], float(values[-1]), last=True)
