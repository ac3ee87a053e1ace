"""The eigenpairs that an agent keeps of its Hessian; only a cache, which can be computed again at theta^k."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.renewal import History
from fedshed.algorithms.rho import Rho
from fedshed.linalg import Leading
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import Agent
from fedshed.protocol.messages import Eigenpairs, Share

if TYPE_CHECKING:
    from fedshed.algorithms.shed import Shed


class Spectrum(Struct, frozen=True, gc=False):
    """The eigenpairs computed so far of an agent's Hessian of iteration k, at theta^k."""

    k: int
    theta_k: Vector
    pairs: Leading
    trace: float = 0.0  # of the Hessian, if rho is computed from it

    def next_pairs(self, share: Share, q: int, rho: Rho) -> Eigenpairs:
        """The pairs from number `have` to number q, or to the last one, and rho."""
        if share.have > self.pairs.q:
            raise ValueError(f"{share.have} eigenpairs cannot have been sent: there are {self.pairs.q}")
        q = max(share.have, min(q, self.pairs.q))
        values, vectors = self.pairs.values[share.have : q], self.pairs.vectors[share.have : q]
        last = self.pairs.complete and q >= self.pairs.q
        return Eigenpairs(share.k, share.have, values, vectors, rho.after(self.pairs, q, self.trace), last)


def recall_spectrum(
    shed: Shed, agent: Agent, cache: Spectrum | None, k: int, theta_k: Vector | None, q: int
) -> Spectrum | None:
    """The first q pairs of the Hessian of iteration k: cached, or computed at theta^k.

    None if the cache has lost them and the request does not say theta^k.
    """
    if cache is None or cache.k != k or not _same_point(cache.theta_k, theta_k):
        if theta_k is None:
            return None
        point = agent.objective.at(theta_k)
        pairs = point.leading_eigenpairs(pairs_until_renewal(shed, agent, k), shed.kernel)
        cache = Spectrum(k, theta_k, pairs, point.trace() if shed.rho.needs_trace else 0.0)
    pairs = cache.pairs
    while pairs.q < q and not pairs.complete:  # the schedule foresaw too few
        point = agent.objective.at(cache.theta_k)
        pairs = pairs.followed_by(point.leading_eigenpairs(2 * pairs.q + 1, shed.kernel))
    return cache if pairs is cache.pairs else replace(cache, pairs=pairs)


def _same_point(held: Vector, theta: Vector | None) -> bool:
    return theta is None or held is theta or np.array_equal(held, theta)


def pairs_until_renewal(shed: Shed, agent: Agent, k: int) -> int:
    """The number of pairs that the link carries until the renewal after k, as far as the schedule tells.

    If the link carries many, all n pairs are computed: from some fraction of n on that costs the same.
    """
    n, t, need = agent.objective.dim, k, shed.pairs_per_round(agent, k)
    most = shed.kernel.few(n)
    while need <= most and t < k + shed.kernel.look_ahead:
        t += 1
        if shed.renewal(History(t, n, (), k), agent.name):
            break
        need += shed.pairs_per_round(agent, t)
    return n if shed.rho.needs_all_eigenvalues or need > most else need
