"""Positive responses with a logarithmic link, mu = exp(z): Poisson and Gamma regression, both convex in z."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import gammaln, xlogy

from fedshed.linalg.arrays import Matrix, Scalars, Vector, namespace
from fedshed.objectives.base import LinearModel


class Poisson(LinearModel):
    """Counts: l(z, y) = exp(z) - y z (McCullagh and Nelder 1989, chapter 6)."""

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    can_recede: ClassVar[bool] = True

    def gains(self, direction: Vector) -> Matrix:
        """How far the mean of each row falls: to 0 for ever without a count, but with one it must stay."""
        z = self.linear(direction)
        return np.column_stack([-z, np.where(self.y > 0, z, -z)])

    def null_moments(self) -> Scalars:
        """The sums of counts and of exposures exp(offset)."""
        exposure = self.weight if self.offset is None else self.total(np.exp(self.offset))
        return np.array([self.total(self.y), exposure])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of the rate; 0 where there is no count at all."""
        levels: Vector = np.log(sums[:1] / sums[1]) if sums[0] > 0 else np.zeros(1)
        return levels

    def losses(self, z: Vector) -> Vector:
        """exp(z) - y z."""
        losses: Vector = namespace(z).exp(z) - self.y * z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """exp(z) - y."""
        slopes: Vector = namespace(z).exp(z) - self.y
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """exp(z)."""
        curvatures: Vector = namespace(z).exp(z)
        return curvatures

    def excess(self, z: Vector) -> Vector:
        """y (exp(t) - 1 - t), t = z - log y, which keeps its digits where a count is large; exp(z) for 0."""
        counted = self.y > 0
        t = z - np.log(self.y, out=np.zeros_like(z), where=counted)
        return np.where(counted, self.y * (np.expm1(t) - t), np.exp(z))

    def constants(self) -> Vector:
        """y log y - y - log y!."""
        constants: Vector = xlogy(self.y, self.y) - self.y - gammaln(self.y + 1.0)
        return constants


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
