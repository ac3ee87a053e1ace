"""Positive amounts with a logarithmic link, mu = exp(z): l(z, y) = y exp(-z) + z, convex in z."""

from __future__ import annotations

from math import isclose, lgamma, log
from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel
from fedshed.objectives.family import Family, Totals


class Gamma(LinearModel):
    """Positive amounts: l(z, y) = y exp(-z) + z (McCullagh and Nelder 1989, chapter 8), dispersion apart."""

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    canonical: ClassVar[bool] = False

    def null_moments(self) -> Scalars:
        """The sums of y exp(-offset) and of weights."""
        return np.array(
            [self.total(self.y if self.offset is None else self.y * np.exp(-self.offset)), self.weight]
        )

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of the mean."""
        levels: Vector = np.log(sums[:1] / sums[1])
        return levels

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """A sum of amounts, and the weight."""
        return len(sums) == 2 and sums[0] >= 0 and isclose(sums[1], weight)

    def losses(self, z: Vector) -> Vector:
        """y exp(-z) + z."""
        losses: Vector = self.y * namespace(z).exp(-z) + z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """1 - y exp(-z)."""
        slopes: Vector = 1.0 - self.y * namespace(z).exp(-z)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """y exp(-z)."""
        curvatures: Vector = self.y * namespace(z).exp(-z)
        return curvatures

    def information(self, z: Vector) -> Vector:
        """1: the logarithm is not the canonical link, so this is not the curvature."""
        return np.ones_like(z)

    def excess(self, z: Vector) -> Vector:
        """exp(-t) - 1 + t with t = z - log y, which keeps its digits where the dispersion is small."""
        t = z - np.log(self.y)
        excess: Vector = np.expm1(-t) + t
        return excess

    def constants(self) -> Vector:
        """-log y."""
        constants: Vector = -np.log(self.y)
        return constants

    def precise_constant(self) -> float | None:
        """With precisions it depends on the dispersion, row by row."""
        return self.total(self.constants()) if not self.weighing else None


def log_likelihood(fit: Totals, phi: float | None) -> float | None:
    """With shape 1 / phi (McCullagh and Nelder 1989, 8.3); unknown where the dispersion is."""
    if not phi or fit.constant is None:
        return None
    D, W = fit.deviance, fit.weight
    return fit.constant - (D / 2 + W + W * log(phi)) / phi - W * lgamma(1 / phi)


FAMILY = Family(
    name="gamma", loss="gamma", objective=Gamma, title="Gamma", link="log", dispersed=True,
    log_likelihood=log_likelihood, least=0.0, positive=True, response="an amount > 0",
    determination="Pseudo R2 (deviance)", ratio="ratio of means",
)  # fmt: skip
