"""The columns of a table that matter: those in use, and of equal ones a single one, which stands for all.

With X = Y E for the narrow Y, whose column j is sqrt(m_j) times one of m_j equal columns, E has orthonormal
rows: eigenpairs of a scaled Y'Y become those of X'X by E', exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Scalars, Vector

SEARCHED = 1 << 18  # entries, zeros included, up to which a table is searched for equal columns


class Columns(Struct, frozen=True):
    """E by its entries: one in each column that is in use."""

    chosen: NDArray[np.intp]  # the columns that are kept
    place: NDArray[np.intp]  # where each column of X is among them
    share: Vector  # 1 / sqrt(m_j), and 0 for a column that is not in use

    @property
    def all_kept(self) -> bool:
        """Whether the narrow table is the table itself."""
        return len(self.chosen) == len(self.place)

    def narrow(self, X: Any) -> Any:
        """Y, dense or CSR as X is."""
        if self.all_kept:
            return X
        times = 1 / self.share[self.chosen]
        return X[:, self.chosen] * times if isinstance(X, np.ndarray) else self._narrow_sparse(X, times)

    def _narrow_sparse(self, X: Any, times: Vector) -> Any:
        kept = np.zeros(X.shape[1], dtype=bool)
        kept[self.chosen] = True
        entries = kept[X.indices]
        indices = self.place[X.indices[entries]]
        ends = np.concatenate([[0], np.cumsum(entries)])[X.indptr]
        parts = X.data[entries] * times[indices], indices.astype(X.indices.dtype), ends.astype(X.indptr.dtype)
        return type(X)(parts, shape=(X.shape[0], len(self.chosen)))

    def expand(self, rows: Matrix) -> Matrix:
        """V E for rows V."""
        if self.all_kept:
            return np.ascontiguousarray(rows)
        if not len(self.chosen):
            return np.zeros((len(rows), len(self.place)))
        return np.asarray(np.take(rows, self.place, axis=1) * self.share)


class Narrow(Struct, frozen=True):
    """A factor F = rows E of a Hessian."""

    rows: Any
    columns: Columns


class Batched(Struct, frozen=True):
    """The eigenpairs of a Hessian, drawn with those of many others; its factor for a kernel of one's own."""

    short: int  # the shorter side of the narrow factor
    n: int
    pairs: Callable[[int], tuple[Scalars, Matrix]]  # that many at least: falling values, vectors as rows
    narrow: Callable[[], Narrow]


def narrowed(factor: Any) -> Narrow:
    """A factor on the columns that matter."""
    columns = columns_of(factor)
    return Narrow(columns.narrow(factor), columns)


def columns_of(X: Any) -> Columns:
    """The columns in use; equal ones are found in tables that are not large."""
    n = X.shape[1]
    if X.shape[0] * n <= SEARCHED:
        X = X if isinstance(X, np.ndarray) else X.toarray()
    used = _used(X)
    same = _first_alike(X) if isinstance(X, np.ndarray) and X.size <= SEARCHED else None
    if same is None and len(used) == n:
        return _all_columns(n)
    same = np.arange(n) if same is None else same
    kinds, back, counts = np.unique(same[used], return_inverse=True, return_counts=True)
    place, share = np.zeros(n, dtype=np.intp), np.zeros(n)
    place[used], share[used] = back, 1 / np.sqrt(counts[back])
    return Columns(kinds, place, share)


def _used(X: Any) -> NDArray[np.intp]:
    if isinstance(X, np.ndarray):
        return np.flatnonzero(X.any(axis=0))
    return np.flatnonzero(np.bincount(X.indices[X.data != 0], minlength=X.shape[1]))


def _first_alike(X: Matrix) -> NDArray[np.intp] | None:
    """For each column the first that equals it, None if all differ; equal ones have equal random sums."""
    r = _random_numbers(1 << (X.shape[0] - 1).bit_length())[: X.shape[0]]
    rough = np.sort(r @ X)
    if (rough[1:] - rough[:-1]).min(initial=np.inf) > 1e-9 * np.abs(rough).max(initial=0.0):
        return None
    sums = np.sum(X * r[:, None], axis=0)  # each column added in the same order
    _, first, back = np.unique(sums, return_index=True, return_inverse=True)
    same: NDArray[np.intp] = first[back]
    doubtful = np.flatnonzero(same != np.arange(len(same)))
    wrong = doubtful[(X[:, doubtful] != X[:, same[doubtful]]).any(axis=0)]
    same[wrong] = wrong
    return same


@lru_cache(maxsize=4)
def _random_numbers(count: int) -> Vector:
    return np.random.default_rng(0).standard_normal(count)


@lru_cache(maxsize=4)
def _all_columns(n: int) -> Columns:
    """Every column is in use, and no two are equal."""
    return Columns(np.arange(n), np.arange(n), np.ones(n))
