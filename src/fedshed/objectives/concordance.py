"""Harrell's concordance: of two rows, does the one with its event first have the larger risk?

A pair is an event and a row of the same stratum that is still at risk then, but for other events at that
time (Harrell 1982, JAMA 247, 2543).  How many rows in a range have a smaller margin is found for all events
together, digit by digit of the margins' ranks, in a time of N log N (a wavelet matrix: Claude and Navarro
2012, SPIRE, 167).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Vector
from fedshed.objectives.risk_sets import RiskSets

Places = NDArray[np.intp]


class PairCounts(NamedTuple):
    """The weight of pairs in which the larger risk has its event first, or last, or both risks are equal."""

    concordant: float
    discordant: float
    tied: float


def pair_counts(risk: RiskSets, z: Vector) -> PairCounts:
    """The pairs of a site's rows, by margins in the order of its risk sets."""
    if not len(risk.deaths):
        return PairCounts(0.0, 0.0, 0.0)
    ranks = np.unique(z, return_inverse=True)[1].reshape(-1)
    ends = risk.ends[risk.stratum_of[risk.group]]
    below, equal, above = _split(
        ranks, risk.weights, ranks[risk.deaths], risk.starts[risk.group] + risk.tied[risk.group], ends
    )
    if risk.truncated:
        late = np.argsort(risk.since, kind="stable")
        since = risk.since[late]
        starts = np.searchsorted(since, risk.group, side="right")
        finish = np.append(risk.begins[1:], len(risk.times))
        last = np.searchsorted(since, finish[risk.stratum_of[risk.group]], side="left")
        b, e, a = _split(ranks[late], risk.weights[late], ranks[risk.deaths], starts, last)
        below, equal, above = below - b, equal - e, above - a
    w = risk.weights[risk.deaths]
    return PairCounts(float(w @ below), float(w @ above), float(w @ equal))


def _split(
    ranks: Places, weights: Vector, asked: Places, starts: Places, ends: Places
) -> tuple[Vector, Vector, Vector]:
    """The weight of entries of each range that are below, at and above the rank asked for."""
    below = _below(ranks, weights, asked, starts, ends)
    upto = _below(ranks, weights, asked + 1, starts, ends)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    return below, upto - below, sums[ends] - sums[starts] - upto


def _below(ranks: Places, weights: Vector, asked: Places, starts: Places, ends: Places) -> Vector:
    """The weight of entries of each range whose rank is below the one asked for."""
    found, left, right = np.zeros(len(asked)), starts.copy(), ends.copy()
    for bit in range(int(ranks.max(initial=0) + 1).bit_length() - 1, -1, -1):
        ones = (ranks >> bit) & 1
        zeros = np.concatenate([[0], np.cumsum(1 - ones)])
        sums = np.concatenate([[0.0], np.cumsum(weights * (1 - ones))])
        up = ((asked >> bit) & 1).astype(bool)
        found += np.where(up, sums[right] - sums[left], 0.0)
        to_left, to_right = zeros[left], zeros[right]
        left = np.where(up, zeros[-1] + left - to_left, to_left)
        right = np.where(up, zeros[-1] + right - to_right, to_right)
        order = np.argsort(ones, kind="stable")
        ranks, weights = ranks[order], weights[order]
    return found
