"""FedNL-LS: the Master learns each agent's Hessian by compressed differences.

Safaryan, Islamov, Qian, Richtarik, ICML 2022, Algorithm 3, with the full initial Hessian (docs/paper.md 16).
The compressor is a part (`compressors`): the best rank-d approximation, the largest entries or powers of two.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import SingularError
from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.algorithms.newton import PackedHessian
from fedshed.algorithms.rivals.compressors import (
    LOST,
    CodedCorrection,
    Compressor,
    Correction,
    Draw,
    RankR,
    unreadable,
)
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import LocalHessian, Message, Update

LEAST = 1e-4  # mu, where the learnt Hessian is not positive definite and there is no penalty


class Learnt(Message, frozen=True):
    """How many corrections of an agent's Hessian the Master has; the matrix itself if the agent lost it."""

    version: Count
    matrix: Packed | None


class Estimate(PackedHessian, frozen=True, kw_only=True):
    """One agent's Hessian as learnt up to `version`, and the next correction, as Master and agent hold it."""

    version: int
    change: Packed | None = None
    lost: bool = False

    def apply_correction(self, rate: float) -> Estimate:
        """The estimate with the correction applied, as version + 1."""
        packed = self.packed if self.change is None else self.packed + rate * self.change
        return Estimate(packed=packed, version=self.version + 1, lost=self.lost)


Learning: TypeAlias = LocalHessian | Correction | CodedCorrection


