"""Rows the Master holds by the thousand: in four bytes a number, and their Gram matrix without a stack.

An entry of a unit vector needs no exponent: as a 32-bit integer times one scale a row it is 30 to 70 times
more precise than as a float32, in the same memory (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fedshed.arrays import Matrix, Scalars, Vector

CHANGE = 1e-7  # of a direction, relative: what short rows may cost at most
LONGEST = 1.01  # norm of a row up to which it may be short; of V too, where rows are orthogonal
SHARE = 1 / 8  # of what is left of the bound: a row that takes more waits for smaller ones
LEVELS = np.iinfo(np.int32).max


class Short(Struct, frozen=True):
    """Which of the first rows are short: row j is scale_j times its integers, or whole where scale_j = 0.

    Rows V as eigenvectors of values lambda move the solution of (V'WV + D) p = g, W <= diag(lambda), D >= mu,
    by at most 2 ||V|| ||Lambda E|| / mu of itself, E the rounding of V: |E_jk| <= scale_j / 2.
    """

    levels: bytes = b""  # int32, row by row: a state is plain data
    scales: Scalars = field(default_factory=lambda: np.zeros(0))

    def merged(self, whole: Matrix) -> Matrix:
        """All rows in float64, in order; those after the last one decided on are whole."""
        short = self.scales > 0
        short = np.append(short, np.zeros(len(whole) - np.count_nonzero(~short), dtype=bool))
        rows = np.empty((len(short), whole.shape[1]))
        rows[~short] = whole
        rows[short] = np.frombuffer(self.levels, dtype="<i4").reshape(-1, whole.shape[1])
        rows[short] *= self.scales[self.scales > 0][:, None]
        return rows

    def joined(self, whole: Matrix, values: Vector, mu: float, orthogonal: bool) -> tuple[Short, Matrix]:
        """With the rows not decided on yet, short as far as the direction moves by less than CHANGE."""
        old = np.count_nonzero(self.scales == 0)
        rows = whole[old:]
        scales = np.abs(rows).max(axis=1, initial=0.0) / LEVELS
        costs = _moved(np.append(self.scales, scales), values, whole.shape[1], mu)
        short = _affordable(costs, self.scales > 0, power=2 if orthogonal else 1)
        short &= (scales > 0) & (np.linalg.norm(rows, axis=1) <= LONGEST)
        levels = np.rint(rows[short] / scales[short][:, None]).astype("<i4")
        scales = np.append(self.scales, np.where(short, scales, 0.0))
        return Short(self.levels + levels.tobytes(), scales), np.concatenate([whole[:old], rows[~short]])


def _moved(scales: Scalars, values: Vector, n: int, mu: float) -> Vector:
    """The part of CHANGE that each row takes when it is short: 2 ||V|| lambda_j ||e_j|| / (mu CHANGE)."""
    twice = 2.01  # the square of E, and p for the p it moves to, are far below a hundredth
    moved: Vector = twice * LONGEST * values * scales * (np.sqrt(n) / 2) / (mu * CHANGE)
    return moved


def _affordable(costs: Vector, short: NDArray[np.bool_], power: int) -> NDArray[np.bool_]:
    """Which of the rows after the old ones fit: errors of orthogonal rows add up in squares."""
    left = 1 - float(np.sum(costs[: len(short)][short] ** power))
    chosen = []
    for cost in costs[len(short) :] ** power:
        chosen.append(bool(cost <= SHARE * left))
        left -= cost if chosen[-1] else 0.0
    return np.array(chosen, dtype=bool)


def weighted_gram(blocks: Iterable[tuple[Matrix, Vector]], n: int) -> Matrix:
    """sum V' diag(w) V over blocks (V, w), w >= 0; a few n rows are stacked at a time, never all."""
    total = np.zeros((n, n))
    for U in _stacks(blocks, 4 * n):
        total += U.T @ U
    return total


def _stacks(blocks: Iterable[tuple[Matrix, Vector]], size: int) -> Iterator[Matrix]:
    """The rows sqrt(w_j) v_j, stacked until there are `size` of them."""
    waiting: list[Matrix] = []
    for V, w in blocks:
        waiting.append(V * np.sqrt(w)[:, None])
        if sum(map(len, waiting)) >= size:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)
