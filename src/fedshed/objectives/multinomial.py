"""Multinomial logistic regression in contrasts that sum to 0 over the classes."""

from __future__ import annotations

from math import isclose
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.rows import Rows
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family


def contrasts(classes: int) -> Matrix:
    """Helmert's contrasts Q: a K x (K - 1) matrix with orthonormal columns that sum to 0.

    The coefficients of the K classes are Q A for the K - 1 rows of A that are estimated. As |Q A| = |A|, a
    ridge on A is the ridge on all classes; and no coefficient is left undetermined, with or without a ridge.

    Parameters
    ----------
    classes : int
        The number K of classes.

    Returns
    -------
    array
        The matrix Q.

    Examples
    --------
    >>> from fedshed.objectives import contrasts
    >>> contrasts(3).shape
    (3, 2)
    """
    Q: Matrix = scipy.linalg.helmert(classes).T
    return Q


class Multinomial(LinearModel):
    """Multinomial logistic regression: l(z, y) = log sum_k exp(z_k) - z_y with z = Q A x.

    theta consists of the rows of A one after the other, and y is the index of the class; see `contrasts` for
    Q.

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array of int
        The index of the class of each row.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        Not used by this model.
    classes : int
        The number K of classes.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import Multinomial
    >>> model = Multinomial(np.array([[1.0], [2.0]]), np.array([0, 2]), classes=3)
    >>> round(model.at(np.zeros(2)).value, 4)
    1.0986
    """

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
        self.classes, self._Q = classes, contrasts(classes)
        self.dim = int(X.shape[1]) * (classes - 1)
        self._mine = np.arange(len(y)), self.y

    def null(self) -> Self:
        """The same classes and weights with an intercept as the only column."""
        return type(self)(np.ones((len(self.y), 1)), self.y, self.weights, classes=self.classes)

    def linear(self, direction: Vector) -> Matrix:
        """z of each class, N x K."""
        A = direction.reshape(self.classes - 1, -1)
        return np.asarray((self.X @ A.T) @ self._Q.T)

    def null_moments(self) -> Scalars:
        """The weight of each class."""
        return np.bincount(self.y, self.weights, minlength=self.classes).astype(np.float64)

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """Contrasts of the logarithms of the shares; 0 where a class has no weight."""
        if not sums.all():
            return np.zeros(len(sums) - 1)
        return np.asarray(contrasts(len(sums)).T @ np.log(sums / sums.sum()))

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """A weight for each class, which add up to the site's."""
        return len(sums) >= 2 and sums.min() >= 0 and isclose(sums.sum(), weight)

    def rows(self, chosen: NDArray[np.intp]) -> Self:
        """The same model of some rows, each counted once."""
        return type(self)(self.X[chosen], self.y[chosen], classes=self.classes)

    def gains(self, direction: Vector) -> Matrix:
        """How far each row's own class gets ahead of each other."""
        z = self.linear(direction)
        return np.asarray(z[self._mine][:, None] - z)

    def losses(self, z: Matrix) -> Vector:
        """log sum_k exp(z_k) - z_y."""
        losses: Vector = logsumexp(z, axis=1) - z[self._mine]
        return losses

    def slopes(self, z: Matrix) -> Matrix:
        """p - e_y."""
        slopes: Matrix = softmax(z, axis=1)
        slopes[self._mine] -= 1.0
        return slopes

    def probabilities(self, z: Matrix) -> Matrix:
        """The probability of each class, in an evaluation."""
        probabilities: Matrix = softmax(z, axis=1)
        return probabilities

    def curvatures(self, z: Matrix) -> Matrix:
        """The probabilities p, from which diag(p) - pp' follows."""
        return self.probabilities(z)

    def pearson(self, z: Matrix) -> Vector:
        """sum_k (e_yk - p_k)^2 / p_k = 1 / p_y - 1."""
        pearson: Vector = np.expm1(self.losses(z))
        return pearson

    def slope_product(self, slopes: Matrix) -> Vector:
        """Q'S'X row after row."""
        return np.asarray((self.X.T @ (slopes @ self._Q)).T).ravel()

    def scaled_rows(self, curvatures: Matrix) -> Rows:
        """K rows for each row of X: with r = sqrt(p), (I - rr') diag(r) is a root of diag(p) - pp'.

        `curvatures` are shares s p of each row, s its share: the root is that of s (diag(p) - pp').
        """
        share = curvatures.sum(axis=1, keepdims=True)
        r = np.sqrt(curvatures / np.where(share > 0, share, 1.0))
        roots = (
            np.sqrt(share)[:, :, None]
            * (np.eye(self.classes) - r[:, :, None] * r[:, None, :])
            * r[:, None, :]
        )
        weights = roots @ self._Q  # N x K x (K-1)
        if isinstance(self.X, np.ndarray):
            return (weights[:, :, :, None] * self.X[:, None, None, :]).reshape(-1, self.dim)
        blocks = [
            scipy.sparse.hstack([self.X.multiply(weights[:, k, c, None]) for c in range(self.classes - 1)])
            for k in range(self.classes)
        ]
        return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))


FAMILY = Family(
    name="multinomial", loss="multinomial", objective=Multinomial, title="Multinomial", link="softmax",
    mean=softmax, classes="many", response="a class", ratio="odds ratio",
)  # fmt: skip
