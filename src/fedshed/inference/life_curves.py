"""Kaplan-Meier and Nelson-Aalen curves from counts of a life table, with bounds on their errors."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import digamma

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives.life_table import KINDS, LifeTable

HALF = 0.5 * (1 + 1e-12)  # a median is where a curve is at most this: rounding does not move it


class Curve(Struct, frozen=True):
    """The survival curve of one group at the end of each cell, with bounds on the curve of all rows.

    `survival` is prod (1 - d_k / Y_k) with the exposed Y_k = N_k + (e_k - c_k) / 2, the life table's estimate
    (Cutler and Ederer 1958), which is that of Kaplan and Meier (1958) where a cell is one time: Y_k = N_k.
    `lowest` and `highest` bound the curve of Kaplan and Meier that all rows together would give, at t_k:

        prod (1 - d_k / (N_k - c_k)) <= S(t_k) <= prod (1 - d_k / (N_k + e_k)).

    Proof.  With ties 1 - d / Y = (1 - 1/Y)(1 - 1/(Y-1)) ... (1 - 1/(Y-d+1)), so tied events may be taken one
    after the other.  At the i-th event of a cell, Y = N - (i - 1) - C + E are at risk, with C of its c
    censorings and E of its e entries before it, so N - c - (i - 1) <= Y <= N + e - (i - 1); 1 - 1/Y
    increases in Y, and the product over i = 1, ..., d telescopes to the two bounds (the lower one is 0 where
    N - c < d).  Without late entries both are reached: by all events before the cell's censorings, and after.

    Where a site told some counts for several cells together, the same holds for each of its blocks of cells
    (a, b] with d events: when the i-th of them happens, at least those until a of all others have left and at
    most those until b, and i - 1 of its own, so that with the least and the largest counts until then

        most = n + E_high(b) - D_low(a) - C_low(a),    fewest = n + E_low(a) - (D_high(b) - d) - C_high(b)

    take the places of N + e and N - c.  The upper bound has the blocks that end until t, the lower one those
    that begin before t.
    """

    times: Vector
    at_risk: Vector  # at the beginning of each cell
    events: Vector
    censored: Vector
    exposed: Vector
    survival: Vector
    log_variance: Vector  # of log S: Greenwood's sum d / (Y (Y - d)) (1926)
    hazard: Vector  # cumulative: sum d / Y (Nelson 1969, Aalen 1978)
    hazard_variance: Vector  # sum d / Y^2
    lowest: Vector
    highest: Vector
    lowest_hazard: Vector
    highest_hazard: Vector

    @property
    def std_err(self) -> Vector:
        """Greenwood's error of S; nan where S = 0."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.survival * np.sqrt(self.log_variance))

    @property
    def error_bound(self) -> float:
        """The largest possible distance from the curve of all rows, at the ends of the cells."""
        return float(np.max([self.highest - self.survival, self.survival - self.lowest], initial=0.0))

    def band(self, level: float = 0.95, kind: str = "log-log") -> tuple[Vector, Vector]:
        """The pointwise confidence band: S^exp(-+ z s / |log S|) (Kalbfleisch, Prentice 1980), or plain."""
        z, S, s = NormalDist().inv_cdf((1 + level) / 2), self.survival, np.sqrt(self.log_variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "plain":
                return np.clip(S - z * s * S, 0, 1), np.clip(S + z * s * S, 0, 1)
            width = np.where(S < 1, z * s / -np.log(S), 0.0)
            return np.asarray(S ** np.exp(width)), np.asarray(S ** np.exp(-width))

    def hazard_band(self, level: float = 0.95) -> tuple[Vector, Vector]:
        """The pointwise band of the cumulative hazard: H exp(-+ z s / H)."""
        z, H = NormalDist().inv_cdf((1 + level) / 2), self.hazard
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.where(H > 0, z * np.sqrt(self.hazard_variance) / H, 0.0)
        return np.asarray(H * np.exp(-width)), np.asarray(H * np.exp(width))

    def median(self, level: float = 0.95) -> tuple[float, float, float]:
        """The first time with S <= 1/2, and its interval from the band; inf if there is none.

        Brookmeyer and Crowley (1982), with the band of `band`.
        """
        lower, upper = self.band(level)
        return _first(self.times, self.survival), _first(self.times, lower), _first(self.times, upper)

    def median_bounds(self) -> tuple[float, float]:
        """Two times; the median of all rows is after the first, and at the latest at the second."""
        k = int(np.argmax(np.append(self.lowest <= HALF, True)))
        before = np.append(np.concatenate([[0.0], self.times]), np.inf)
        points = np.append(self._points, False)
        return float(before[k + 1] if points[k] else before[k]), _first(self.times, self.highest)

    def restricted_mean(self, until: float) -> tuple[float, float, float, float]:
        """The restricted mean survival time until a time, its error, and bounds on that of all rows.

        The area under S; the variance is sum_k A_k^2 d_k / (Y_k (Y_k - d_k)), A_k being the area after t_k.
        """
        last = self.times < until
        nodes = np.concatenate([[0.0], self.times[last], [until]])
        S, end = np.interp(nodes, *self._line), int(np.searchsorted(self.times, until))
        areas = np.diff(nodes) * (S[:-1] + S[1:]) / 2
        after = np.cumsum(areas[::-1])[::-1][1:]
        steps = np.diff(self.log_variance[last], prepend=0.0)
        used = (after > 0) & np.isfinite(steps)
        low = np.append(self.lowest[last], self.lowest[min(end, len(self.times) - 1)])
        high = np.concatenate([[1.0], self.highest[last]])
        variance = float(np.square(after[used]) @ steps[used])
        return float(areas.sum()), variance**0.5, float(np.diff(nodes) @ low), float(np.diff(nodes) @ high)

    @property
    def _line(self) -> tuple[Vector, Vector]:
        """The times and the curve, from (0, 1)."""
        return np.concatenate([[0.0], self.times]), np.concatenate([[1.0], self.survival])

    @property
    def _points(self) -> NDArray[np.bool_]:
        return np.asarray(np.nextafter(self.times, -np.inf) == np.concatenate([[-np.inf], self.times[:-1]]))


def _first(times: Vector, S: Vector) -> float:
    below = np.flatnonzero(S <= HALF)
    return float(times[below[0]]) if len(below) else float("inf")


def curves(table: LifeTable) -> list[Curve]:
    """The curve of each group."""
    return [curve(table, group) for group in range(len(table.beyond))]


def curve(table: LifeTable, group: int) -> Curve:
    """The curve of one group."""
    d, c, e = (getattr(table, kind)[group] for kind in KINDS)
    N = table.starting[group]
    Y = exposed(table.points, N, d, c, e)
    step = _ratio(d, Y)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.where(d > 0, d / (Y * (Y - d)), 0.0)
    lowest, highest, least_hazard, most_hazard = _bounds(table, group)
    S = np.clip(_product(1 - step), lowest, highest)
    H = np.clip(np.cumsum(step), least_hazard, most_hazard)
    return Curve(
        table.times, N, d, c, Y, S, np.cumsum(greenwood), H, np.cumsum(_ratio(d, Y * Y)), lowest, highest,
        least_hazard, most_hazard,
    )  # fmt: skip


def _bounds(table: LifeTable, group: int) -> tuple[Vector, Vector, Vector, Vector]:
    """The lowest and the highest curve, and the same of the cumulative hazard, at the end of each cell."""
    first, last, d = _event_blocks(table, group)
    fewest, most = _at_risk_bounds(table, group, first, last, d)
    size = len(table.times)
    factors = 1 - np.minimum(_ratio(d, fewest, none=1.0), 1), 1 - _ratio(d, most)
    lowest, highest = np.ones(size), np.ones(size)
    np.multiply.at(lowest, first, factors[0])
    np.multiply.at(highest, last, factors[1])
    single = (first == last) & table.points[first]
    steps = np.where(single & (fewest == most), _ratio(d, most), _harmonic(fewest, d)), _ratio(d, most)
    largest, least = np.bincount(first, steps[0], size), np.bincount(last, steps[1], size)
    return _product(lowest), _product(highest), np.cumsum(least), np.cumsum(largest)


def _event_blocks(table: LifeTable, group: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Vector]:
    """The first cell, the last and the events of each block of cells whose events are known together."""
    single = table.single("events", group)
    cells, blocks = np.flatnonzero(single), list(table.of("events", group))
    first = np.array([block.first for block in blocks], dtype=np.intp)
    last = np.array([block.last for block in blocks], dtype=np.intp)
    counts = np.array([block.count for block in blocks], dtype=np.float64)
    return np.append(cells, first), np.append(cells, last), np.append(single[cells], counts)


def _at_risk_bounds(
    table: LifeTable, group: int, first: NDArray[np.intp], last: NDArray[np.intp], d: Vector
) -> tuple[Vector, Vector]:
    """How many are at risk when the first event of each block happens: at least, and at most.

    In a cell of one time, entries are not yet at risk at the events, and censorings still are.
    """
    n = table.subjects[group] - table.entered[group].sum()
    (D, D_), (C, C_), (E, E_) = (
        (np.append(0.0, low), np.append(0.0, high))
        for low, high in (table.bounds(kind, group) for kind in KINDS)
    )
    until = np.where((first == last) & table.points[first], first, last + 1)
    fewest = n + E[first] - (D_[last + 1] - d) - C_[until]
    return fewest, n + E_[until] - D[first] - C[first]


def exposed(points: NDArray[np.bool_], N: Matrix, d: Matrix, c: Matrix, e: Matrix) -> Matrix:
    """Y = N + (e - c) / 2, or N where a cell is one time; no fewer than have the event."""
    return np.asarray(np.maximum(np.where(points, N, N + (e - c) / 2), d), dtype=np.float64)


def _ratio(a: NDArray[Any], b: NDArray[Any], none: float = 0.0) -> Vector:
    """a / b; 0 where a is 0, and `none` where b alone is not above 0."""
    return np.asarray(np.where(a == 0, 0.0, np.where(b > 0, a / np.where(b > 0, b, 1), none)))


def _product(factors: Vector) -> Vector:
    return np.asarray(np.cumprod(factors), dtype=np.float64)


def _harmonic(N: Vector, d: Vector) -> Vector:
    """1/N + 1/(N-1) + ... + 1/(N-d+1): the largest step of the hazard; inf where there are not so many."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = digamma(N + 1.0) - digamma(N - d + 1.0)
    return np.asarray(np.where(d == 0, 0.0, np.where(d <= N, found, np.inf)))
