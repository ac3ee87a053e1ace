"""The scores of single rows and of clusters of rows, as errors that are robust need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import Rows
from fedshed.linalg.tall import in_blocks

if TYPE_CHECKING:
    from fedshed.objectives.base import LinearModel

EVEN = 0.5  # effective share of rows below which a few of them outweigh the others
ROUNDING = 1e-9  # of a leverage


def scatter(model: LinearModel, theta: Vector, inverse: Matrix | None, power: int, counts: bool) -> Rows:
    """F with F'F = sum_j u_j u_j' / (1 - h_j)^power, u_j = w_j l'_j x_j the score of a row.

    With the inverse A of the information of all sites, h_j = w_j E[l''_j] x_j'A x_j is the leverage of a row.
    Where weights count rows, there are w_j rows of the score l'_j x_j, each with its own leverage.
    """
    z = _margins(model, theta)
    w = np.ones(len(z)) if model.weights is None else model.weights
    once = np.ones_like(w) if counts else w
    squares = w * once * np.square(model.slopes(z))
    if inverse is not None:
        squares = squares * _factors(once * model.information(z) * _spread(model.X, inverse), power)
    return model.curvature_factor(squares)


def cluster_scores(model: LinearModel, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
    """The score of each cluster, sum_j w_j l'_j x_j over its rows; and (A H_c A)_jj with the inverse A.

    H_c is the information of the cluster, so that (A H_c A)_jj = sum_j w_j E[l''_j] (Ax_j)^2.
    """
    z = _margins(model, theta)
    if model.clusters is None:
        raise ValueError("errors by cluster need a column of clusters")
    w = 1.0 if model.weights is None else model.weights
    _, codes = np.unique(model.clusters, return_inverse=True)
    scores = _summed(codes, w * model.slopes(z), model.X)
    if inverse is None:
        return scores, None
    return scores, _summed(
        codes, w * model.information(z), model.X, lambda X: np.square(np.asarray(X @ inverse))
    )


def leverages(model: LinearModel, theta: Vector, inverse: Matrix) -> Vector:
    """h_j = w_j E[l''_j] x_j'A x_j, of a row of weight w_j, by the inverse A of the information of all rows.

    They are from 0 to 1, as a row adds to the information no more than all do.
    """
    z = _margins(model, theta)
    w = 1.0 if model.weights is None else model.weights
    h: Vector = w * model.information(z) * _spread(model.X, inverse)
    if not (h.min(initial=0.0) >= -ROUNDING and h.max(initial=0.0) <= 1.0 + ROUNDING):
        raise ValueError(
            "the matrix is not an inverse of the information, because a leverage is not between 0 and 1"
        )
    return h


def leverage_pull(model: LinearModel, theta: Vector, inverse: Matrix) -> Vector:
    """sum_j h_j (1/2 - pi_j) x_j / W: the slope of log det I / 2, of a logit link (Firth 1993, Section 4)."""
    if not model.canonical or not hasattr(model, "gains") or not model.can_recede:
        raise ValueError("Firth's penalty is for a logit link")
    tilt = -np.tanh(_margins(model, theta) / 2) / 2  # 1/2 - pi
    return np.asarray(model.slope_product(leverages(model, theta, inverse) * tilt / model.weight))


def _margins(model: LinearModel, theta: Vector) -> Vector:
    z = model.margins(theta)
    if z.ndim > 1:
        raise ValueError("errors by rows or clusters need one linear predictor")
    return z


def _spread(X: Rows, A: Matrix) -> Vector:
    """x'Ax of each row."""
    parts = [np.asarray((block @ A * block).sum(axis=1)).ravel() for _, block in in_blocks(X)]
    return np.concatenate(parts)


def _factors(leverage: Vector, power: int) -> Vector:
    """(1 - h)^-power; a matrix by which a few rows would outweigh the others is refused (after Kish 1965)."""
    if abs(leverage.max() - 1.0) < ROUNDING:
        raise ValueError(
            "one row alone determines a coefficient, so HC2 and HC3 do not exist; use HC0 or HC1"
        )
    if not 0.0 <= leverage.min() <= leverage.max() < 1.0:
        raise ValueError(
            "the matrix is not an inverse of the information, because a leverage is not between 0 and 1"
        )
    factors = (1.0 - leverage) ** -power
    if factors.sum() ** 2 < EVEN * len(factors) * (factors @ factors):
        raise ValueError("a few rows would outweigh all others by their leverage; use HC0 or HC1")
    return np.asarray(factors)


def _summed(
    codes: NDArray[np.intp], values: Vector, X: Rows, change: Callable[[Rows], Rows] = lambda X: X
) -> Matrix:
    """The sums of rows with the same code, each row changed and times its value."""
    count = int(codes.max(initial=-1)) + 1
    sums = (_by_code(codes[part], values[part], count) @ change(block) for part, block in in_blocks(X))
    summed = reduce(np.add, sums)
    return np.asarray(summed.toarray() if scipy.sparse.issparse(summed) else summed)


def _by_code(codes: NDArray[np.intp], values: Vector, count: int) -> Any:
    """A matrix that sums rows by their code, each times a value."""
    return scipy.sparse.csr_array((values, (codes, np.arange(len(codes)))), shape=(count, len(codes)))
