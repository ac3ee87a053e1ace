"""Dense tables that are not to be copied: rows that stay in a file or in Arrow, perhaps more than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix

Array = NDArray[np.float64]
Index = NDArray[np.intp]
BLOCK = 1 << 20  # numbers read at a time, 8 MB: larger ones take more memory and no less time


class Source(Protocol):
    """Where rows come from: anything with a shape that gives a slice of rows, or chosen ones, as an array.

    An array mapped from a file is one as it is.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        ...

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        """These rows, of any numeric type."""
        ...


@dataclass(frozen=True, eq=False)
class Tall:
    """A table read block of rows by block of rows; which rows and columns are in it is only remembered.

    Ones are a column after those of the source, and `columns` may name it.
    """

    source: Source
    ones: bool = False
    rows: Index | None = None
    columns: Index | None = None

    ndim = 2
    __array_ufunc__ = None  # NumPy leaves products to it, and copies it for nothing else

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, width = self.source.shape
        return (
            rows if self.rows is None else len(self.rows),
            width + self.ones if self.columns is None else len(self.columns),
        )

    def blocks(self, growth: int = 1) -> Iterator[tuple[slice, Array]]:
        """Rows in order, as many at a time as fit into a block once they have grown, or one a column."""
        width = max(self.source.shape[1] + self.ones, 1)  # all of it is read, whatever the columns
        rows = max(width, BLOCK // (growth * width))
        for start in range(0, self.shape[0], rows):
            part = slice(start, start + rows)
            yield part, self._read(part)

    def take(self, rows: NDArray[Any]) -> Tall:
        """A table of these rows, by their numbers or a mask; nothing is read."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(self, rows=chosen if self.rows is None else self.rows[chosen])

    def with_ones(self) -> Tall:
        """The table with a last column of ones."""
        last = self.source.shape[1]
        return replace(
            self, ones=True, columns=None if self.columns is None else np.append(self.columns, last)
        )

    def __matmul__(self, theta: Array) -> Array:
        product = np.empty((self.shape[0], *theta.shape[1:]))
        for part, X in self.blocks():
            product[part] = X @ theta
        return product

    def __rmatmul__(self, left: Any) -> Array:
        """A vector or a dense matrix times the table."""
        products = (left[..., part] @ X for part, X in self.blocks())
        return np.asarray(reduce(np.add, products))

    def __getitem__(self, key: Any) -> Any:
        """Some rows in memory; or (:, columns), a table of these columns of which nothing is read."""
        if not isinstance(key, tuple):
            return self._read(key)
        if key[0] != slice(None):
            raise IndexError("select rows or columns of a table that stays in its file, not both at once")
        chosen = np.arange(self.shape[1])[key[1]]
        return replace(self, columns=chosen if self.columns is None else self.columns[chosen])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = np.empty(self.shape)
        for part, X in self.blocks():
            whole[part] = X
        return whole.astype(dtype or np.float64, copy=False)

    def _read(self, part: Any) -> Array:
        X = np.asarray(self.source[part if self.rows is None else self.rows[part]], dtype=np.float64)
        X = np.hstack([X, np.ones((len(X), 1))]) if self.ones else X
        return X if self.columns is None else X[:, self.columns]

    @property
    def T(self) -> Transposed:  # noqa: N802
        """The transposed table, for products."""
        return Transposed(self)

    def triangular(self, scaled: Callable[[slice, Array], Array], growth: int = 1) -> Matrix:
        """R with R'R = F'F for a factor F known by its blocks, by one QR decomposition after the other.

        `growth` is how many numbers F has for each of the table.
        """
        R: Matrix | None = None
        for part, X in self.blocks(growth):
            F = scaled(part, X)
            del X  # a block that is done with need not be held beside the copies of the next
            stacked = np.empty((len(F) + (0 if R is None else len(R)), F.shape[1]), order="F")
            stacked[: len(stacked) - len(F)] = R if R is not None else 0.0
            stacked[len(stacked) - len(F) :] = F
            del F
            R = _upper(stacked)
        return np.zeros((0, 0)) if R is None else R


def _upper(F: Array) -> Matrix:
    """R of the QR decomposition of a matrix by columns, in whose place LAPACK computes it."""
    return np.asarray(scipy.linalg.qr(F, mode="raw", overwrite_a=True, check_finite=False)[1])


def in_blocks(X: Any) -> Iterator[tuple[slice, Any]]:
    """The rows of a table block by block, or all of them where they are in memory, dense or CSR."""
    return X.blocks() if isinstance(X, Tall) else iter([(slice(0, X.shape[0]), X)])


def by_column(X: Array | Tall, chosen: Sequence[int]) -> Iterator[tuple[int, Array]]:
    """Some columns with their numbers; of a tall table as many are in memory as fit into a block, or one."""
    if not isinstance(X, Tall):
        yield from ((j, X[:, j]) for j in chosen)
        return
    size = max(1, BLOCK // max(X.shape[0], 1))
    for start in range(0, len(chosen), size):
        some = list(chosen[start : start + size])
        yield from zip(some, np.asarray(X[:, some]).T, strict=True)


@dataclass(frozen=True, eq=False)
class Transposed:
    """X' of a tall table."""

    tall: Tall

    def __matmul__(self, slopes: Array | Tall) -> Array:
        products = [X.T @ slopes[part] for part, X in self.tall.blocks()]
        return np.asarray(sum(products))
