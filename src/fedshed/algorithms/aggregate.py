"""SHED for very many agents: the Master keeps two n x n sums over all eigenpairs and no single pair.

    S = sum_i p_i V_i' Lambda_i V_i,  B = sum_i p_i V_i' V_i,  rho = sum_i p_i rho_i,
    H_hat = S + rho (I - B) + diag(l2).

SHED subtracts sum_i p_i rho_i V_i'V_i in place of rho B.  The two are equal where all rho_i are equal, or
where all V_i span one space; they differ by at most max_i |rho_i - rho|.  B is a mean of projections, so I -
B >= 0 and H_hat >= S >= 0.  But H_hat need not be above the Hessian (Corollary 5), so every loss needs the
line search.

A pair cannot be removed from a sum.  Therefore all agents renew together: an *epoch* begins with empty sums,
and each agent adds pairs of one Hessian to it, each pair once.  An agent without pairs in the epoch counts as
lambda_1 I.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import SiteModel, State
from fedshed.algorithms.linesearch import FullStep
from fedshed.algorithms.renewal import History, Renewal
from fedshed.algorithms.shed import Shed
from fedshed.algorithms.shed_curvature import FIELDS
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import weighted_gram
from fedshed.protocol.conversation import AgentId, Problem, Replies
from fedshed.protocol.messages import Eigenpairs, Local, Share


class Counted(Struct, frozen=True, rename=FIELDS):
    """What the Master keeps of one agent's Hessian of iteration k, of which q pairs are in the sums."""

    k: int
    q: int
    top: float  # lambda_1
    rho: float
    complete: bool  # no pairs follow
    t: int  # the last iteration whose pairs are in
    needs_anchor: bool = False  # the agent forgot this Hessian and needs theta_k
    renewal_missed: bool = False  # nothing of it is in the sums: a renewal was due but did not arrive

    def matvec(self, s: Vector) -> Vector:
        """lambda_1 s: the Hessian is at most lambda_1 I."""
        return self.top * s

    def reset(self) -> Counted:
        """The entry at the start of an epoch: only lambda_1 is kept."""
        return replace(self, q=0, rho=self.top, complete=False, needs_anchor=False, renewal_missed=True)


class Aggregate(State[Counted], frozen=True, kw_only=True):
    """The Master's state: the sums since iteration `epoch`, and theta_k for each k in use."""

    S: Matrix
    B: Matrix
    epoch: int = 0
    anchors: dict[int, Vector] = field(default_factory=dict)


