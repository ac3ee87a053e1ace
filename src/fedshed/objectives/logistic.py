"""Logistic regression: l(z, y) = log(1 + exp(-y z)) with y = -1 or +1 (Section 2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import expit

from fedshed.linalg.arrays import Scalars, Vector, namespace
from fedshed.objectives.family import Family
from fedshed.objectives.two_classes import TwoClasses


class Logistic(TwoClasses):
    """Logistic regression of two classes: l(z, y) = log(1 + exp(-y z)), computed without overflow.

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array
        -1 or +1 per row.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        A number per row that is added to its margin. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import Logistic
    >>> model = Logistic(np.array([[1.0], [2.0]]), np.array([-1.0, 1.0]))
    >>> round(model.at(np.array([0.0])).value, 4)
    0.6931
    """

    rowwise: ClassVar[bool] = True

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The log odds, less the mean offset; 0 where one class has no weight."""
        if not sums[:2].all():
            return np.zeros(1)
        return np.asarray(np.log(sums[1:2] / sums[:1]) - sums[2] / sums[:2].sum())

    def losses(self, z: Vector) -> Vector:
        """log(1 + exp(-yz)), without overflow."""
        xp, m = namespace(z), self.y * z
        losses: Vector = xp.log1p(xp.exp(-xp.abs(m))) + xp.maximum(-m, 0.0)
        return losses

    def slopes(self, z: Vector) -> Vector:
        """-y sigma(-yz)."""
        xp, m = namespace(z), self.y * z
        e = xp.exp(-xp.abs(m))
        slopes: Vector = -self.y * xp.where(m >= 0, e, 1.0) / (1.0 + e)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """sigma(z) sigma(-z): never negative, and 0 only by underflow."""
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        curvatures: Vector = e / xp.square(1.0 + e)
        return curvatures


FAMILY = Family(
    name="logistic", loss="logistic", objective=Logistic, title="Binomial", link="logit", mean=expit,
    classes="two", response="one of two classes", ratio="odds ratio",
)  # fmt: skip
