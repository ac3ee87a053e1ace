"""Dense tables that are not to be copied: mapped from a file, perhaps larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.arrays import Matrix

Array = NDArray[np.float64]
BLOCK = 1 << 22  # numbers read at a time: 32 MB


def mapped(X: Any) -> bool:
    """Whether an array's numbers are in a file (numpy.memmap, or numpy.load with mmap_mode)."""
    while isinstance(X, np.ndarray):
        X = X.base
    return isinstance(X, mmap.mmap)


class Tall:
    """A table read block of rows by block of rows, perhaps with a column of ones after the others."""

    ndim = 2

    def __init__(self, X: Array, ones: bool = False) -> None:
        self._X, self._ones = X, ones
        self.shape = X.shape[0], X.shape[1] + ones

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Rows in order, as many at a time as fit into a block, at least as many as columns."""
        rows = max(self.shape[1], BLOCK // self.shape[1])
        for start in range(0, self.shape[0], rows):
            part = slice(start, start + rows)
            yield part, self._rows(part)

    def __matmul__(self, theta: Array) -> Array:
        return np.concatenate([X @ theta for _, X in self.blocks()])

    def __getitem__(self, key: Any) -> Array:
        """Some columns of all rows, or some rows, in memory."""
        if not isinstance(key, tuple):
            return self._rows(key)
        return np.concatenate([X[:, key[1]] for _, X in self.blocks()])

    def _rows(self, chosen: Any) -> Array:
        X = np.asarray(self._X[chosen])
        return np.hstack([X, np.ones((len(X), 1))]) if self._ones else X

    @property
    def T(self) -> Transposed:  # noqa: N802
        """The transposed table, for products."""
        return Transposed(self)

    def triangular(self, scaled: Callable[[slice, Array], Array]) -> Matrix:
        """R with R'R = F'F for a factor F known by its blocks, by one QR decomposition after the other."""
        R: Matrix = np.zeros((0, 0))
        for part, X in self.blocks():
            F = scaled(part, X)
            R = np.asarray(np.linalg.qr(np.vstack([R, F]) if len(R) else F, mode="r"))
        return R


class Transposed:
    """X' of a tall table."""

    def __init__(self, tall: Tall) -> None:
        self._tall = tall

    def __matmul__(self, slopes: Array) -> Array:
        products = [X.T @ slopes[part] for part, X in self._tall.blocks()]
        return np.asarray(sum(products))
