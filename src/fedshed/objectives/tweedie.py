"""Amounts that are often 0, with variance phi mu^p, 1 < p < 2, and a logarithmic link, mu = exp(z).

    l(z, y) = y exp(-(p - 1) z) / (p - 1) + exp((2 - p) z) / (2 - p)

is a sum of exponentials of z with coefficients >= 0, and so convex; twice l less its least is the deviance
(Jorgensen 1987, JRSS B 49:127; Dunn and Smyth 2018, Generalized Linear Models with Examples in R, 12.2).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedshed.linalg.arrays import Matrix, Scalars, Vector, namespace
from fedshed.objectives.family import Family, Parameter, no_likelihood
from fedshed.objectives.parametric import Parametric


class Tweedie(Parametric):
    """Sums of a Poisson number of gamma amounts: p, the power of the variance, is the parameter."""

    labelled: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    canonical: ClassVar[bool] = False
    can_recede: ClassVar[bool] = True
    parameter: ClassVar[float] = 1.5

    def _powers(self, z: Vector) -> tuple[Vector, Vector]:
        """y mu^(1 - p) and mu^(2 - p)."""
        xp, p = namespace(z), self.parameter
        return self.y * xp.exp((1.0 - p) * z), xp.exp((2.0 - p) * z)

    def losses(self, z: Vector) -> Vector:
        """y mu^(1 - p) / (p - 1) + mu^(2 - p) / (2 - p)."""
        amount, level = self._powers(z)
        return amount / (self.parameter - 1.0) + level / (2.0 - self.parameter)

    def slopes(self, z: Vector) -> Vector:
        """mu^(2 - p) - y mu^(1 - p)."""
        amount, level = self._powers(z)
        return level - amount

    def curvatures(self, z: Vector) -> Vector:
        """(2 - p) mu^(2 - p) + (p - 1) y mu^(1 - p)."""
        amount, level = self._powers(z)
        return (2.0 - self.parameter) * level + (self.parameter - 1.0) * amount

    def information(self, z: Vector) -> Vector:
        """mu^(2 - p), the expectation of the curvature."""
        information: Vector = np.exp((2.0 - self.parameter) * z)
        return information

    def excess(self, z: Vector) -> Vector:
        """y^(2-p) [(e^(-(p-1)t) - 1) / (p-1) + (e^((2-p)t) - 1) / (2-p)], t = z - log y; of 0 the loss."""
        p, some = self.parameter, self.y > 0
        t = z - np.log(self.y, out=np.zeros_like(z), where=some)
        level = np.expm1((2.0 - p) * t) / (2.0 - p)
        own = np.where(some, self.y, 1.0) ** (2.0 - p) * (np.expm1((1.0 - p) * t) / (p - 1.0) + level)
        return np.where(some, np.maximum(own, 0.0), np.exp((2.0 - p) * z) / (2.0 - p))

    def gains(self, direction: Vector) -> Matrix:
        """How far the mean of each row falls: without limit if its amount is 0, else not at all."""
        z = self.linear(direction)
        return np.column_stack([-z, np.where(self.y > 0, z, -z)])

    def null_moments(self) -> Scalars:
        """The sums of y exp((1 - p) offset) and exp((2 - p) offset)."""
        shift, p = np.zeros(len(self.y)) if self.offset is None else self.offset, self.parameter
        amounts = self.total(self.y * np.exp((1.0 - p) * shift))
        return np.array([amounts, self.total(np.exp((2.0 - p) * shift))])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The logarithm of the mean; 0 where there is no amount at all."""
        levels: Vector = np.log(sums[:1] / sums[1]) if sums[0] > 0 else np.zeros(1)
        return levels

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Two sums, of which the Master knows no more than their signs."""
        return len(sums) == 2 and bool(sums[0] >= 0) and bool(sums[1] > 0)


FAMILY = Family(
    name="tweedie", loss="tweedie", objective=Tweedie, title="Tweedie", link="log", dispersed=True,
    log_likelihood=no_likelihood, least=0.0, response="an amount >= 0", determination="Pseudo R2 (deviance)",
    ratio="ratio of means", parameter=Parameter("p", least=1.001, most=1.999, start=1.5),
)  # fmt: skip