class ShedAggregate(Shed, frozen=True, tag=True):
    """Fib-SHED with 2 n^2 numbers at the Master for any number of agents and pairs (docs/performance.md).

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    renewal : Renewal, default Fibonacci()
        At which iterations all agents compute new Hessians. The policy must give the same answer for every
        agent.
    channel : Channel, default Constant(1)
        How many eigenpairs an agent's link carries per round.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.
    rho : NextEigenvalue, Midpoint or TailMean, default NextEigenvalue()
        The number that stands for the eigenvalues that have not been sent.
    kernel : Kernel, default Automatic()
        How an agent computes its eigenpairs.

    Raises
    ------
    ConfigError
        If the agents would not renew together, or the line search is FullStep().

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.ShedAggregate()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    state: ClassVar[Any] = Aggregate

    def __post_init__(self) -> None:
        if not isinstance(self.renewal, Renewal):
            raise ConfigError(
                f"shed-aggregate needs all agents to renew together, which {type(self.renewal).__name__} "
                "does not promise; use a policy of fedshed.renewal, or Shed, which keeps each agent's pairs"
            )
        if isinstance(self.line_search, FullStep):
            raise ConfigError(
                "shed-aggregate may underestimate the Hessian; set line_search=TwoExchange() or Fused()"
            )

    def start(self, problem: Problem, theta: Vector) -> Aggregate:
        """The state before the first round, with empty sums."""
        empty = np.zeros((problem.n, problem.n))
        return Aggregate(t=1, theta=theta, known={}, S=empty, B=empty)

    def absorb(self, problem: Problem, state: Aggregate, replies: Replies[Local]) -> Aggregate:
        """Costs and gradients move to theta^t; new pairs enter the sums, which a renewal has reset."""
        state = self._start_epoch(problem, state)
        known: dict[AgentId, SiteModel[Any]] = dict(state.known)
        taken: dict[AgentId, Eigenpairs] = {}
        for i in problem.agents:
            if i in replies:
                local, old = replies[i][0], known[i].curvature if i in known else None
                share, pairs = self.share(problem, state, i), self.pairs_of(local)
                known[i] = SiteModel(state.theta, local.loss, local.gradient, old)
                if pairs is not None and _fits(pairs, share):
                    taken[i] = pairs
                elif share.more and old is not None:
                    known[i] = replace(known[i], curvature=replace(old, needs_anchor=True))
        return _add_pairs(problem, replace(state, known=known), taken, state.t)

    def salvage(
        self, problem: Problem, state: Aggregate, trial: Aggregate, replies: Replies[Local]
    ) -> Aggregate:
        """Keep pairs that came with a rejected trial, but discard a Hessian that was taken there."""
        taken = {}
        for i, (local,) in replies.items():
            share, pairs = self.share(problem, trial, i), self.pairs_of(local)
            if pairs is not None and share.k != trial.t and _fits(pairs, share):
                taken[i] = pairs
        return _add_pairs(problem, state, taken, trial.t)

    def approximate_hessian(self, problem: Problem, state: Aggregate) -> DensePlusRidge:
        """S + rho (I - B) + diag(l2); B is limited to I, because rounded vectors could make it larger."""
        rho = sum(problem.p[i] * state.known[i].curvature.rho for i in problem.agents)
        B = _clip_eigenvalues(state.B) if self.lossy else state.B
        return DensePlusRidge(state.S + rho * (np.eye(problem.n) - B), problem.l2, problem.columns)

    def exact_curvature(self, problem: Problem, state: Aggregate) -> None:
        """None: even with all pairs of all agents the sums do not determine the Hessian."""
        return None

    def _start_epoch(self, problem: Problem, state: Aggregate) -> Aggregate:
        """The state at a renewal: a new epoch without pairs."""
        if not self._renews(problem, state):
            return state
        known = {i: replace(a, curvature=a.curvature.reset()) for i, a in state.known.items()}
        empty = np.zeros((problem.n, problem.n))
        return replace(state, known=known, S=empty, B=empty, epoch=state.t, anchors={})

    def _renews(self, problem: Problem, state: Aggregate) -> bool:
        """Whether t is in I for all agents and its epoch has not begun yet."""
        history = History(state.t, problem.n, state.norms, state.epoch)
        return bool(state.epoch < state.t and self.renewal(history, problem.agents[0]))

    def share(self, problem: Problem, state: Aggregate, i: AgentId) -> Share:
        """Renew together, or continue after the pairs in the sums; agents that missed a renewal follow."""
        counted = state.known[i].curvature if i in state.known else None
        if counted is None or counted.renewal_missed or self._renews(problem, state):
            return Share(state.t, 0, True, None)
        more = counted.t < state.t and not counted.complete
        remind = more and (counted.needs_anchor or problem.stateless)
        return Share(counted.k, counted.q, more, state.anchors[counted.k] if remind else None)


def _fits(pairs: Eigenpairs, share: Share) -> bool:
    """Whether the pairs are the next ones of the Hessian asked for; no others may enter a sum."""
    return share.more and (pairs.k, pairs.start) == (share.k, share.have)


def _add_pairs(problem: Problem, state: Aggregate, taken: Mapping[AgentId, Eigenpairs], t: int) -> Aggregate:
    """The state with these pairs in its sums, as those of iteration t."""
    known = dict(state.known)
    for i, pairs in taken.items():
        known[i] = replace(known[i], curvature=_count_pairs(known[i].curvature, pairs, t))
    blocks = [(problem.p[i], pairs) for i, pairs in sorted(taken.items()) if len(pairs.values)]
    S = state.S + weighted_gram(((b.vectors, p * b.values) for p, b in blocks), problem.n)
    B = state.B + weighted_gram(((b.vectors, np.full(len(b.values), p)) for p, b in blocks), problem.n)
    in_use = {a.curvature.k for a in known.values() if not a.curvature.renewal_missed}
    anchors = {k: theta for k, theta in {**state.anchors, state.t: state.theta}.items() if k in in_use}
    return replace(state, known=known, S=S, B=B, anchors=anchors)


def _count_pairs(old: Counted | None, pairs: Eigenpairs, t: int) -> Counted:
    """The numbers of an agent after its pairs were added."""
    first = pairs.values[0] if len(pairs.values) else pairs.rho
    top = old.top if old is not None and pairs.start else float(first)
    return Counted(pairs.k, pairs.start + len(pairs.values), top, pairs.rho, pairs.last, t)


def _clip_eigenvalues(B: Matrix) -> Matrix:
    """B with eigenvalues of at most 1."""
    values, columns = np.linalg.eigh(B)
    clipped: Matrix = (columns * np.minimum(values, 1.0)) @ columns.T
    return clipped
