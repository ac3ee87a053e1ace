"""Positive amounts with variance phi mu^3 and a logarithmic link: l(z, y) = y exp(-2z) / 2 - exp(-z).

The cost is not convex in z: where mu > 2 y its second derivative 2 y exp(-2z) - exp(-z) is negative.  So the
curvature is the expected information exp(-z), as in Fisher scoring, and a limit is a local optimum.
"""

from __future__ import annotations

from math import log, pi
from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family, Totals


class InverseGaussian(LinearModel):
    """Positive amounts with a long tail (McCullagh and Nelder 1989, chapter 2), dispersion apart."""

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True

    def null_moments(self) -> Scalars:
        """The sums of y exp(-2 offset) and of exp(-offset)."""
        shift = np.zeros_like(self.y) if self.offset is None else self.offset
        return np.array([self.total(self.y * np.exp(-2 * shift)), self.total(np.exp(-shift))])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of their quotient, at which the slope is 0."""
        levels: Vector = np.log(sums[:1] / sums[1])
        return levels

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Two positive sums."""
        return len(sums) == 2 and sums.min() > 0

    def losses(self, z: Vector) -> Vector:
        """y exp(-2z) / 2 - exp(-z)."""
        e = namespace(z).exp(-z)
        losses: Vector = e * (self.y * e / 2 - 1.0)
        return losses

    def slopes(self, z: Vector) -> Vector:
        """exp(-z) (1 - y exp(-z))."""
        e = namespace(z).exp(-z)
        slopes: Vector = e * (1.0 - self.y * e)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """exp(-z), the expectation of the second derivative."""
        curvatures: Vector = namespace(z).exp(-z)
        return curvatures

    def excess(self, z: Vector) -> Vector:
        """(y exp(-z) - 1)^2 / (2 y), half the deviance."""
        excess: Vector = np.square(np.expm1(np.log(self.y) - z)) / (2 * self.y)
        return excess

    def constants(self) -> Vector:
        """-3 log(y) / 2."""
        constants: Vector = -1.5 * np.log(self.y)
        return constants

    def precise_constant(self) -> float:
        """With sum log(w) / 2: row j has the dispersion phi / w_j."""
        weights = np.ones_like(self.y) if self.weights is None else self.weights
        return float(self.constants().sum() + np.log(weights).sum() / 2)


def log_likelihood(fit: Totals, phi: float | None) -> float | None:
    """sum of -(log(2 pi phi y^3) + d / phi) / 2; unknown where the dispersion is."""
    if not phi or fit.constant is None:
        return None
    return fit.constant - fit.observations / 2 * log(2 * pi * phi) - fit.deviance / (2 * phi)


FAMILY = Family(
    name="inverse-gaussian", loss="inverse-gaussian", objective=InverseGaussian, title="Inverse Gaussian",
    link="log", dispersed=True, log_likelihood=log_likelihood, least=0.0, positive=True,
    response="an amount > 0", determination="Pseudo R2 (deviance)", ratio="ratio of means", convex=False,
)  # fmt: skip
