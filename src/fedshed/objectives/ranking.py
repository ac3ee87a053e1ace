"""Pairs of rows of two classes, counted from the weight of each class at each score or in each bin.

Scores are compared on a grid that all sites share: centre + scale q_k, q_k being quantiles of the normal
distribution rounded to six digits, so that every machine has the same edges to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedshed.linalg.arrays import Vector

Ends = NDArray[np.intp]
EMPTY = 20  # bins in a step of empty ones


def concordance(positive: Vector, negative: Vector) -> tuple[float, float | None]:
    """U = sum over pairs of 1(s+ > s-) + 1(s+ = s-) / 2, and DeLong's variance of U / (W+ W-).

    Both arrays are by score, in increasing order (DeLong, DeLong and Clarke-Pearson 1988).  The variance is
    None with fewer than two rows of a class.
    """
    ups, downs = float(positive.sum()), float(negative.sum())
    below = np.cumsum(negative) - negative / 2
    above = ups - np.cumsum(positive) + positive / 2
    pairs = float(positive @ below)
    if ups <= 1 or downs <= 1:
        return pairs, None
    area = pairs / (ups * downs)
    first = float(positive @ np.square(below / downs - area)) / (ups - 1)
    second = float(negative @ np.square(above / ups - area)) / (downs - 1)
    return pairs, first / ups + second / downs


def edges_of(centre: float, scale: float, bins: int, cut: float | None = None) -> Vector:
    """The edges of a grid of `bins` bins, and the score at which two classes are told apart."""
    quantiles = np.round(ndtri(np.arange(1, bins) / bins), 6)
    edges = centre + scale * quantiles
    return np.unique(edges if cut is None else np.append(edges, cut))


def bin_of(scores: Vector, edges: Vector) -> Ends:
    """The bin of each score: (e_{k-1}, e_k], so that scores in different bins are never equal."""
    return np.searchsorted(edges, scores, side="left").astype(np.intp)


def block_ends(counts: NDArray[np.intp], least: int) -> list[int]:
    """Where blocks of bins end that have at least so many rows each; all bins where there are too few."""
    ends, seen = list[int](), 0
    for k, count in enumerate(counts.tolist()):
        seen += count
        if seen >= least:
            ends.append(k + 1)
            seen = 0
    return [*ends[:-1], len(counts)]


def ends_beside(counts: NDArray[np.intp], least: int, cut: int) -> Ends:
    """Block ends that include the cut between two bins, where either side has no row or enough of them."""
    sides = counts[:cut], counts[cut:]
    if 0 < cut < len(counts) and all(side.sum() == 0 or side.sum() >= least for side in sides):
        left, right = (block_ends(side, least) for side in sides)
        return _without_empty([*left, *(cut + end for end in right)], counts)
    return _without_empty(block_ends(counts, least), counts)


def _without_empty(ends: list[int], counts: NDArray[np.intp]) -> Ends:
    """The same blocks with empty bins at either end as blocks of 0 rows, in steps of EMPTY bins.

    A step hides in which of its bins the first row is.
    """
    found, start = list[int](), 0
    for end in ends:
        filled = np.flatnonzero(counts[start:end])
        if len(filled):
            low = max(start, (start + int(filled[0])) // EMPTY * EMPTY)
            high = min(end, -(-(start + int(filled[-1]) + 1) // EMPTY) * EMPTY)
            found += [place for place in (low, high) if start < place < end and place not in found]
        found.append(end)
        start = end
    return np.array(found, dtype=np.intp)


def summed(values: NDArray[np.float64], ends: Ends) -> NDArray[np.float64]:
    """The sums over blocks, the last of which ends where the values do."""
    return np.add.reduceat(values, np.concatenate([[0], ends[:-1]]).astype(np.intp), axis=0)
