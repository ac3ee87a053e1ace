"""Successes among trials, y their share, the weight of a row its trials: l(z, y) = log(1 + exp(z)) - y z."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from scipy.special import expit, gammaln, xlog1py, xlogy

from fedshed.linalg.arrays import Matrix, Scalars, Vector, namespace
from fedshed.objectives.family import Family, no_likelihood
from fedshed.objectives.logistic import Logistic


class Binomial(Logistic):
    """Grouped logistic regression (McCullagh and Nelder 1989, chapter 4); its curvature is the same."""

    labelled: ClassVar[bool] = False

    def gains(self, direction: Vector) -> Matrix:
        """How far a row without failures rises, or one without successes falls; one with both must stay."""
        z = self.linear(direction)
        return np.column_stack([np.where(self.y < 1, -z, z), np.where(self.y > 0, z, -z)])

    def null_moments(self) -> Scalars:
        """Failures, successes, and the sum of offsets."""
        positive = self.total(self.y)
        shift = 0.0 if self.offset is None else self.total(self.offset)
        return np.array([self.weight - positive, positive, shift])

    def losses(self, z: Vector) -> Vector:
        """log(1 + exp(z)) - y z, without overflow."""
        xp = namespace(z)
        losses: Vector = xp.log1p(xp.exp(-xp.abs(z))) + xp.maximum(z, 0.0) - self.y * z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """sigma(z) - y."""
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        slopes: Vector = xp.where(z >= 0, 1.0, e) / (1.0 + e) - self.y
        return slopes

    def excess(self, z: Vector) -> Vector:
        """y log(y / p) + (1 - y) log((1 - y) / (1 - p))."""
        entropy: Vector = xlogy(self.y, self.y) + xlog1py(1.0 - self.y, -self.y)
        return np.maximum(self.losses(z) + entropy, 0.0)

    def constants(self) -> Vector:
        """y log y + (1 - y) log(1 - y): each trial a row of its own."""
        constants: Vector = xlogy(self.y, self.y) + xlog1py(1.0 - self.y, -self.y)
        return constants

    def averages(self) -> bool:
        """Whether some are shares of several trials."""
        return bool(((self.y > 0) & (self.y < 1)).any())

    def precise_constant(self) -> float:
        """With log C(n, s) of s successes in n trials, which are one observation together."""
        n = np.ones_like(self.y) if self.weights is None else self.weights
        s = n * self.y
        ways = gammaln(n + 1.0) - gammaln(s + 1.0) - gammaln(n - s + 1.0)
        return self.total(self.constants()) + float(ways.sum())


FAMILY = Family(
    name="binomial", loss="binomial", objective=Binomial, title="Binomial", link="logit", mean=expit,
    least=0.0, most=1.0, response="a share from 0 to 1, or successes with their trials", unit_dispersion=True,
    ratio="odds ratio", grouped=True,
)  # fmt: skip
QUASI = replace(
    FAMILY, name="quasi-binomial", loss="quasi-binomial", title="Quasi-binomial", dispersed=True,
    unit_dispersion=False, log_likelihood=no_likelihood, determination="Pseudo R2 (deviance)",
)  # fmt: skip
