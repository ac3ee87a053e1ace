"""Matrices of one row per observation, dense or sparse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.tall import BLOCK, Tall, in_blocks

FEW = 8  # columns of a sparse table that are as well dense
Rows: TypeAlias = Any  # a dense float64 matrix, a scipy CSR array or a `Tall` table, one row per observation


def gram(factor: Rows) -> Matrix:
    """F'F as a dense matrix."""
    product = factor.T @ factor
    return product if isinstance(product, np.ndarray) else product.toarray()


def diagonal(factor: Rows) -> NDArray[np.float64]:
    """diag F'F: the squared column norms of the factor, or of each of several dense ones."""
    if isinstance(factor, np.ndarray):
        return np.asarray(np.square(factor).sum(axis=-2))
    if getattr(factor, "has_canonical_format", False):  # CSR: added in the order of the rows, as below
        return np.asarray(np.bincount(factor.indices, np.square(factor.data), factor.shape[1]), dtype=float)
    return np.asarray(factor.multiply(factor).sum(axis=0), dtype=float).ravel()


def with_units(F: Rows, factors: Vector) -> Rows:
    """F diag(factors), dense or CSR as F is."""
    if isinstance(F, np.ndarray):
        return F * factors
    scaled = copy(F)
    scaled.data = F.data * factors[F.indices]
    return scaled


def centred_gram(X: Rows, centres: Vector) -> Matrix:
    """The Gram matrix of the columns less these centres, a block of rows at a time."""
    n, total = X.shape[1], np.zeros((X.shape[1], X.shape[1]))
    rows = max(n, BLOCK // n)
    for start in range(0, X.shape[0], rows):
        block = X[start : start + rows]
        centred = (block if isinstance(block, np.ndarray) else block.toarray()) - centres
        total += centred.T @ centred
    return total


def varying_columns(X: Rows) -> NDArray[np.bool_]:
    """Whether each column has more than one value, exactly."""
    first, found = _dense(X[:1]), np.zeros(X.shape[1], dtype=bool)
    for _, block in in_blocks(X):
        found |= (_dense(block.max(axis=0)) != first) | (_dense(block.min(axis=0)) != first)
    return found


def _dense(row: Rows) -> Vector:
    return np.asarray(row if isinstance(row, np.ndarray) else row.toarray()).ravel()


def chosen_columns(X: Rows, chosen: NDArray[np.intp]) -> Rows:
    """X[:, chosen]; a few of a sparse table dense, by one product."""
    if isinstance(X, np.ndarray | Tall) or len(chosen) > FEW:
        return X[:, chosen]
    pick = np.zeros((X.shape[1], len(chosen)))
    pick[chosen, np.arange(len(chosen))] = 1.0
    return np.asarray(X @ pick)


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
