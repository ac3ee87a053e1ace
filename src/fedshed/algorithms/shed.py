"""The SHED family, written once: SHED-LS (Algorithms 1, 3), SHED (Algorithm 4), and Mont-Dec.

What tells them apart are four parts: when Hessians are renewed, how many eigenpairs a link carries,
how rho is chosen, and how the step size is found.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.composite import direction
from fedshed.algorithms.linesearch import FullStep, LineSearch, TwoExchange
from fedshed.algorithms.renewal import Fibonacci, History, Renewal
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature, held_after
from fedshed.linalg import Automatic, DensePlusRidge, Kernel, Leading, LowRankPlusDiagonal, leading
from fedshed.linalg.arrays import Vector
from fedshed.objectives import FAMILIES, Point
from fedshed.protocol.conversation import (
    Agent,
    AgentId,
    Ask,
    Flow,
    Problem,
    Replies,
)
from fedshed.protocol.messages import Eigenpairs, Local, Message, Share, Update


class NextEigenvalue(Struct, frozen=True, tag=True):
    """rho = lambda_{q+1}: H_hat is an upper bound of H (Algorithm 4, Corollary 5)."""

    whole: ClassVar[bool] = False  # the leading eigenvalues are enough

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from the first q + 1 eigenvalues at least."""
        return float(values[q])


class Midpoint(Struct, frozen=True, tag=True):
    """rho* = (lambda_{q+1} + lambda_n)/2: the best factor with eta = 1 for least squares (Corollary 2)."""

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from all n eigenvalues."""
        return float(values[q] + values[-1]) / 2


class TailMean(Struct, frozen=True, tag=True):
    """rho = m + share (lambda_{q+1} - m) with m the mean of lambda_{q+1}, ..., lambda_n.

    With share 0, H_hat has the trace of H; it is no upper bound of it, which an algorithm can do without that
    corrects H_hat by secants and looks at costs.  The share was chosen on F5, F6, F8 and W5 of docs/beyond.md
    (partition seed 0): 0 rejects steps on W5, 0.1 takes more iterations on all of them.
    """

    share: float = 0.025
    whole: ClassVar[bool] = False

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from all n eigenvalues."""
        return self.between(float(values[q:].mean()), float(values[q]))

    def between(self, mean: float, largest: float) -> float:
        """rho from the mean and the largest of the eigenvalues that follow, where only these are known."""
        mean = min(mean, largest)
        return mean + self.share * (largest - mean)


Rho: TypeAlias = NextEigenvalue | Midpoint | TailMean


Operator: TypeAlias = LowRankPlusDiagonal | DensePlusRidge


class Spectrum(Struct, frozen=True, gc=False):
    """An agent's cache: the eigenpairs of its Hessian of iteration k drawn so far, taken at theta^k."""

    k: int
    theta_k: Vector
    pairs: Leading
    trace: float = 0.0  # of the Hessian, where rho is made of it


