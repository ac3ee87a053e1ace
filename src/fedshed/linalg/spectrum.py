"""Eigenpairs of an agent's Hessian G = F'F, on the shorter side of F."""

from __future__ import annotations

import numpy as np

from fedshed.arrays import Matrix, Vector
from fedshed.objectives.base import Rows, gram


def leading_eigenpairs(factor: Rows) -> tuple[Vector, Matrix]:
    """All n eigenvalues of F'F in descending order, and the leading eigenvectors as rows.

    Vectors end at the data rank, lambda <= n eps lambda_1, or at n - 1: v_n is never needed.
    Values that rounding hides are reported as n eps lambda_1, so that rho stays an upper bound; those beyond
    the number of rows are exactly 0.
    """
    n = factor.shape[1]
    values, vectors = _primal(factor) if factor.shape[0] >= n else _dual(factor)
    floor = n * np.finfo(float).eps * max(values[0], 0.0)
    rank = int(np.count_nonzero(values > floor))
    padded = np.zeros(n)
    padded[: len(values)] = np.maximum(values, floor)
    return padded, np.ascontiguousarray(vectors[: min(rank, n - 1)])


def _primal(factor: Rows) -> tuple[Vector, Matrix]:
    values, columns = np.linalg.eigh(gram(factor))
    return values[::-1], columns.T[::-1]


def _dual(factor: Rows) -> tuple[Vector, Matrix]:
    """From the smaller Gram matrix FF' = U diag(s) U': the vectors are the rows of U'F, normalised."""
    values, columns = np.linalg.eigh(gram(factor.T))
    rows = (factor.T @ columns).T[::-1]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return values[::-1], rows / np.where(norms > 0, norms, 1.0)
