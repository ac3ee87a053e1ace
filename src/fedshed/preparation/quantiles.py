"""Quantiles over all sites, from a histogram of each: where the knots of a spline lie.

A site cuts its sorted rows into blocks of at least `least` rows each and at most `MOST` blocks, and tells of
each block its ends and its rows.  An end is rounded outwards, to a unit that spans at least the `least` rows
nearest to it: so no end singles out a row, and neither do the smallest and the largest value.  What a site
tells depends on its rows alone, not on what it was asked before, so nothing is gained by asking again.
"""

from __future__ import annotations

from math import floor, log10

import numpy as np
from numpy.typing import NDArray

MOST = 100  # blocks of a site: a rank is then known to 1 %, if the site has rows enough
_FINEST = 1000  # units in the middle four fifths of a site's rows, at most
_ROUNDED = 50  # units between two knots, at least
_MOST_BISECTIONS = 500


def blocks(x: NDArray[np.float64], least: int) -> NDArray[np.float64]:
    """Lower end, upper end and rows of each block of a site's values."""
    x = np.sort(x)
    n, size = len(x), max(least, -(-len(x) // MOST))
    fine = _spread(x) / _FINEST
    found, i = [], 0
    while i < n:
        j = int(np.searchsorted(x, x[min(i + size, n) - 1], side="right"))  # equal values stay together
        j = n if n - j < size else j
        near, far = x[min(i + least, j) - 1] - x[i], x[j - 1] - x[max(j - least, i)]
        low, high = _outwards(x[i], max(near, fine), -1), _outwards(x[j - 1], max(far, fine), 1)
        found.append((low, high, float(j - i)))
        i = j
    return np.array(found)


def quantiles(
    found: NDArray[np.float64], shares: NDArray[np.float64], lower: float, upper: float
) -> tuple[NDArray[np.float64], float]:
    """Where these shares of all rows lie below, rounded to few digits; and the largest error of a share.

    At a quantile q of share p at most p + e of all rows lie below q, and at least p - e at or below it; e is
    what the blocks do not tell.
    """
    targets = shares * found[:, 2].sum()
    low, high = np.full(len(shares), lower), np.full(len(shares), upper)
    for _ in range(_MOST_BISECTIONS):
        middle = low / 2 + high / 2
        if ((middle <= low) | (middle >= high)).all():  # no number lies between them
            break
        reached = _rows_below(found, middle) >= targets
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    q = _rounded(high, lower, upper)
    return q, _error(found, q, targets)


def _rows_below(found: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """An estimate of the rows at or below each q: the rows of a block spread evenly between its ends."""
    low, high, rows = found.T
    width = high - low
    share = (q[:, None] - low) / np.where(width > 0, width, 1.0)
    within = np.where(width > 0, np.clip(share, 0.0, 1.0), q[:, None] >= low)
    return np.asarray(within @ rows)


def _error(found: NDArray[np.float64], q: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """At most how far, as a share of all rows, the ranks of q are from the targets."""
    low, high, rows = found.T
    below, at_most = (low < q[:, None]) @ rows, (high <= q[:, None]) @ rows
    return float(np.maximum(below - targets, targets - at_most).max(initial=0.0) / rows.sum())


def _rounded(q: NDArray[np.float64], lower: float, upper: float) -> NDArray[np.float64]:
    """Each quantile in few digits, by much less than the distance to its neighbours."""
    gaps = np.diff([lower, *q, upper])
    nearest = np.minimum(gaps[:-1], gaps[1:])
    pairs = zip(q.tolist(), (nearest / _ROUNDED).tolist(), strict=True)
    return np.array([_nearest(value, unit) if unit > 0 else value for value, unit in pairs])


def _spread(x: NDArray[np.float64]) -> float:
    """The width of the middle four fifths of sorted values, or of all, or their size: never 0."""
    n = len(x) - 1
    middle = x[n - n // 10] - x[n // 10]
    return float(middle or x[-1] - x[0] or abs(x[0]) or 1.0)


def _outwards(value: float, least: float, side: int) -> float:
    """The next multiple below (side -1) or above (side 1) of a round unit not less than `least`."""
    digit, power = _round_unit(max(least, abs(value) * 1e-12))
    k = floor(value / (digit * 10.0**power)) if side < 0 else -floor(-value / (digit * 10.0**power))
    while (beyond := _times(k, digit, power)) * side < value * side:  # what division has rounded away
        k += side
    return beyond


def _nearest(value: float, most: float) -> float:
    """The nearest multiple of a round unit that is about `most`, never twice as large."""
    digit, power = _round_unit(most / 2)
    return _times(round(value / (digit * 10.0**power)), digit, power)


def _round_unit(least: float) -> tuple[int, int]:
    """The smallest of 1, 2, 5, 10, ... times a power of ten that is not less than `least`."""
    power = floor(log10(max(least, 1e-290)))
    digit = next((d for d in (1, 2, 5) if d * 10.0**power >= least), 10)
    return digit, power


def _times(k: int, digit: int, power: int) -> float:
    """k * digit * 10^power, rounded once."""
    return k * digit / 10**-power if power < 0 else float(k * digit * 10**power)
