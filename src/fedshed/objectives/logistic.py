"""Logistic regression: l(z, y) = log(1 + exp(-y z)) with y = -1 or +1 (Section 2)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fedshed.arrays import Vector
from fedshed.objectives.base import LinearModel


class Logistic(LinearModel):
    """Binary logistic regression, safe for margins of any size."""

    def recedes(self, direction: Vector, negligible: float) -> bool:
        """No row moves to the wrong side: more of this direction never costs more."""
        return bool((self.y * self.linear(direction) >= -negligible).all())

    def losses(self, z: Vector) -> Vector:
        """log(1 + exp(-yz)), without overflow."""
        return np.logaddexp(0.0, -self.y * z)

    def slopes(self, z: Vector) -> Vector:
        """-y sigma(-yz)."""
        slopes: Vector = -self.y * expit(-self.y * z)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """sigma(z) sigma(-z): never negative, and 0 only by underflow."""
        curvatures: Vector = expit(z) * expit(-z)
        return curvatures
