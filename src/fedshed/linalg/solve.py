"""The Master's curvature as an operator: products and solves, however it is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from fedshed._utils.errors import SingularError
from fedshed.linalg.arrays import Matrix, Vector

NEGLIGIBLE = 1e-10  # of the largest eigenvalue, on a unit diagonal: below it a direction is none
OFF_CENTRE = 1e-9  # of the mean square: a variance below it leaves a Hessian too few digits
Factor: TypeAlias = tuple[Matrix, bool]  # as scipy.linalg.cho_factor gives it


def cholesky_of(U: Matrix, diagonal: Vector) -> Factor:
    """The Cholesky factor of U'U + diag(d)."""
    factor: Factor = cho_factor(U.T @ U + np.diag(diagonal), lower=True, check_finite=False, overwrite_a=True)
    return factor


def collinear(A: Matrix) -> NDArray[np.intp]:
    """Columns that depend on each other: large in the eigenvector of the smallest eigenvalue."""
    null = np.abs(np.linalg.eigh(A)[1][:, 0])
    return np.flatnonzero(null > 0.1 * null.max())


def plain_name(column: str) -> str:
    """The column of a coefficient, whatever the contrast of classes."""
    return column.partition(" [contrast")[0]


def off_centre(A: Matrix, columns: Sequence[str], among: Sequence[int] | None = None) -> str | None:
    """Which columns have a mean so large beside their spread that rounding hides them beside an intercept.

    None where there is no such column, or none `among` these.
    """
    _, unit = unit_diagonal(A)
    place, found = {name: j for j, name in enumerate(columns)}, []
    for j, name in enumerate(columns):
        k = place.get("intercept" + name.removeprefix(plain_name(name)), j)
        if k != j and 1 - unit[j, k] ** 2 < OFF_CENTRE:
            found.append(j)
    if not found or (among is not None and not set(found) & set(among)):
        return None
    shown = ", ".join(dict.fromkeys(plain_name(columns[j]) for j in found))
    return (
        f"the mean of {shown} is so much larger than the spread that rounding hides it beside the intercept; "
        "standardise (standardize=True, --standardize, or a StandardScaler before an estimator), or subtract "
        "a typical value"
    )


def unit_diagonal(A: Matrix) -> tuple[Vector, Matrix]:
    """d and diag(d) A diag(d) with ones on the diagonal; a row of zeros stays one."""
    diagonal = np.diag(A)
    d: Vector = 1 / np.sqrt(np.where(diagonal > np.finfo(float).tiny, diagonal, 1.0))
    return d, A * d[:, None] * d


def inverse_root(H: Matrix) -> Matrix:
    """R (n x rank) with R'HR = I and RR' a generalised inverse of H, whatever the units of the columns."""
    scale, unit = unit_diagonal(H)
    values, vectors = np.linalg.eigh(unit)
    kept = values > NEGLIGIBLE * values[-1]
    root: Matrix = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    return root


def sparse_inverse_root(H: Matrix) -> Matrix:
    """As `inverse_root`, by Gram and Schmidt, the columns with most neighbours last: zeros of H stay zeros.

    Of nearly collinear columns it is `inverse_root`.
    """
    order = np.argsort(np.count_nonzero(H, axis=0), kind="stable")
    scale, unit = unit_diagonal(H[np.ix_(order, order)])
    try:
        L = np.linalg.cholesky(unit)
    except np.linalg.LinAlgError:
        return inverse_root(H)
    if np.diag(L).min() ** 2 <= NEGLIGIBLE:
        return inverse_root(H)
    root = np.zeros_like(H)
    root[order] = scale[:, None] * solve_triangular(L, np.eye(len(H)), lower=True, check_finite=False).T
    return root


class DensePlusRidge:
    """H + diag(ridge) for a dense symmetric positive semidefinite H."""

    def __init__(self, H: Matrix, ridge: Vector, columns: Sequence[str] = ()) -> None:
        self.dense, self._ridge, self._columns = H, ridge, columns

    def matvec(self, s: Vector) -> Vector:
        """(H + diag(ridge)) s."""
        product: Vector = self.dense @ s + self._ridge * s
        return product

    def matrix(self) -> Matrix:
        """H + diag(ridge)."""
        return self.dense + np.diag(self._ridge)

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
                f"the curvature is 0 for {', '.join(flat)}: constant, or saturated at this theta; "
                "standardise them, leave them out, or set l2 > 0"
            )
        names = [columns[int(j)] for j in collinear(unit)]
        if far := off_centre(A, columns, collinear(unit).tolist()):
            return SingularError(f"the curvature is singular: {far}")
        return SingularError(
            f"the curvature is singular: {', '.join(names)} are collinear, or the data are separated there; "
            "drop one of them or penalise them with l2 > 0"
        )


