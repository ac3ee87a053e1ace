"""AUC and ROC curve from the counts of each site: exact where scores are known, else with a bound.

Pairs of rows of one site are counted there.  Of rows of two sites only their blocks of bins are known: where
the blocks of two rows overlap, their pair counts one half, which is wrong by at most one half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import expit, logit

from fedshed.linalg.arrays import Vector
from fedshed.objectives.ranking import edges_of
from fedshed.solve.evaluating import Tabulated, Told

MOST_SHOWN = 200  # points of a ROC curve
Z = 1.959963984540054  # of intervals with 95 percent


class Measure(Struct, frozen=True, omit_defaults=True):
    """A number, its standard error, and the largest error that merged counts may cause.

    A number that cannot be computed is None.  A share has the ends of its own interval.
    """

    value: float | None
    std_err: float | None = None
    bound: float = 0.0
    low: float | None = None
    high: float | None = None

    def interval(self) -> tuple[float, float] | None:
        """The 95 percent interval, widened by the bound."""
        if self.value is None or self.std_err is None:
            return None
        if self.low is not None and self.high is not None:
            return self.low, self.high
        far = Z * self.std_err + self.bound
        return self.value - far, self.value + far


class Blocks(Struct, frozen=True):
    """Rows of one class: the weight of each block, and the bins where it begins and ends."""

    weights: Vector
    low: NDArray[np.intp]
    high: NDArray[np.intp]  # exclusive

    @property
    def total(self) -> float:
        """The weight of all of them."""
        return float(self.weights.sum())

    def above(self, bins: NDArray[np.intp]) -> tuple[Vector, Vector]:
        """The weight that is surely in these bins or above them, and what may be, besides."""
        surely = _weight_from(self.low, self.weights, bins)
        perhaps = _weight_from(self.high, self.weights, bins + 1)
        return surely, perhaps - surely


class Counts(Struct, frozen=True):
    """Both classes of one site, or of all."""

    positive: Blocks
    negative: Blocks


class Roc(Struct, frozen=True):
    """Shares of each class above a score, from the largest score down, with the 95 percent band of the first.

    `bound` is the largest error that the share of positives may have because bins were merged.
    """

    scores: tuple[float, ...]
    false_positive: tuple[float, ...]
    true_positive: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    bound: tuple[float, ...]


def _weight_from(places: NDArray[np.intp], weights: Vector, bins: NDArray[np.intp]) -> Vector:
    """The weight of blocks whose place is at least each bin."""
    order = np.argsort(places, kind="stable")
    rest = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    return np.asarray(rest[np.searchsorted(places[order], bins, side="left")])


def counts_of(told: Told) -> tuple[dict[str, Counts], Vector]:
    """The blocks of each site on common bins, and the scores between these."""
    assert told.grid is not None
    if told.bins:
        edges = edges_of(*told.grid[:2], told.bins, told.grid[2])
        return {site: _on_grid(table) for site, table in sorted(told.tables.items())}, edges
    known = [table.positive_ends for table in told.tables.values()]
    scores = np.unique(np.concatenate([one for one in known if one is not None]))
    found = {site: _at_scores(table, scores) for site, table in sorted(told.tables.items())}
    return found, scores


def _on_grid(table: Tabulated) -> Counts:
    assert table.positive is not None
    assert table.negative is not None
    return Counts(_blocks(table.positive, table.positive_ends), _blocks(table.negative, table.negative_ends))


def _blocks(weights: Vector, ends: Vector | None) -> Blocks:
    high = (np.arange(len(weights)) + 1 if ends is None else ends).astype(np.intp)
    return Blocks(weights, np.append(0, high[:-1]).astype(np.intp), high)


def _at_scores(table: Tabulated, scores: Vector) -> Counts:
    assert table.positive is not None
    assert table.negative is not None
    assert table.positive_ends is not None
    low = np.searchsorted(scores, table.positive_ends).astype(np.intp)
    return Counts(Blocks(table.positive, low, low + 1), Blocks(table.negative, low, low + 1))


def together(sites: Mapping[str, Counts]) -> Counts:
    """The blocks of all sites."""

    def joined(blocks: list[Blocks]) -> Blocks:
        parts = zip(*((one.weights, one.low, one.high) for one in blocks), strict=True)
        return Blocks(*map(np.concatenate, parts))

    each = [sites[site] for site in sorted(sites)]
    return Counts(joined([one.positive for one in each]), joined([one.negative for one in each]))


def surely_concordant(counts: Counts) -> tuple[float, float]:
    """The pairs whose positive row is surely above, and those of which nothing is known."""
    surely, _ = counts.positive.above(counts.negative.high)
    downs = counts.negative.weights
    # A positive block that begins before the end of a negative one and ends behind its beginning overlaps it.
    below = counts.positive.total - sum(counts.positive.above(counts.negative.low))
    certain = float(downs @ surely)
    return certain, max(0.0, counts.positive.total * counts.negative.total - certain - float(downs @ below))


def auc(told: Told, sites: Mapping[str, Counts], alone: bool) -> Measure:
    """The area under the ROC curve of all rows; pairs within a site are those that it counted."""
    whole = together(sites)
    pairs = whole.positive.total * whole.negative.total
    if pairs <= 0:
        return Measure(None)
    certain, unknown = surely_concordant(whole)
    concordant = certain + unknown / 2
    if alone:  # pairs within each site are known better than its blocks tell
        for site, counts in sorted(sites.items()):
            inside, doubtful = surely_concordant(counts)
            concordant += told.tables[site].pairs - inside - doubtful / 2
            unknown -= doubtful
    bound = max(0.0, unknown) / (2 * pairs) if told.bins else 0.0  # at one score, pairs are ties
    return area(concordant / pairs, _error(whole), bound)


def _error(counts: Counts) -> float | None:
    """DeLong's standard error, from the share of the other class below each block."""
    ups, downs = counts.positive, counts.negative
    if ups.total <= 1 or downs.total <= 1:
        return None
    more, _ = ups.above(downs.high)
    reach = sum(ups.above(downs.low))  # surely or perhaps at the beginning of the block or above it
    above = (more + np.asarray(reach)) / 2 / ups.total
    sure = downs.total - sum(downs.above(ups.low))
    all_below = downs.total - downs.above(ups.high)[0]
    below = (np.asarray(sure) + all_below) / 2 / downs.total
    area = float(ups.weights @ below) / ups.total
    first = float(ups.weights @ np.square(below - area)) / (ups.total - 1)
    second = float(downs.weights @ np.square(above - area)) / (downs.total - 1)
    return float(np.sqrt(max(0.0, first / ups.total + second / downs.total)))


