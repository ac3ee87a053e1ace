"""QN-SHED: SHED with secants at the Master, entropy-coded eigenpairs, and one exchange an iteration.

Every accepted step gives the Master a secant of the *global* gradient for nothing; H_hat^-1 is the initial
matrix of an L-BFGS product with them (docs/beyond.md).  An agent spends its budget on the message that buys
the most curvature: nothing, some eigenpairs, or the packed Hessian where it is smaller than the pairs left.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms.base import Info, State, gradient
from fedshed.algorithms.channels import Channel, Constant
from fedshed.algorithms.lbfgs import remembered, two_loop
from fedshed.algorithms.linesearch import Fused, LineSearch
from fedshed.algorithms.shed import Shed, Spectrum
from fedshed.algorithms.shed_curvature import SharedCurvature, curvature
from fedshed.linalg import Automatic, Kernel
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Vector, pack, unpack
from fedshed.protocol.conversation import Agent, AgentId, Flow, Problem
from fedshed.protocol.messages import Eigenpairs, Local, Message, Share, Update
from fedshed.protocol.precision import EntropyCoded, Precision


class LocalWhole(Message, frozen=True):
    """f^(i), g^(i) and the whole Hessian of iteration k, packed: n(n + 1)/2 numbers, not n - 1 pairs."""

    loss: float
    gradient: Gradient
    k: int
    hessian: Packed


class QnState(State[SharedCurvature], frozen=True):
    """The Master's state with its secants, oldest first, and the last point and gradient."""

    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None


class QnShed(Shed, frozen=True, tag=True):
    """theta^{t+1} = theta^t - eta_t B_t g_t, B_t = L-BFGS from H_hat_t^-1 with the last `memory` secants."""

    precision: Precision = EntropyCoded()
    channel: Channel = Constant(6)
    line_search: LineSearch = Fused()
    memory: int = 20
    kernel: Kernel = Automatic(approximate=True)

    messages: ClassVar[tuple[type[Message], ...]] = (Update, Share, Local, LocalWhole)
    state: ClassVar[Any] = QnState

    # --- at the Master ---------------------------------------------------------------------------

    def step(self, problem: Problem, state: Any) -> Flow[tuple[Any, Info]]:
        """A quasi-Newton step; Newton's own where every agent sent its whole Hessian at theta^t."""
        g = gradient(problem, state)
        s, y = remembered(state.s, state.y, state.last, state.theta, g, self.memory)
        solve = curvature(problem, state).solve
        exact = self.exact_curvature(problem, state) is not None
        direction = -solve(g) if exact else -two_loop(g, s, y, solve, scaled=False)
        state = replace(state, s=s, y=y, last=(state.theta, g))
        step = yield from self.line_search(self, problem, state, g, direction)
        held = [known.curvature for known in state.known.values()]
        renewed, q_max = sum(h.k == state.t for h in held), max(h.q for h in held)
        return step.state, Info(step.eta, 1 + self.line_search.rounds, renewed, q_max, step.stopped)

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
        norms = np.linalg.norm(pairs.vectors, axis=1, keepdims=True)
        vectors = pairs.vectors / np.where(norms > 0, norms, 1.0)
        return Eigenpairs(pairs.k, pairs.start, pairs.values, vectors, pairs.rho, pairs.last)

    def refusal(self, problem: Problem, part: Update, own_part: Share, answer: Any) -> str | None:
        """A whole Hessian must be the one asked for, as eigenpairs must."""
        if not isinstance(answer, LocalWhole):
            return super().refusal(problem, part, own_part, answer)
        fits = own_part.more and answer.k == own_part.k
        return None if fits else f"it sent the whole Hessian of k={answer.k}; asked for was k={own_part.k}"

    # --- at an agent -----------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: Spectrum | None, part: Update, own_part: Share
    ) -> tuple[Spectrum | None, Any]:
        """f_i, g_i and what the link carries; the packed Hessian where it costs less than the pairs left."""
        cache, local = super().respond(agent, cache, part, own_part)
        n = agent.objective.dim
        if local.pairs is None or cache is None or len(local.pairs.values) <= (n + 1) / 2:
            return cache, local
        V, rho = cache.pairs.vectors, cache.pairs.values[cache.pairs.q]
        H = (V.T * (cache.pairs.values[: len(V)] - rho)) @ V + rho * np.eye(n)
        return cache, LocalWhole(local.loss, local.gradient, own_part.k, pack(H))


def _taken_apart(local: LocalWhole) -> Eigenpairs:
    n = len(local.gradient)
    values, columns = np.linalg.eigh(unpack(local.hessian, n))
    values = np.maximum(values[::-1], 0.0)
    return Eigenpairs(local.k, 0, values[: n - 1], columns.T[::-1][: n - 1], float(values[-1]), last=True)
