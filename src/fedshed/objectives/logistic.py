"""Logistic regression: l(z, y) = log(1 + exp(-y z)) with y = -1 or +1 (Section 2)."""

from __future__ import annotations

from math import isclose
from typing import ClassVar

import numpy as np
from scipy.special import expit

from fedshed.linalg.arrays import Matrix, Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family


class Logistic(LinearModel):
    """Binary logistic regression, safe for margins of any size."""

    can_recede: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    def gains(self, direction: Vector) -> Matrix:
        """How far each row moves to its own side."""
        return np.asarray(self.y * self.linear(direction))[:, None]

    def null_moments(self) -> Scalars:
        """The weights of both classes, and the sum of offsets."""
        positive = self.total((self.y > 0).astype(np.float64))
        shift = 0.0 if self.offset is None else self.total(self.offset)
        return np.array([self.weight - positive, positive, shift])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The log odds, less the mean offset; 0 where one class has no weight."""
        if not sums[:2].all():
            return np.zeros(1)
        return np.asarray(np.log(sums[1:2] / sums[:1]) - sums[2] / sums[:2].sum())

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Two weights that add up to the site's, and the sum of offsets."""
        return len(sums) == 3 and sums[:2].min() >= -1e-9 * weight and isclose(sums[:2].sum(), weight)

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
