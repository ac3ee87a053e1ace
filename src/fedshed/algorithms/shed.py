"""The SHED family: SHED-LS (Algorithms 1, 3), SHED (Algorithm 4), GN-SHED and Mont-Dec.

Members differ in `renewal`, `channel`, `rho` and `line_search`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.composite import direction
from fedshed.algorithms.eigenpair_cache import Spectrum, recall_spectrum
from fedshed.algorithms.linesearch import FullStep, LineSearch, TwoExchange
from fedshed.algorithms.renewal import Fibonacci, History, Renewal
from fedshed.algorithms.rho import Midpoint, NextEigenvalue, Rho
from fedshed.algorithms.shed_curvature import Operator, SharedCurvature, curvature_after_reply, mean_hessian
from fedshed.algorithms.shed_repair import RepairsLostState
from fedshed.linalg import Automatic, Kernel
from fedshed.objectives import FAMILIES
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies, Requests
from fedshed.protocol.messages import Eigenpairs, Local, Message, Share, Update

ShedState: TypeAlias = State[SharedCurvature]


class Shed(RepairsLostState, Algorithm[ShedState, Update, Share, Local, Spectrum], frozen=True, tag=True):
    """SHED: agents send eigenpairs of their Hessians a few at a time and renew a Hessian from time to time.

    In iteration t the Master holds q eigenpairs of each agent's Hessian and one number rho that stands for
    all other eigenvalues: H_hat = sum_j (lambda_j - rho) v_j v_j' + rho I. It averages these approximations
    over the agents, adds the ridge, and takes the step theta^{t+1} = theta^t - eta_t H_hat_t^-1 g_t
    (Algorithm 4 of the paper). The Master decides when t is in I_i and says what it holds, so that an agent's
    eigenpairs are only a cache. GN-SHED and Mont-Dec have other parts: `renewal` and `channel`.

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

    renewal: Renewal = Fibonacci()
    channel: Channel = Constant(1)
    line_search: LineSearch = TwoExchange()
    rho: Rho = NextEigenvalue()
    kernel: Kernel = Automatic()

    partial: ClassVar[bool] = True
    composite: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local)
    requests: ClassVar[Requests] = ((Update, Share),)
    state = ShedState
    cache = Spectrum

    @property
    def losses(self) -> tuple[str, ...] | None:
        """Least squares only, with eta = 1 or rho < lambda_{q+1} (Theorem 3, Remark 6); else any (None)."""
        quadratic = isinstance(self.line_search, FullStep) or isinstance(self.rho, Midpoint)
        return tuple(loss for loss, one in FAMILIES.items() if one.quadratic) if quadratic else None

    # --- the Master ------------------------------------------------------------------------------

    def ask(self, problem: Problem, state: ShedState) -> Ask:
        """f_i, g_i and the next eigenpairs at theta^t."""
        return Ask((self.update(state),), {i: self.share(problem, state, i) for i in problem.agents})

    def share(self, problem: Problem, state: ShedState, i: AgentId) -> Share:
        """The request to agent i: a new Hessian if t is in I_i, else pairs after the q held, if any."""
        held = state.known[i].curvature if i in state.known else None
        if held is None or (held.k < state.t and (held.renewal_missed or self.due(problem, state, i, held))):
            return Share(k=state.t, have=0, more=True, anchor=None)
        more = held.t < state.t and not held.complete  # held.t = t: the pairs of this iteration are in
        return Share(held.k, held.q, more, self.anchor_to_send(problem, held) if more else None)

    def due(self, problem: Problem, state: ShedState, i: AgentId, held: SharedCurvature) -> bool:
        """Is t in I_i?"""
        return self.renewal(History(state.t, problem.n, state.norms, held.k), i)

    def absorb(self, problem: Problem, state: ShedState, replies: Replies[Local]) -> ShedState:
        """Store f_i and g_i at theta^t; the new pairs of agent i extend or replace those held."""
        known = dict(state.known)
        for i in (i for i in problem.agents if i in replies):
            (local,) = replies[i]
            old = known[i].curvature if i in known else None
            asked, pairs = self.share(problem, state, i), self.pairs_of(local)  # what `ask` asked for
            new = self.update_held_curvature(old, asked, pairs, state)
            known[i] = SiteModel(state.theta, local.loss, local.gradient, new)
        return self.note_missed_renewals(problem, replace(state, known=known), before=state, replies=replies)

    def update_held_curvature(
        self, held: SharedCurvature | None, share: Share, pairs: Eigenpairs | None, state: State[Any]
    ) -> SharedCurvature:
        """The Master's copy of an agent's curvature after a reply to `share`."""
        return curvature_after_reply(held, share, pairs, state)

    def pairs_of(self, local: Local) -> Eigenpairs | None:
        """The eigenpairs of an answer."""
        return local.pairs

    def step(self, problem: Problem, state: ShedState) -> Flow[tuple[ShedState, Info]]:
        """theta^{t+1} = theta^t - eta_t H_hat_t^-1 g_t."""
        g = gradient(problem, state)
        p = direction(problem, state.theta, g, self.approximate_hessian(problem, state))  # -H_hat_t^-1 g_t
        step = yield from self.line_search(self, problem, state, g, p)
        held = [known.curvature for known in state.known.values()]
        renewed, q_max = sum(h.k == state.t for h in held), max(h.q for h in held)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, renewed, q_max, step.stopped)

    def approximate_hessian(self, problem: Problem, state: ShedState) -> Operator:
        """H_hat_t = sum_i p_i H_hat_t^(i) + diag(l2) (equation 17)."""
        return mean_hessian(problem, state)

    # --- an agent --------------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: Spectrum | None, part: Update, own_part: Share
    ) -> tuple[Spectrum | None, Local]:
        """U_t: f_i, g_i, as many of the next eigenpairs as the link carries, and rho."""
        assert part.theta is not None
        point, pairs = agent.objective.at(part.theta), None  # f_i and g_i; U_t without pairs
        if own_part.more:
            q = own_part.have + self.pairs_per_round(agent, part.t)
            theta_k = part.theta if own_part.k == part.t else own_part.anchor
            cache = recall_spectrum(self, agent, cache, own_part.k, theta_k, q)
            pairs = None if cache is None else cache.next_pairs(own_part, q, self.rho)
        return cache, Local(point.value, point.gradient, pairs)

    def pairs_per_round(self, agent: Agent, t: int) -> int:
        """d_t^(i): how many eigenpairs the link carries in iteration t."""
        return self.channel.eigenpairs(t, agent.name, pair_bytes=8 * (agent.objective.dim + 1))
