"""Kaplan-Meier and Nelson-Aalen curves from counts of a life table, with what the table leaves open."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import digamma

from fedshed.linalg.arrays import Vector
from fedshed.objectives.life_table import Counts, LifeTable

HALF = 0.5 * (1 + 1e-12)  # a median is where a curve is at most this: rounding does not move it


class Curve(Struct, frozen=True):
    """The survival curve of one group at the end of each cell, and between what bounds it would be exact.

    `survival` is prod (1 - d_k / Y_k) with the exposed Y_k = N_k + (e_k - c_k) / 2, the life table's estimate
    (Cutler and Ederer 1958), which is that of Kaplan and Meier (1958) where a cell is one time: Y_k = N_k.
    `lowest` and `highest` bound the curve of Kaplan and Meier that all rows together would give:

        prod (1 - d_k / (N_k - c_k)) <= S(t_k) <= prod (1 - d_k / (N_k + e_k)).

    Proof.  With ties 1 - d / Y = (1 - 1/Y)(1 - 1/(Y-1)) ... (1 - 1/(Y-d+1)), so tied events may be taken one
    after the other.  At the i-th event of a cell, Y = N - (i - 1) - C + E are at risk, with C of its c
    censorings and E of its e entries before it, so N - c - (i - 1) <= Y <= N + e - (i - 1); 1 - 1/Y
    increases in Y, and the product over i = 1, ..., d telescopes to the two bounds (the lower one is 0 where
    N - c < d).  Without late entries both are reached: by all events before the cell's censorings, and after.
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
        """How far the curve can be from the one of all rows, at the ends of the cells."""
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
        """The first time with S <= 1/2, and its interval by the band; inf where there is none.

        Brookmeyer and Crowley (1982), with the band of `band`.
        """
        lower, upper = self.band(level)
        return _first(self.times, self.survival), _first(self.times, lower), _first(self.times, upper)

    def median_bounds(self) -> tuple[float, float]:
        """Between which times the median of all rows is: after the first and until the second."""
        k = int(np.argmax(np.append(self.lowest <= HALF, True)))
        before = np.append(np.concatenate([[0.0], self.times]), np.inf)
        points = np.append(self._points, False)
        return float(before[k + 1] if points[k] else before[k]), _first(self.times, self.highest)

    def restricted_mean(self, until: float) -> tuple[float, float, float, float]:
        """The mean time lived until a time, its error, and between what bounds that of all rows is.

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
    starting, points = table.starting, table.points
    return [
        curve(table.times, points, starting[g], table.events[g], table.censored[g], table.entered[g])
        for g in range(len(starting))
    ]


def curve(times: Vector, points: NDArray[np.bool_], N: Counts, d: Counts, c: Counts, e: Counts) -> Curve:
    """The curve of one group, from those at risk at the start of each cell, events, censorings, entries."""
    Y = exposed(points, N, d, c, e)
    fewest, most = np.where(points, N, N - c), np.where(points, N, N + e)
    step, square = _ratio(d, Y), _ratio(d, Y * Y)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.where(d > 0, d / (Y * (Y - d)), 0.0)
    tied = np.where(points, _ratio(d, N), _harmonic(fewest, d))
    return Curve(
        times, N.astype(float), d.astype(float), c.astype(float), Y, _product(1 - step),
        np.cumsum(greenwood), np.cumsum(step), np.cumsum(square),
        _product(1 - np.minimum(_ratio(d, fewest, none=1.0), 1)), _product(1 - _ratio(d, most)),
        np.cumsum(_ratio(d, most)), np.cumsum(tied),
    )  # fmt: skip


def exposed(points: NDArray[np.bool_], N: Counts, d: Counts, c: Counts, e: Counts) -> Vector:
    """Y = N + (e - c) / 2, or N where a cell is one time; no fewer than have the event."""
    return np.asarray(np.maximum(np.where(points, N, N + (e - c) / 2), d), dtype=np.float64)


def _ratio(a: NDArray[Any], b: NDArray[Any], none: float = 0.0) -> Vector:
    """a / b; 0 where a is 0, and `none` where b alone is not above 0."""
    return np.asarray(np.where(a == 0, 0.0, np.where(b > 0, a / np.where(b > 0, b, 1), none)))


def _product(factors: Vector) -> Vector:
    return np.asarray(np.cumprod(factors), dtype=np.float64)


def _harmonic(N: Counts, d: Counts) -> Vector:
    """1/N + 1/(N-1) + ... + 1/(N-d+1): the largest step of the hazard; inf where there are not so many."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = digamma(N + 1.0) - digamma(N - d + 1.0)
    return np.asarray(np.where(d == 0, 0.0, np.where(d <= N, found, np.inf)))
