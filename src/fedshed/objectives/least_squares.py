"""Least squares: l(z, y) = (z - y)^2 / 2 (Section 2)."""

from __future__ import annotations

from math import isclose, log, pi
from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family, Totals


class LeastSquares(LinearModel):
    """Linear regression: l(z, y) = (z - y)^2 / 2; its Hessian X'X/N does not depend on theta.

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array
        A number per row.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        A number per row that is added to its margin. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import LeastSquares
    >>> model = LeastSquares(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    >>> round(model.at(np.array([0.0])).value, 4)
    2.5
    """

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True

    def null_moments(self) -> Scalars:
        """The sum of y - offset, and of weights."""
        return np.array([self.total(self.y - (0.0 if self.offset is None else self.offset)), self.weight])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The mean."""
        return np.asarray(sums[:1] / sums[1])

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Whether there are two sums, the second of which is the weight."""
        return len(sums) == 2 and isclose(sums[1], weight)

    def losses(self, z: Vector) -> Vector:
        """(z - y)^2 / 2."""
        losses: Vector = 0.5 * namespace(z).square(z - self.y)
        return losses

    def slopes(self, z: Vector) -> Vector:
        """z - y."""
        slopes: Vector = z - self.y
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """1."""
        curvatures: Vector = namespace(z).ones_like(z)
        return curvatures

    def precise_constant(self) -> float:
        """sum log(w) / 2: row j has the variance phi / w_j."""
        return 0.0 if self.weights is None else float(np.log(self.weights).sum()) / 2


def log_likelihood(fit: Totals, phi: float | None) -> float | None:
    """The log-likelihood, maximal over the variance too; a perfect fit has none."""
    D, N = fit.deviance, fit.observations
    return None if D <= 0 or fit.constant is None else fit.constant - N / 2 * (log(2 * pi * D / N) + 1)


FAMILY = Family(
    name="linear", loss="least-squares", objective=LeastSquares, title="Gaussian", link="identity",
    mean=np.asarray, dispersed=True, log_likelihood=log_likelihood, determination="R-squared",
    quadratic=True,
)  # fmt: skip
