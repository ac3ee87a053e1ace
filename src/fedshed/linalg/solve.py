"""The Master's curvature as an operator: products and solves, however it is stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fedshed.arrays import Matrix, Vector
from fedshed.errors import SingularError


def collinear(A: Matrix) -> NDArray[np.intp]:
    """Columns that depend on each other: large in the eigenvector of the smallest eigenvalue."""
    null = np.abs(np.linalg.eigh(A)[1][:, 0])
    return np.flatnonzero(null > 0.1 * null.max())


class DensePlusRidge:
    """H + diag(ridge) for a dense symmetric positive semidefinite H."""

    def __init__(self, H: Matrix, ridge: Vector, columns: Sequence[str] = ()) -> None:
        self._H, self._ridge, self._columns = H, ridge, columns

    def matvec(self, s: Vector) -> Vector:
        """(H + diag(ridge)) s."""
        product: Vector = self._H @ s + self._ridge * s
        return product

    def solve(self, g: Vector) -> Vector:
        """(H + diag(ridge))^-1 g by Cholesky."""
        A = self._H + np.diag(self._ridge)
        try:
            factor = cho_factor(A, lower=True, check_finite=False)
        except LinAlgError:
            raise self._singular(A) from None
        pivots = np.square(np.diag(factor[0]))
        if pivots.min() <= len(g) * np.finfo(float).eps * pivots.max() and not self._ridge.all():
            raise self._singular(A)
        solution: Vector = cho_solve(factor, g, check_finite=False)
        return solution

    def _singular(self, A: Matrix) -> SingularError:
        columns = self._columns or [f"column {j}" for j in range(len(A))]
        names = [columns[int(j)] for j in collinear(A)]
        return SingularError(
            f"the pooled curvature is singular: {', '.join(names)} are collinear over all sites; "
            "drop one of them or penalise them with l2 > 0"
        )


class LowRankPlusDiagonal(DensePlusRidge):
    """U'U + diag(d) for a tall stack of rows U."""

    def __init__(self, U: Matrix, diagonal: Vector, columns: Sequence[str] = ()) -> None:
        super().__init__(U.T @ U, diagonal, columns)