def area(value: float, error: float | None, bound: float = 0.0) -> Measure:
    """An area under a curve, with its interval on the scale of log odds (Pepe 2003, 5.2.5).

    An area of 0 or 1 has no standard error, because DeLong's is 0 there and carries no information.
    """
    if error is None or not 0 < value < 1:
        return Measure(value, None, bound)
    far = Z * error / (value * (1 - value))
    low, high = expit(logit(value) - far) - bound, expit(logit(value) + far) + bound
    return Measure(value, error, bound, max(0.0, float(low)), min(1.0, float(high)))


def share(part: float, whole: float, bound: float) -> Measure:
    """A share of rows with Wilson's interval; the bound is of the part."""
    if whole <= 0:
        return Measure(None)
    value = part / whole
    low, high = (float(end) for end in wilson(np.float64(value), whole))
    error = float(np.sqrt(max(0.0, value * (1 - value)) / whole))
    far = bound / whole
    return Measure(value, error, far, max(0.0, low - far), min(1.0, high + far))


def within(tables: Mapping[str, Tabulated]) -> Measure:
    """The share of concordant pairs among pairs of rows of one site."""
    products = sum(tables[site].products for site in sorted(tables))
    pairs = sum(tables[site].pairs for site in sorted(tables))
    return Measure(pairs / products if products > 0 else None)


def wilson(share: Any, count: Any) -> tuple[Any, Any]:
    """Wilson's 95 percent interval of a share (Wilson 1927)."""
    n = np.maximum(np.asarray(count, dtype=np.float64), np.finfo(float).tiny)
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(np.maximum(share * (1 - share), 0.0) / n + (Z / (2 * n)) ** 2)
    low, high = np.minimum(middle - half, share), np.maximum(middle + half, share)  # but for rounding
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def above_cut(counts: Counts, edges: Vector, cut: float) -> tuple[Measure, Measure]:
    """The weight of positives and of negatives above the cut, with half of what may be as the bound."""
    bins = np.array([int(np.searchsorted(edges, cut, side="right"))])

    def measured(blocks: Blocks) -> Measure:
        surely, perhaps = (float(part[0]) for part in blocks.above(bins))
        return Measure(surely + perhaps / 2, None, perhaps / 2)

    return measured(counts.positive), measured(counts.negative)


def roc_curve(counts: Counts, edges: Vector) -> Roc | None:
    """The curve over all scores of the grid, thinned to few points where it does not change."""
    ups, downs = counts.positive.total, counts.negative.total
    if ups <= 0 or downs <= 0:
        return None
    bins = np.arange(len(edges) + 2).astype(np.intp)
    (sure_up, may_up), (sure_down, may_down) = (
        side.above(bins) for side in (counts.positive, counts.negative)
    )
    tpr, fpr = (sure_up + may_up / 2) / ups, (sure_down + may_down / 2) / downs
    scores = np.concatenate([[edges[0] if len(edges) else 0.0], edges, [edges[-1] if len(edges) else 0.0]])
    moved = np.append(True, (np.diff(tpr) != 0) | (np.diff(fpr) != 0))
    kept = np.flatnonzero(moved)
    if len(kept) > MOST_SHOWN:
        kept = kept[np.unique(np.round(np.linspace(0, len(kept) - 1, MOST_SHOWN)).astype(int))]
    kept = kept[::-1]  # from the largest score down
    low, high = wilson(tpr[kept], ups)
    bound = may_up[kept] / 2 / ups

    def shown(values: Vector) -> tuple[float, ...]:
        return tuple(np.asarray(values, dtype=np.float64).tolist())

    return Roc(
        shown(scores[kept]), shown(fpr[kept]), shown(tpr[kept]),
        shown(np.maximum(low - bound, 0.0)), shown(np.minimum(high + bound, 1.0)), shown(bound),
    )  # fmt: skip
