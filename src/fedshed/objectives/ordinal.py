"""Ordered classes by proportional odds: P(y <= k) = F(a_k - x'b) with F the logistic distribution.

McCullagh 1980, J. R. Statist. Soc. B 42, 109.  theta is (b, a_1, ..., a_{K-1}) with thresholds
a_1 < ... < a_{K-1} and no intercept.  With u = a_k - x'b and l = a_{k-1} - x'b a row of class k costs

    -log(F(u) - F(l)) = log(1 + exp(-u)) + log(1 + exp(l)) - log(1 - exp(l - u)),

each term of which is convex; of the first class the first term is left, of the last the second.  Where
thresholds are not in order the cost is infinite, so a search goes back from there.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from math import isclose
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import expit

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.rows import Rows, chosen_columns, gram
from fedshed.linalg.tall import Tall, in_blocks
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family
from fedshed.objectives.scored import Scored


class Ordinal(LinearModel):
    """Ordered classes 0, ..., K - 1; the margins of a row are u and l, 0 where it has none."""

    can_recede: ClassVar[bool] = True

    def __init__(
        self,
        X: Rows,
        y: NDArray[Any],
        weights: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
        *,
        classes: int,
    ) -> None:
        super().__init__(X, y.astype(np.intp), weights, offset)
        self.classes, self.dim = classes, int(X.shape[1]) + classes - 1
        self._ends = self._ends_of(self.y)

    def _ends_of(self, y: NDArray[np.intp]) -> Matrix:
        """Whether a row has an upper and a lower threshold."""
        return np.column_stack([y < self.classes - 1, y > 0]).astype(np.float64)

    def null(self) -> Self:
        """The same classes and weights without columns: thresholds only."""
        return type(self)(np.zeros((len(self.y), 0)), self.y, self.weights, classes=self.classes)

    def rows(self, chosen: NDArray[np.intp]) -> Self:
        """The same model of some rows, each counted once."""
        return type(self)(self.X[chosen], self.y[chosen], classes=self.classes)

    def origin(self) -> Vector:
        """No effects, and thresholds of classes that are equally frequent."""
        levels = self.null_levels(np.ones(self.classes))
        return np.concatenate([np.zeros(self.dim - len(levels)), levels])

    def linear(self, direction: Vector) -> Matrix:
        """u and l along a direction, N x 2."""
        n = self.dim - self.classes + 1
        x = np.asarray(self.X @ direction[:n]) if n else np.zeros(len(self.y))
        thresholds = np.concatenate([[0.0], direction[n:], [0.0]])
        both = np.column_stack([thresholds[self.y + 1], thresholds[self.y]]) - x[:, None]
        return np.asarray(both * self._ends)

    def scored(self, theta: Vector) -> Scored:
        """The rows with the probabilities of all classes, F(a_k - x'b) - F(a_{k-1} - x'b)."""
        n = self.dim - self.classes + 1
        x = np.asarray(self.X @ theta[:n]) if n else np.zeros(len(self.y))
        below = expit(theta[n:] - x[:, None])
        p = np.diff(below, axis=1, prepend=0.0, append=1.0)
        return Scored(self, self.margins(theta), np.maximum(p, 0.0))

    def null_moments(self) -> Scalars:
        """The weight of each class."""
        return np.bincount(self.y, self.weights, minlength=self.classes).astype(np.float64)

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """Log odds of the cumulative shares; a class without weight counts as half a row, for the order."""
        filled = np.where(sums > 0, sums, 0.5)
        below = np.cumsum(filled)[:-1]
        return np.asarray(np.log(below / (filled.sum() - below)))

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """A weight for each class, which add up to the site's."""
        return len(sums) >= 2 and sums.min() >= 0 and isclose(sums.sum(), weight)

    def gains(self, direction: Vector) -> Matrix:
        """How far the upper threshold of a row rises, and the lower one falls."""
        return np.asarray(self.linear(direction) * [1.0, -1.0])

    def moves(self, theta: Vector, step: Vector) -> NDArray[np.float64]:
        """|du|, |dl|, and |du - dl| (1 + 1 / (exp(u - l) - 1)) for the slope of the last term."""
        z, dz = self.margins(theta), self.linear(step)
        gap = np.abs(dz[:, 0] - dz[:, 1]) * (1.0 + self._odds(z))
        return np.column_stack([np.abs(dz), np.where(self._between, gap, 0.0)])

    def squares(self, free: NDArray[np.intp]) -> Matrix:
        """The sum of squared margins over rows, as a quadratic form of some coefficients."""
        blocks = (self._block(part, X) for part, X in in_blocks(self.X))
        return reduce(np.add, (gram(chosen_columns(each._designs(each._ends), free)) for each in blocks))

    @property
    def _between(self) -> NDArray[np.bool_]:
        return np.asarray(self._ends.all(axis=1))

    def _odds(self, z: Matrix) -> Vector:
        """1 / (exp(u - l) - 1) of rows between two thresholds; 0 elsewhere, infinite out of order."""
        gap = np.where(self._between, z[:, 0] - z[:, 1], np.inf)
        with np.errstate(divide="ignore", over="ignore"):
            odds: Vector = 1.0 / np.expm1(np.maximum(gap, 0.0))
        return odds

    def losses(self, z: Matrix) -> Vector:
        """-log(F(u) - F(l)); infinite where thresholds are not in order."""
        terms = np.logaddexp(0.0, z * [-1.0, 1.0]) * self._ends
        gap = np.where(self._between, np.maximum(z[:, 0] - z[:, 1], 0.0), np.inf)
        with np.errstate(divide="ignore"):
            return np.asarray(terms.sum(axis=1) - np.log(-np.expm1(-gap)))

    def slopes(self, z: Matrix) -> Matrix:
        """-F(-u) - 1 / (exp(u - l) - 1), and F(l) + the same."""
        odds = self._odds(z)
        return np.asarray((expit(z * [-1.0, 1.0]) + odds[:, None]) * [-1.0, 1.0] * self._ends)

    def curvatures(self, z: Matrix) -> Matrix:
        """F(u) F(-u), F(l) F(-l), and the curvature of the last term in u - l, odds (1 + odds)."""
        odds = self._odds(z)
        both = expit(z) * expit(-z) * self._ends
        return np.column_stack([both, odds * (1.0 + odds)])

    def row_slopes(self, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        """By x'b."""
        return np.asarray(slopes.sum(axis=1))

    def row_curvatures(self, curvatures: NDArray[np.float64]) -> NDArray[np.float64]:
        """Along x'b, in which thresholds move together."""
        return np.asarray(curvatures[:, :2].sum(axis=1))

    def pearson(self, z: Matrix) -> Vector:
        """sum_k (e_yk - p_k)^2 / p_k = 1 / p_y - 1."""
        pearson: Vector = np.expm1(self.losses(z))
        return pearson

    def slope_product(self, slopes: Matrix) -> Vector:
        """-X's for the columns, and sums by class for the thresholds."""
        above = np.bincount(self.y, slopes[:, 0], minlength=self.classes)[:-1]
        below = np.bincount(self.y, slopes[:, 1], minlength=self.classes)[1:]
        return np.concatenate([-np.asarray(self.X.T @ slopes.sum(axis=1)), above + below])

    def curvature_factor(self, curvatures: Matrix) -> Rows:
        """As `LinearModel` has it; a block of a tall table takes its classes along."""
        if not isinstance(self.X, Tall):
            return self.scaled_rows(curvatures)

        return self.X.triangular(lambda part, X: self._block(part, X).scaled_rows(curvatures[part]), 4)

    def _block(self, part: Any, X: Rows) -> Self:
        """The same model of some rows that follow each other, for what needs neither weights nor offset."""
        model = self._on(X)
        model.y, model._ends = self.y[part], self._ends[part]
        return model

    def scaled_rows(self, curvatures: Matrix) -> Rows:
        """Two rows for each of X, (-x, e_k) for u and (-x, e_{k-1}) for l; and one a class between two."""
        rows = self._designs(np.sqrt(curvatures[:, :2]))
        sums = np.sqrt(np.bincount(self.y, curvatures[:, 2], minlength=self.classes))[1:-1]
        n, K = self.dim, self.classes
        gaps = np.zeros((K - 2, n))
        place = np.arange(K - 2)
        gaps[place, n - K + 2 + place], gaps[place, n - K + 1 + place] = sums, -sums
        if isinstance(rows, np.ndarray):
            return np.vstack([rows, gaps])
        return scipy.sparse.csr_array(scipy.sparse.vstack([rows, gaps], format="csr"))

    def _designs(self, scales: Matrix) -> Rows:
        """The derivatives of u and of l by theta, each row times its scale."""
        parts = []
        for side, upper in enumerate((1, 0)):
            place = self.y - 1 + upper
            rows = np.flatnonzero(self._ends[:, side])
            marks = np.zeros((len(self.y), self.classes - 1))
            marks[rows, place[rows]] = scales[rows, side]
            scaled = -scales[:, side] * self._ends[:, side]
            if isinstance(self.X, np.ndarray):
                parts.append(np.hstack([self.X * scaled[:, None], marks]))
            else:
                parts.append(scipy.sparse.hstack([self.X.multiply(scaled[:, None]), marks], format="csr"))
        if isinstance(self.X, np.ndarray):
            return np.vstack(parts)
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))


def class_probabilities(z: Vector, thresholds: Vector) -> Matrix:
    """P(y = k) for each class, from x'b: differences of F(a_k - x'b), each from the tail with its digits."""
    u = thresholds[None, :] - z[:, None]
    inner = expit(u[:, 1:]) * expit(-u[:, :-1]) * -np.expm1(u[:, :-1] - u[:, 1:])
    return np.column_stack([expit(u[:, 0]), inner, expit(-u[:, -1])])


def threshold_names(classes: tuple[Any, ...]) -> tuple[str, ...]:
    """The thresholds between neighbouring classes."""
    return tuple(f"threshold [{low} | {high}]" for low, high in pairwise(classes))


FAMILY = Family(
    name="ordinal", loss="ordinal", objective=Ordinal, title="Ordinal", link="logit", mean=expit,
    classes="ordered", response="an ordered class", ratio="odds ratio",
)  # fmt: skip
