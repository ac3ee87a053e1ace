"""Rows the Master holds by the thousand: in four bytes a number, and their Gram matrix without a stack.

An entry of a unit vector needs no exponent: as a 32-bit integer times one scale a row it is 30 to 70 times
more precise than as a float32, in the same memory (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Scalars, Vector

CHANGE = 1e-7  # of a direction, relative: what short rows may cost at most
LONGEST = 1.01  # norm of a row up to which it may be short; of V too, where rows are orthogonal
SHARE = 1 / 8  # of what is left of the bound: a row that takes more waits for smaller ones
LEVELS = np.iinfo(np.int32).max
TWICE = 2.01  # the square of E is far below a hundredth of it
TINY = np.finfo(float).tiny  # as an eigenvalue: 0 times infinity is no cost


class Short(Struct, frozen=True):
    """Which of the first rows are short: row j is scale_j times its integers, or whole where scale_j = 0.

    Rounded by E, rows V with values lambda move the p with (V'WV + D) p = g, 0 <= W <= Lambda and D >= mu, by
    at most (2 ||V|| + ||E||) ||Lambda E|| ||p|| / mu: before and after the matrix is at least mu.
    """

    levels: bytes = b""  # int32, row by row: a state is plain data
    scales: Scalars = field(default_factory=lambda: np.zeros(0))
    spent: float = 0.0  # of that bound, as a part of CHANGE; its square where rows are orthogonal

    def merged(self, whole: Matrix) -> Matrix:
        """All rows in float64, in order; those after the last one decided on are whole."""
        short = self.scales > 0
        short = np.append(short, np.zeros(len(whole) - np.count_nonzero(~short), dtype=bool))
        rows = np.empty((len(short), whole.shape[1]))
        rows[~short] = whole
        levels = np.frombuffer(self.levels, dtype="<i4").reshape(-1, whole.shape[1])
        rows[short] = levels * self.scales[self.scales > 0][:, None]
        return rows

    def joined(self, whole: Matrix, values: Vector, mu: float, orthogonal: bool) -> tuple[Short, Matrix]:
        """With the rows not decided on yet, short as far as the direction moves by less than CHANGE."""
        old = np.count_nonzero(self.scales == 0)
        rows, values = whole[old:], values[len(self.scales) :]
        scales = np.abs(rows).max(axis=1, initial=0.0) / LEVELS
        levels = np.rint(rows / np.where(scales > 0, scales, 1.0)[:, None])
        errors = np.linalg.norm(levels * scales[:, None] - rows, axis=1)
        errors[(scales == 0) | (np.linalg.norm(rows, axis=1) > LONGEST)] = np.inf
        power = 2 if orthogonal else 1  # errors of orthogonal rows add up in squares
        with np.errstate(all="ignore"):  # a ridge near 0 makes any row too dear
            costs = (TWICE * LONGEST * np.maximum(values, TINY) * errors / (mu * CHANGE)) ** power
        short, spent = _affordable(costs, self.spent)
        scales = np.append(self.scales, np.where(short, scales, 0.0))
        joined = Short(self.levels + levels[short].astype("<i4").tobytes(), scales, spent)
        return joined, np.concatenate([whole[:old], rows[~short]])


def _affordable(costs: Vector, spent: float) -> tuple[NDArray[np.bool_], float]:
    """Which rows cost at most SHARE of what is left of 1, and what is spent then."""
    short = np.zeros(len(costs), dtype=bool)
    for j, cost in enumerate(costs.tolist()):
        short[j] = cost <= SHARE * (1 - spent)
        spent += cost if short[j] else 0.0
    return short, spent


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
