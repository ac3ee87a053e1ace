"""The SHED family, written once: SHED-LS (Algorithms 1, 3), SHED (Algorithm 4), and Mont-Dec.

Its members differ in four parts: when Hessians are renewed, how many eigenpairs a link carries, how rho is
chosen, and how the step size is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.composite import direction
from fedshed.algorithms.gradients import gradients_at
from fedshed.algorithms.linesearch import FullStep, LineSearch, TwoExchange
from fedshed.algorithms.renewal import Fibonacci, History, Renewal
from fedshed.algorithms.rho import Midpoint, NextEigenvalue, Rho, TailMean
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature, held_after, held_together
from fedshed.algorithms.shed_together import extent, pairs_together, renewed_together, with_pairs
from fedshed.linalg import Automatic, DensePlusRidge, Kernel, Leading, LowRankPlusDiagonal, leading
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.linalg.kernels import Stack
from fedshed.linalg.spectrum import leading_together
from fedshed.objectives import FAMILIES, Point
from fedshed.objectives.plural import at_each
from fedshed.protocol.columns import Columns, Groups
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies
from fedshed.protocol.messages import Eigenpairs, Local, Message, Share, Update
from fedshed.protocol.replies import Gathered

Operator: TypeAlias = LowRankPlusDiagonal | DensePlusRidge


class Spectrum(Struct, frozen=True, gc=False):
    """An agent's cache: the eigenpairs computed so far of its Hessian of iteration k, at theta^k."""

    k: int
    theta_k: Vector
    pairs: Leading
    trace: float = 0.0  # of the Hessian, where rho is made of it