class LowRankPlusDiagonal:
    """U'U + diag(d) for a stack of rows U, n x n only where U has as many rows as columns.

    `preconditioner` gives the Cholesky factor of a matrix like this one: where n is large it costs less to
    iterate with it than to make this one dense.
    """

    def __init__(
        self,
        U: Matrix,
        diagonal: Vector,
        columns: Sequence[str] = (),
        preconditioner: Callable[[], Factor] | None = None,
    ) -> None:
        self._U, self._diagonal, self._columns = U, diagonal, columns
        self._preconditioner = preconditioner

    def matvec(self, s: Vector) -> Vector:
        """(U'U + diag(d)) s."""
        product: Vector = (self._U @ s) @ self._U + self._diagonal * s
        return product

    def solve(self, g: Vector) -> Vector:
        """(U'U + diag(d))^-1 g, to a backward error of 1e-13 whatever the method."""
        if self.method == "dense":
            return self.dense().solve(g)
        return self._refined(g) if self.method == "woodbury" else self._conjugate_gradients(g)

    @property
    def method(self) -> str:
        """Woodbury where U has fewer rows than columns, unless d is lost in the rounding of U'U."""
        n = len(self._diagonal)
        if self._diagonal.min() <= 1e-12 * self._size:
            return "dense"
        if len(self._U) < n:
            return "woodbury"
        return "pcg" if self._preconditioner is not None and n >= MANY_COLUMNS else "dense"

    @cached_property
    def _size(self) -> float:
        """Largest diagonal entry of UU' or of d: at most the norm of the matrix."""
        return float(max(np.einsum("ij,ij->i", self._U, self._U).max(initial=0.0), self._diagonal.max()))

    @cached_property
    def _formed(self) -> DensePlusRidge:
        return DensePlusRidge(self._U.T @ self._U, self._diagonal, self._columns)

    def dense(self) -> DensePlusRidge:
        """The same, as a dense matrix."""
        return self._formed

    def product(self, s: Vector) -> Vector:
        """`matvec` but for rounding: by the dense matrix where a solution needs it anyway."""
        return self._formed.matvec(s) if self.method == "dense" else self.matvec(s)

    def matrix(self) -> Matrix:
        """U'U + diag(d)."""
        return self.dense().matrix()

    def _refined(self, g: Vector) -> Vector:
        """Woodbury's formula, improved by its own residual until that is rounding; dense if it is not."""
        p, r = np.zeros_like(g), g
        for _ in range(REFINEMENTS):
            p = p + self._woodbury(r)
            r = g - self.matvec(p)
            if np.linalg.norm(r) <= self._small(g, p):
                return p
        return self.dense().solve(g)

    def _conjugate_gradients(self, g: Vector) -> Vector:
        """Conjugate gradients preconditioned by that factor; dense if they do not end."""
        from scipy.sparse.linalg import LinearOperator, cg

        assert self._preconditioner is not None
        factor, shape = self._preconditioner(), (len(g), len(g))
        H = LinearOperator(shape, matvec=self.matvec, dtype=float)
        M = LinearOperator(shape, matvec=lambda r: cho_solve(factor, r, check_finite=False), dtype=float)
        p = M @ g
        for _ in range(REFINEMENTS):  # what is small enough depends on the solution
            p, unfinished = cg(H, g, x0=p, rtol=0.0, atol=self._small(g, p), maxiter=ITERATIONS, M=M)
            if unfinished:
                break
            if np.linalg.norm(g - self.matvec(p)) <= self._small(g, p):
                return np.asarray(p)
        return self.dense().solve(g)

    def _small(self, g: Vector, p: Vector) -> float:
        """A residual of the backward error that is allowed."""
        return float(BACKWARD * (np.linalg.norm(g) + self._size * np.linalg.norm(p)))

    def _woodbury(self, g: Vector) -> Vector:
        """D^-1 g - D^-1 U' (I + U D^-1 U')^-1 U D^-1 g (Golub and Van Loan 2013, Section 2.1.4)."""
        scaled = g / self._diagonal
        if not len(self._U):
            return scaled
        inner = cho_solve(self._inner, self._U @ scaled, check_finite=False)
        solution: Vector = scaled - (inner @ self._U) / self._diagonal
        return solution

    @cached_property
    def _inner(self) -> Factor:
        """The Cholesky factor of I + U D^-1 U'."""
        common = float(np.median(self._diagonal))  # mostly all are equal, save that of the intercept
        odd = np.flatnonzero(self._diagonal != common)
        K: Matrix = (self._U @ self._U.T) / common
        K += (self._U[:, odd] * (1 / self._diagonal[odd] - 1 / common)) @ self._U[:, odd].T
        K[np.diag_indices_from(K)] += 1.0
        factor: Factor = cho_factor(K, lower=True, check_finite=False, overwrite_a=True)
        return factor


REFINEMENTS = 4
ITERATIONS = 60  # of conjugate gradients: more would cost what a dense factor costs
MANY_COLUMNS = 1000
BACKWARD = 1e-13  # ||g - H p|| / (||g|| + ||H|| ||p||) of a solution p
