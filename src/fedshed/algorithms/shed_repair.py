"""What the SHED family needs besides Algorithm 4: recovery of what was lost, and checks of answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms.base import State
from fedshed.algorithms.shed_curvature import Operator, SharedCurvature, mean_hessian
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import AgentId, Conversation, Problem, Replies
from fedshed.protocol.messages import Eigenpairs, Message, Share, Update


class RepairsLostState(Conversation, frozen=True):
    """The part of `Shed` that the paper does not need, because nothing is lost there."""

    def share(self, problem: Problem, state: Any, i: AgentId) -> Share:
        """What agent i is asked for."""
        raise NotImplementedError

    def pairs_of(self, local: Any) -> Eigenpairs | None:
        """The eigenpairs of an answer."""
        raise NotImplementedError

    def anchor_to_send(self, problem: Problem, held: SharedCurvature) -> Vector | None:
        """theta^k for an agent that may have lost it."""
        return held.theta_k if held.needs_anchor or problem.stateless else None

    def note_missed_renewals(
        self, problem: Problem, after: State[Any], before: State[Any], replies: Replies[Message]
    ) -> State[Any]:
        """An agent that was to renew its Hessian but did not answer renews it as soon as it can."""
        known = after.known
        for i in problem.agents:
            if i in known and i not in replies and self.share(problem, before, i).k == before.t:
                known[i] = replace(known[i], curvature=replace(known[i].curvature, renewal_missed=True))
        return after

    def salvage(
        self,
        problem: Problem,
        state: State[SharedCurvature],
        trial: State[SharedCurvature],
        replies: Replies[Message],
    ) -> State[SharedCurvature]:
        """Keep pairs that came with a rejected trial, but discard a Hessian that was taken there."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            pairs = self.pairs_of(local)
            if pairs is not None and self.share(problem, trial, i).k != trial.t:
                held = known[i].curvature.add_pairs(pairs, trial.t)
                known[i] = replace(known[i], curvature=held)
        return replace(state, known=known)

    def assume_forgotten(self, state: State[SharedCurvature]) -> State[SharedCurvature]:
        """Send theta_k with the next request: an agent may have forgotten it."""
        known = {
            i: replace(a, curvature=replace(a.curvature, needs_anchor=True)) for i, a in state.known.items()
        }
        return replace(state, known=known)

    def exact_curvature(self, problem: Problem, state: State[SharedCurvature]) -> Operator | None:
        """H_hat_t itself, when every agent has sent all of its Hessian at theta^t, and exactly."""
        if self.lossy:
            return None
        held = [state.known[i].curvature for i in problem.agents]
        exact = all(h.complete and np.array_equal(h.theta_k, state.theta) for h in held)
        return mean_hessian(problem, state) if exact else None

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

    def anchor(self, cache: Any) -> Vector | None:
        """theta^k of the Hessian that an agent holds."""
        theta_k: Vector | None = getattr(cache, "theta_k", None)
        return theta_k

    def kernel_used(self, cache: Any) -> str | None:
        """The name of the kernel that computed an agent's eigenpairs."""
        return None if cache is None else cache.pairs.kernel