class Shed(Algorithm[State[SharedCurvature]], frozen=True, tag=True):
    """SHED: agents send eigenpairs of their Hessians a few at a time and renew a Hessian from time to time.

    In iteration t the Master holds q eigenpairs of each agent's Hessian and one number rho that stands for
    all other eigenvalues: H_hat = sum_j (lambda_j - rho) v_j v_j' + rho I. It averages these approximations
    over the agents, adds the ridge, and takes the step theta^{t+1} = theta^t - eta_t H_hat_t^-1 g_t
    (Algorithm 4 of the paper; Algorithms 1 and 3 with other parts).

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    renewal : Renewal, default Fibonacci()
        At which iterations an agent computes a new Hessian.
    channel : Channel, default Constant(1)
        How many eigenpairs an agent's link carries per round.
    line_search : TwoExchange, Fused or FullStep, default TwoExchange()
        How the step size eta_t is found.
    rho : NextEigenvalue, Midpoint or TailMean, default NextEigenvalue()
        The number that stands for the eigenvalues that have not been sent.
    kernel : Kernel, default Automatic()
        How an agent computes its eigenpairs.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Shed(channel=fedshed.Constant(3))
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    renewal: Renewal = Fibonacci()  # at which iterations an agent computes its Hessian again
    channel: Channel = Constant(1)  # how many eigenpairs a link carries per round
    line_search: LineSearch = TwoExchange()  # how eta_t is found
    rho: Rho = NextEigenvalue()  # the number that stands for the eigenvalues not sent
    kernel: Kernel = Automatic()  # how an agent computes its eigenpairs

    partial: ClassVar[bool] = True
    composite: ClassVar[bool] = True
    by_kind: ClassVar[bool] = True
    plurals: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Algorithm.plurals, "respond_together": ("respond", "_recalled", "_pairs"), "spectra": ("spectrum",),
        "rhos_of": ("rho_of",),
        "taken_together": ("taken", "pairs_of"),
    }  # fmt: skip
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local)
    state = State[SharedCurvature]
    cache = Spectrum

    def anchor(self, cache: Any) -> Vector | None:
        """theta^k of the Hessian that an agent holds."""
        theta_k: Vector | None = getattr(cache, "theta_k", None)
        return theta_k

    def kernel_used(self, cache: Any) -> str | None:
        """The name of the kernel that computed an agent's eigenpairs."""
        return None if cache is None else cache.pairs.kernel

    @property
    def losses(self) -> tuple[str, ...] | None:
        """Only least squares is sure to converge with eta = 1 or rho < lambda_{q+1} (Theorem 3, Remark 6)."""
        quadratic = isinstance(self.line_search, FullStep) or isinstance(self.rho, Midpoint)
        return tuple(loss for loss, one in FAMILIES.items() if one.quadratic) if quadratic else None

    # --- at the Master ---------------------------------------------------------------------------

    def ask(self, problem: Problem, state: State[SharedCurvature]) -> Ask:
        """f_i, g_i and the next eigenpairs at theta^t."""
        return Ask((self.update(state),), self._shares(problem, state))

    def absorb(
        self, problem: Problem, state: State[SharedCurvature], replies: Replies
    ) -> State[SharedCurvature]:
        """Costs and gradients move to theta^t; new pairs extend or replace those held."""
        known, shares = dict(state.known), self._shares(problem, state)
        problem.memo.pop("shares")
        if isinstance(replies, Gathered):
            for names, (local, *_) in replies.groups:
                known.update(self._absorbed(state, names, [shares[i] for i in names], local))
        else:
            for i in (i for i in problem.agents if i in replies):
                old, local = known.get(i), replies[i][0]
                held = self.taken(old.curvature if old else None, shares[i], self.pairs_of(i, local), state)
                known[i] = SiteModel(state.theta, local.loss, local.gradient, held)
        for i in problem.agents:
            if shares[i].k == state.t and i in known and i not in replies:
                known[i] = replace(known[i], curvature=replace(known[i].curvature, owed=True))
        return replace(state, known=known)

    def _absorbed(
        self, state: State[SharedCurvature], names: Sequence[AgentId], shares: Sequence[Share], local: Columns
    ) -> Iterator[tuple[AgentId, SiteModel[SharedCurvature]]]:
        """What is known of agents after answers that are alike."""
        olds = [state.known[i].curvature if i in state.known else None for i in names]
        many = self.told_of_many("taken_together")
        held = self.taken_together(olds, shares, local, state) if many else None
        if held is None:
            each = zip(olds, shares, names, local.messages(), strict=True)
            held = [self.taken(old, share, self.pairs_of(i, one), state) for old, share, i, one in each]
        costs, gradients = local.fields["loss"].tolist(), list(local.fields["gradient"])
        for i, f, g, h in zip(names, costs, gradients, held, strict=True):
            yield i, SiteModel(state.theta, f, g, h)

    def step(
        self, problem: Problem, state: State[SharedCurvature]
    ) -> Flow[tuple[State[SharedCurvature], Info]]:
        """theta^{t+1} = theta^t - eta_t H_hat_t^-1 g_t."""
        g = gradient(problem, state)
        d = direction(problem, state.theta, g, self.curvature(problem, state))
        step = yield from self.line_search(self, problem, state, g, d)
        held = [known.curvature for known in state.known.values()]
        renewed, q_max = sum(h.k == state.t for h in held), max(h.q for h in held)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, renewed, q_max, step.stopped)

    def curvature(self, problem: Problem, state: State[SharedCurvature]) -> Operator:
        """H_hat_t."""
        return curvature(problem, state)

    def salvage(
        self, problem: Problem, state: State[SharedCurvature], trial: State[SharedCurvature], replies: Replies
    ) -> State[SharedCurvature]:
        """Keep pairs that came with a rejected trial, but discard a Hessian that was taken there."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            share = self._share(problem, trial, i)
            pairs = self.pairs_of(i, local)
            if pairs is not None and share.k != trial.t:
                held = known[i].curvature.extended(pairs, trial.t)
                known[i] = replace(known[i], curvature=held)
        return replace(state, known=known)

    def assume_forgotten(self, state: State[SharedCurvature]) -> State[SharedCurvature]:
        """Send theta_k with the next request: an agent may have forgotten it."""
        known = {i: replace(a, curvature=replace(a.curvature, lost=True)) for i, a in state.known.items()}
        return replace(state, known=known)

    def exact_curvature(self, problem: Problem, state: State[SharedCurvature]) -> Operator | None:
        """H_hat_t itself, when every agent has sent all of its Hessian at theta^t, and exactly."""
        if self.precision.lossy:
            return None
        held = [state.known[i].curvature for i in problem.agents]
        exact = all(h.complete and np.array_equal(h.theta_k, state.theta) for h in held)
        return curvature(problem, state) if exact else None

    def due(self, problem: Problem, state: State[SharedCurvature], i: AgentId, held: SharedCurvature) -> bool:
        """Is t in I_i?"""
        return self.renewal(History(state.t, problem.n, state.norms, held.k), i)

    def taken(self, old: Any, share: Any, pairs: Any, state: State[SharedCurvature]) -> SharedCurvature:
        """The Master's copy after a reply to `share`."""
        return held_after(old, share, pairs, state)

    def taken_together(
        self, olds: Sequence[Any], shares: Sequence[Any], local: Columns, state: State[SharedCurvature]
    ) -> Sequence[SharedCurvature] | None:
        """The same of agents whose answers are alike; None: of one after the other."""
        return held_together(olds, shares, local.fields.get("pairs"), state)

    def pairs_of(self, i: AgentId, local: Any) -> Eigenpairs | None:
        """The eigenpairs of an answer."""
        pairs: Eigenpairs | None = local.pairs
        return pairs

    def refusal(self, problem: Problem, part: Update, own_part: Share, answer: Any) -> str | None:
        """Eigenpairs must be those asked for: of the Hessian of iteration k, after the pairs held."""
        pairs = getattr(answer, "pairs", None)
        if pairs is None:
            first = own_part.more and own_part.k == part.t
            return "it sent no eigenpairs of its Hessian when it was first asked for them" if first else None
        if not own_part.more or (pairs.k, pairs.start) != (own_part.k, own_part.have):
            asked = f"those after {own_part.have} of k={own_part.k}" if own_part.more else "none"
            return f"it sent the eigenpairs after {pairs.start} of k={pairs.k}; asked for were {asked}"
        return None

    def _shares(self, problem: Problem, state: State[SharedCurvature]) -> dict[AgentId, Share]:
        """What is asked of each agent; kept until the answers are absorbed."""
        known, t, norms, shares = problem.memo.get("shares", (None, 0, (), {}))
        if not (known is state.known and (t, norms) == (state.t, state.norms)):
            shares = {i: self._share(problem, state, i) for i in problem.agents}
            problem.memo["shares"] = state.known, state.t, state.norms, shares
        return dict(shares)

    def _share(self, problem: Problem, state: State[SharedCurvature], i: AgentId) -> Share:
        """Renew, or go on after the pairs held; an agent that missed a renewal renews as soon as it can."""
        held = state.known[i].curvature if i in state.known else None
        if held is None or (held.k < state.t and (held.owed or self.due(problem, state, i, held))):
            return Share(state.t, 0, True, None)
        more = held.t < state.t and not held.complete
        remind = more and (held.lost or problem.stateless)
        return Share(held.k, held.q, more, held.theta_k if remind else None)

    # --- at an agent -----------------------------------------------------------------------------

    def respond(self, agent: Agent, cache: Any, part: Any, own_part: Any) -> tuple[Any, Any]:
        """U_t: the cost, the gradient, and as many of the next eigenpairs as the link carries."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        pairs = None
        if own_part.more:
            q = own_part.have + self.carried(agent, part.t)
            cache = self._recalled(agent, cache, part, own_part, point, q)
            pairs = self._pairs(cache, own_part, q) if cache is not None else None
        return cache, Local(point.value, point.gradient, pairs)

    def respond_together(
        self, agents: Sequence[Agent], caches: Sequence[Any], part: Any, own_parts: Sequence[Any]
    ) -> tuple[Sequence[Any], Groups] | None:
        """The same of many agents."""
        points = at_each(agents, part.theta)
        caches = renewed_together(self, agents, caches, part, own_parts, points)
        caches, pairs = pairs_together(self, agents, caches, part, own_parts)
        return caches, with_pairs(gradients_at(points), pairs)

    def carried(self, agent: Agent, t: int) -> int:
        """d_t^(i)."""
        return self.channel.eigenpairs(t, agent.name, pair_bytes=8 * (agent.objective.dim + 1))

    def _pairs(self, spectrum: Spectrum, own_part: Share, q: int) -> Eigenpairs:
        """The pairs from number `have` to number q, or to the last one."""
        k, start, q, last = extent(spectrum, own_part, q)
        values, vectors = spectrum.pairs.values[start:q], spectrum.pairs.vectors[start:q]
        return Eigenpairs(k, start, values, vectors, self.rho_of(spectrum, q), last)

    def rho_of(self, spectrum: Spectrum, q: int) -> float:
        """rho after q pairs; a mean over all that follow is computed from the trace."""
        pairs, n = spectrum.pairs, spectrum.pairs.vectors.shape[1]
        if not isinstance(self.rho, TailMean):
            return float(self.rho(pairs.spectrum, q))
        if pairs.complete and q >= pairs.q:  # all that follow are alike
            return float(pairs.values[q])
        rest = max(spectrum.trace - float(pairs.values[:q].sum()), 0.0)
        return float(self.rho.between(rest / (n - q), pairs.values[q]))

    def rhos_of(self, spectra: Sequence[Spectrum], q: int) -> Scalars:
        """The same of many agents."""
        ended = any(one.pairs.complete and q >= one.pairs.q for one in spectra)
        if ended or not isinstance(self.rho, TailMean):
            return np.array([self.rho_of(one, q) for one in spectra])
        values = np.concatenate([one.pairs.values[: q + 1] for one in spectra]).reshape(len(spectra), -1)
        rest = np.maximum(np.array([one.trace for one in spectra]) - values[:, :q].sum(axis=1), 0.0)
        n = spectra[0].pairs.vectors.shape[1]
        return np.asarray(self.rho.between(rest / (n - q), values[:, q]))

    def _recalled(
        self, agent: Agent, cache: Spectrum | None, part: Update, own_part: Share, point: Point, q: int
    ) -> Spectrum | None:
        """The first q pairs of the Hessian of iteration k: cached, computed now, or computed at its anchor.

        None if neither the cache nor the anchor is available.
        """
        theta = part.theta if own_part.k == part.t else own_part.anchor
        if (
            cache is None
            or cache.k != own_part.k
            or not (theta is None or np.array_equal(cache.theta_k, theta))
        ):
            if theta is None:
                return None
            if own_part.k != part.t:
                point = agent.objective.at(theta)
            cache = self.spectrum(point, own_part.k, theta, self.needed(agent, own_part.k))
        return self._extended(agent, cache, q)

    def spectrum(self, point: Point, k: int, theta: Vector, need: int) -> Spectrum:
        """The first pairs of the Hessian at a point."""
        return Spectrum(k, theta, leading(point.narrow, need, self.kernel))

    def spectra(self, factors: Stack, k: int, theta: Vector, need: int) -> list[Spectrum] | None:
        """The same of many agents with dense factors, all of whose columns matter; None: one by one."""
        found = leading_together(factors, need, self.kernel)
        return None if found is None else [Spectrum(k, theta, pairs) for pairs in found]

    def _extended(self, agent: Agent, cache: Spectrum, q: int) -> Spectrum:
        """The spectrum with twice the pairs until there are q, if the schedule foresaw too few."""
        pairs = cache.pairs
        while pairs.q < q and not pairs.complete:
            narrow = agent.objective.at(cache.theta_k).narrow
            pairs = pairs.followed_by(leading(narrow, 2 * pairs.q + 1, self.kernel))
        return replace(cache, pairs=pairs)

    def needed(self, agent: Agent, k: int) -> int:
        """The number of pairs that the link carries until the renewal after k, as far as the schedule tells.

        If the link carries many, all n pairs are computed: from some share of n on that costs the same.
        """
        n, t, need = agent.objective.dim, k, self.carried(agent, k)
        most = self.kernel.few(n)
        while need <= most and t < k + self.kernel.look_ahead:
            t += 1
            if self.renewal(History(t, n, (), k), agent.name):
                break
            need += self.carried(agent, t)
        return n if getattr(self.rho, "whole", True) or need > most else need