class Shed(Algorithm[State[SharedCurvature]], frozen=True, tag=True):
    """Algorithm 4 (and 1, 3 with their own parts): share eigenpairs a few at a time, renew sporadically."""

    renewal: Renewal = Fibonacci()
    channel: Channel = Constant(1)
    line_search: LineSearch = TwoExchange()
    rho: Rho = NextEigenvalue()
    kernel: Kernel = Automatic()  # how an agent computes its eigenpairs

    partial: ClassVar[bool] = True
    composite: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local)
    state = State[SharedCurvature]
    cache = Spectrum

    def anchor(self, cache: Any) -> Vector | None:
        """theta^k of the Hessian that an agent holds."""
        theta_k: Vector | None = getattr(cache, "theta_k", None)
        return theta_k

    def kernel_used(self, cache: Any) -> str | None:
        """The kernel that drew an agent's eigenpairs."""
        return None if cache is None else cache.pairs.kernel

    @property
    def losses(self) -> tuple[str, ...] | None:
        """With eta = 1 or rho < lambda_{q+1} only least squares is sure to converge (Theorem 3, Remark 6)."""
        quadratic = isinstance(self.line_search, FullStep) or isinstance(self.rho, Midpoint)
        return tuple(loss for loss, one in FAMILIES.items() if one.quadratic) if quadratic else None

    # --- at the Master ---------------------------------------------------------------------------

    def ask(self, problem: Problem, state: State[SharedCurvature]) -> Ask:
        """f_i, g_i and the next eigenpairs at theta^t."""
        each = {i: self._share(problem, state, i) for i in problem.agents}
        return Ask((self.update(state),), each)

    def absorb(
        self, problem: Problem, state: State[SharedCurvature], replies: Replies
    ) -> State[SharedCurvature]:
        """Costs and gradients move to theta^t; new pairs extend or replace those held."""
        known = dict(state.known)
        for i in problem.agents:
            share, old = self._share(problem, state, i), known.get(i)
            if i in replies:
                local = replies[i][0]
                held = self.taken(old.curvature if old else None, share, self.pairs_of(i, local), state)
                known[i] = SiteModel(state.theta, local.loss, local.gradient, held)
            elif old and share.k == state.t:
                known[i] = replace(old, curvature=replace(old.curvature, owed=True))
        return replace(state, known=known)

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
        """Pairs sent with a rejected trial count as the next round's; a Hessian taken there is discarded."""
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
            q = own_part.have + self._carried(agent, part.t)
            cache = self._recalled(agent, cache, part, own_part, point, q)
            pairs = self._pairs(cache, own_part, q) if cache is not None else None
        return cache, Local(point.value, point.gradient, pairs)

    def _carried(self, agent: Agent, t: int) -> int:
        """d_t^(i)."""
        return self.channel.eigenpairs(t, agent.name, pair_bytes=8 * (agent.objective.dim + 1))

    def _pairs(self, spectrum: Spectrum, own_part: Share, q: int) -> Eigenpairs:
        """The pairs from `have` to q, or to the last there is."""
        pairs = spectrum.pairs
        q = max(own_part.have, min(q, pairs.q))
        new = slice(own_part.have, q)
        rho, last = self.rho_of(spectrum, q), pairs.complete and q >= pairs.q
        return Eigenpairs(own_part.k, own_part.have, pairs.values[new], pairs.vectors[new], rho, last)

    def rho_of(self, spectrum: Spectrum, q: int) -> float:
        """rho after q pairs; a mean of all that follow is made from the trace."""
        pairs, n = spectrum.pairs, spectrum.pairs.vectors.shape[1]
        if not isinstance(self.rho, TailMean):
            return float(self.rho(pairs.spectrum, q))
        if pairs.complete and q >= pairs.q:  # all that follow are alike
            return float(pairs.values[q])
        rest = max(spectrum.trace - float(pairs.values[:q].sum()), 0.0)
        return self.rho.between(rest / (n - q), float(pairs.values[q]))

    def _recalled(
        self, agent: Agent, cache: Spectrum | None, part: Update, own_part: Share, point: Point, q: int
    ) -> Spectrum | None:
        """The first q pairs of the Hessian of iteration k: cached, taken now, or rebuilt at its anchor.

        None if it is lost.
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

    def _extended(self, agent: Agent, cache: Spectrum, q: int) -> Spectrum:
        """With twice the pairs until q are there: more were asked for than the schedule foresaw."""
        pairs = cache.pairs
        while pairs.q < q and not pairs.complete:
            narrow = agent.objective.at(cache.theta_k).narrow
            pairs = pairs.followed_by(leading(narrow, 2 * pairs.q + 1, self.kernel))
        return replace(cache, pairs=pairs)

    def needed(self, agent: Agent, k: int) -> int:
        """Pairs that the link carries before the renewal after k, as far as the schedule tells.

        A link that carries many gets all of them: from n/4 on they cost the same.
        """
        n, t, need = agent.objective.dim, k, self._carried(agent, k)
        while 4 * need <= n and t < k + self.kernel.look_ahead:
            t += 1
            if self.renewal(History(t, n, (), k), agent.name):
                break
            need += self._carried(agent, t)
        return n if getattr(self.rho, "whole", True) or 4 * need > n else need
