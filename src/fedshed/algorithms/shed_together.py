"""Eigenpairs of many agents of the SHED family in the plural: what each recalls, and what all send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedshed.linalg.arrays import Vector
from fedshed.objectives.plural import Points
from fedshed.protocol.columns import Columns, Groups, places_of
from fedshed.protocol.conversation import Agent
from fedshed.protocol.messages import Eigenpairs, Share, Update

if TYPE_CHECKING:
    from fedshed.algorithms.shed import Shed, Spectrum

Extent: TypeAlias = tuple[int, int, int, bool]  # k, the pairs from `have` to q, and whether no others follow


def extent(spectrum: Spectrum, share: Share, q: int) -> Extent:
    """Which pairs are sent where the link carries them up to q: up to the last there is."""
    pairs = spectrum.pairs
    q = max(share.have, min(q, pairs.q))
    return share.k, share.have, q, pairs.complete and q >= pairs.q


def renewed_together(
    shed: Shed, agents: Sequence[Agent], caches: Sequence[Any], part: Update, shares: Sequence[Share],
    points: Points, units: Vector | None = None,
) -> list[Any]:  # fmt: skip
    """The caches, with Hessians at theta^t of those agents whose first pairs are drawn together."""
    theta, after = part.theta, list(caches)
    assert theta is not None
    due = [row for row, share in enumerate(shares) if share.more and share.k == part.t]
    due = [row for row in due if caches[row] is None or caches[row].k != part.t]
    needs = {shed.needed(agents[row], part.t) for row in due}
    if len(needs) != 1:
        return after
    for rows, factors in points.dense_factors(due, units):
        spectra = shed.spectra(factors, part.t, theta, *needs)
        if spectra is None:
            break
        for row, spectrum in zip(rows, spectra, strict=True):
            points.count(row)
            after[row] = spectrum
    return after


def pairs_together(
    shed: Shed, agents: Sequence[Agent], caches: Sequence[Any], part: Update, shares: Sequence[Share]
) -> tuple[list[Any], list[tuple[list[int], Columns | None]]]:
    """The caches from which pairs are sent, and the pairs of agents that send as many of one iteration's."""
    ends = [s.have + shed.carried(i, part.t) if s.more else 0 for i, s in zip(agents, shares, strict=True)]
    each = list(zip(agents, caches, shares, ends, strict=True))
    spectra = [_recalled(shed, part, *one) for one in each]
    extents = [
        extent(spectrum, share, q) if share.more and spectrum is not None else None
        for spectrum, (*_, share, q) in zip(spectra, each, strict=True)
    ]
    groups = places_of(extents)
    return spectra, [(rows, _pairs(shed, [spectra[k] for k in rows], extents[rows[0]])) for rows in groups]


def _recalled(shed: Shed, part: Update, agent: Agent, cache: Any, share: Share, q: int) -> Any:
    """The cache with the first q pairs; one that holds them is as it was."""
    if not share.more:
        return cache
    anchor = part.theta if share.k == part.t else share.anchor
    held = cache is not None and cache.k == share.k and (anchor is None or anchor is cache.theta_k)
    if held and (cache.pairs.q >= q or cache.pairs.complete):
        return cache
    assert part.theta is not None
    return shed._recalled(agent, cache, part, share, agent.objective.at(part.theta), q)


def _pairs(shed: Shed, spectra: Sequence[Spectrum], sent: Extent | None) -> Columns | None:
    """The same pairs of each agent, as `Shed` sends them."""
    if sent is None:
        return None
    k, start, q, last = sent
    values = [one.pairs.values[start:q] for one in spectra]
    vectors = [one.pairs.vectors[start:q] for one in spectra]
    count, (rows, n) = len(spectra), vectors[0].shape
    fields = {
        "k": k,
        "start": start,
        "values": np.concatenate(values).reshape(count, rows),
        "vectors": np.concatenate(vectors).reshape(count, rows, n),
        "rho": shed.rhos_of(spectra, q),
        "last": last,
    }
    return Columns(Eigenpairs, fields, count)


def with_pairs(local: Columns, pairs: Sequence[tuple[list[int], Columns | None]]) -> Groups:
    """Costs and gradients of all agents, each with its pairs."""
    if len(pairs) == 1:
        return [(rows, local.having(pairs=found)) for rows, found in pairs]
    return [(rows, local.rows(np.array(rows)).having(pairs=found)) for rows, found in pairs]
