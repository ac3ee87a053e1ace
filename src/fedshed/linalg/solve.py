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


def unit_diagonal(A: Matrix) -> tuple[Vector, Matrix]:
    """d and diag(d) A diag(d) with ones on the diagonal; a row of zeros stays one."""
    diagonal = np.diag(A)
    d: Vector = 1 / np.sqrt(np.where(diagonal > np.finfo(float).tiny, diagonal, 1.0))
    return d, A * d[:, None] * d


class DensePlusRidge:
    """H + diag(ridge) for a dense symmetric positive semidefinite H."""

    def __init__(self, H: Matrix, ridge: Vector, columns: Sequence[str] = ()) -> None:
        self.dense, self._ridge, self._columns = H, ridge, columns

    def matvec(self, s: Vector) -> Vector:
        """(H + diag(ridge)) s."""
        product: Vector = self.dense @ s + self._ridge * s
        return product

    def solve(self, g: Vector) -> Vector:
        """(H + diag(ridge))^-1 g by Cholesky, scaled to a unit diagonal: units of columns do not matter."""
        scale, factor = self._factored()
        solution: Vector = scale * cho_solve(factor, scale * g, check_finite=False)
        return solution

    def inverse(self) -> Matrix:
        """(H + diag(ridge))^-1, symmetric."""
        scale, factor = self._factored()
        unit = cho_solve(factor, np.eye(len(scale)), check_finite=False)
        inverse: Matrix = (unit + unit.T) / 2 * scale[:, None] * scale
        return inverse

    def _factored(self) -> tuple[Vector, tuple[Matrix, bool]]:
        A = self.dense + np.diag(self._ridge)
        scale, unit = unit_diagonal(A)
        try:
            factor = cho_factor(unit, lower=True, check_finite=False)
        except LinAlgError:
            raise self._singular(A, unit) from None
        if np.diag(factor[0]).min() ** 2 <= len(A) * np.finfo(float).eps and not self._ridge.all():
            raise self._singular(A, unit)
        return scale, factor

    def _singular(self, A: Matrix, unit: Matrix) -> SingularError:
        columns = self._columns or [f"column {j}" for j in range(len(A))]
        flat = [columns[int(j)] for j in np.flatnonzero(np.diag(A) <= np.finfo(float).tiny)]
        if flat:
            return SingularError(
                f"the curvature vanishes for {', '.join(flat)}: constant, or saturated at this theta"
            )
        names = [columns[int(j)] for j in collinear(unit)]
        return SingularError(
            f"the curvature is singular: {', '.join(names)} are collinear; "
            "drop one of them or penalise them with l2 > 0"
        )


class LowRankPlusDiagonal(DensePlusRidge):
    """U'U + diag(d) for a tall stack of rows U."""

    def __init__(self, U: Matrix, diagonal: Vector, columns: Sequence[str] = ()) -> None:
        super().__init__(U.T @ U, diagonal, columns)