class FedNL(Algorithm[State[Estimate], Update, Learnt | None, Learning, Estimate], frozen=True, tag=True):
    """FedNL-LS: the Master learns each agent's Hessian from compressed differences.

    theta^{t+1} = theta^t - eta_t [H^t]^-1 g_t and H^{t+1} = H^t + rate sum_i p_i C(H_i(theta^t) - H_i^t),
    where C is the compressor. The first Hessian is sent whole.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    channel : Channel, default Constant(1)
        The rank of the compressor RankR() per round; TopK() takes n entries for each unit of rank.
    compressor : RankR, TopK or Natural, default RankR()
        How a difference is compressed (fedshed.algorithms.compressors).
    rate : float, optional
        The share of a correction that is applied. Default: the value that theory gives for the compressor.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.FedNL(channel=fedshed.Constant(2))
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    channel: Channel = Constant(1)  # the rank of the compressor
    compressor: Compressor = RankR()  # C: what is sent of the difference between two matrices
    rate: float | None = None  # None: as the theory says for the compressor
    line_search: LineSearch = TwoExchange()  # how eta_t is found
    messages: ClassVar[tuple[type[Message], ...]] = (
        Update,
        Learnt,
        LocalHessian,
        Correction,
        CodedCorrection,
    )
    state = State[Estimate]
    requests = ((Update, Learnt), (Update, None))
    cache = Estimate
    updates_cache_when_sent: ClassVar[bool] = True

    @property
    def learning_rate(self) -> float:
        """How much of a correction is applied."""
        return self.compressor.rate if self.rate is None else self.rate

    def ask(self, problem: Problem, state: State[Estimate]) -> Ask:
        """f_i, g_i and a correction of H_i; from the start the whole of H_i."""
        return Ask(
            (Update(state.t, state.theta),), {i: self._learnt(problem, state, i) for i in problem.agents}
        )

    def absorb(self, problem: Problem, state: State[Estimate], replies: Replies[Learning]) -> State[Estimate]:
        """The correction of the last round is applied, that of this round is kept for the next."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            old = known[i].curvature if i in known else None
            known[i] = SiteModel(state.theta, local.loss, local.gradient, self._estimate(old, local))
        return replace(state, known=known)

    def step(self, problem: Problem, state: State[Estimate]) -> Flow[tuple[State[Estimate], Info]]:
        """A Newton-type step with the matrix learnt before this round."""
        g = gradient(problem, state)
        H = np.zeros(problem.n * (problem.n + 1) // 2)
        for i in problem.agents:
            H += problem.p[i] * state.known[i].curvature.packed
        direction = -_projected_solve(unpack(H, problem.n), problem, g)
        step = yield from self.line_search(self, problem, state, g, direction)
        rounds = 1 + self.line_search.rounds + (state.t == 1)
        return step.state, Info(step.eta, rounds, renewed=len(problem.agents), stopped=step.stopped)

    def assume_forgotten(self, state: State[Estimate]) -> State[Estimate]:
        """Send the matrix with the next request, because an agent may have lost it."""
        known = {i: replace(a, curvature=replace(a.curvature, lost=True)) for i, a in state.known.items()}
        return replace(state, known=known)

    def _learnt(self, problem: Problem, state: State[Estimate], i: AgentId) -> Learnt | None:
        if i not in state.known:
            return None
        estimate = state.known[i].curvature
        new = estimate.apply_correction(self.learning_rate)
        return Learnt(new.version, new.packed if problem.stateless or estimate.lost else None)

    def _estimate(self, old: Estimate | None, local: Any) -> Estimate:
        if isinstance(local, LocalHessian):
            return Estimate(packed=local.hessian, version=0)
        assert old is not None  # the first answer is a Hessian: see `refusal`
        new = old.apply_correction(self.learning_rate)
        if local.version != new.version:
            return replace(new, lost=True)
        return replace(new, change=self.compressor.change(local), lost=False)

    def refusal(self, problem: Problem, part: Update, own_part: Learnt | None, answer: Any) -> str | None:
        """First a Hessian, then corrections of the version asked for (-1: the agent lost its matrix)."""
        if own_part is None:
            return wrong_type_reason(answer, LocalHessian)
        if why := wrong_type_reason(answer, self.compressor.message):
            return why
        if answer.version not in (own_part.version, LOST):
            return f"it corrects version {answer.version}; asked for was {own_part.version}"
        return unreadable(self.compressor, answer)

    def sent(self, cache: Estimate | None, answer: Any) -> Estimate | None:
        """Both sides apply the correction as the Master decodes it."""
        if cache is not None and isinstance(answer, LocalHessian):
            return replace(cache, packed=answer.hessian)
        corrects = isinstance(answer, self.compressor.message)
        if cache is not None and corrects and answer.version == cache.version:
            return replace(cache, change=self.compressor.change(answer))
        return cache

    def respond(
        self, agent: Agent, cache: Estimate | None, part: Update, own_part: Learnt | None
    ) -> tuple[Estimate | None, Learning]:
        """The whole Hessian at the start; then the compressed difference from the learnt matrix."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        H, n = gram(point.factor), agent.objective.dim
        if own_part is None:
            packed = pack(H)
            return Estimate(packed=packed, version=0), LocalHessian(point.value, point.gradient, packed)
        estimate = _agreed(cache, own_part, self.learning_rate)
        if estimate is None:
            return cache, self.compressor.lost(point)
        rank = self.channel.eigenpairs(part.t, agent.name, pair_bytes=8 * (n + 1))
        draw = Draw(agent.name, part.t, rank)
        answer = self.compressor.corrected(point, estimate.version, H - unpack(estimate.packed, n), draw)
        return replace(estimate, change=self.compressor.change(answer)), answer


def _agreed(cache: Estimate | None, own_part: Learnt, rate: float) -> Estimate | None:
    """The agent's copy at the Master's version: as it is, with the last correction, or as sent; else None."""
    if cache is not None and cache.version == own_part.version:
        return cache
    if cache is not None and cache.version + 1 == own_part.version:
        return cache.apply_correction(rate)
    if own_part.matrix is not None:
        return Estimate(packed=own_part.matrix, version=own_part.version)
    return None


def _projected_solve(H: Matrix, problem: Problem, g: Vector) -> Vector:
    """[H + diag(l2)]^-1 g with the data term projected onto H >= 0, or above where that is singular.

    The paper projects onto H >= mu I, for a cost that is known to be mu-strongly convex.
    """
    try:  # positive semidefinite up to rounding: nothing to project
        np.linalg.cholesky(H + 1e-12 * np.trace(H) / len(g) * np.eye(len(g)))
    except np.linalg.LinAlgError:
        values, columns = np.linalg.eigh(H)
        H = (columns * np.maximum(values, 0.0)) @ columns.T
        try:
            return DensePlusRidge(H, problem.l2, problem.columns).solve(g)
        except SingularError:  # without a penalty what was projected is singular
            H = H + LEAST * np.diag(np.maximum(np.diag(H), np.finfo(float).tiny))
    return DensePlusRidge(H, problem.l2, problem.columns).solve(g)
