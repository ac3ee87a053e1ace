"""Counts that vary more than Poisson's, V = mu + alpha mu^2 (NB2), with a logarithmic link, mu = exp(z).

    l(z, y) = (y + 1/alpha) log(1 + alpha exp(z)) - y z

is convex in z for each alpha: with q = alpha mu / (1 + alpha mu), 0 < q < 1,

    l' = (y + 1/alpha) q - y = (mu - y) / (1 + alpha mu),    l'' = (y + 1/alpha) q (1 - q) > 0.

With r = 1 / alpha the log-likelihood of a row is (Hilbe 2011, Negative Binomial Regression, 8.2)

    L = log Gamma(y + r) - log Gamma(r) - log y! - y log r + y z - (y + r) log(1 + mu / r).

Its derivatives by log alpha are -r L_r and r L_r + r^2 L_rr; by z and log alpha -r (y - mu) mu / (r + mu)^2,
whose expectation is 0: theta and alpha are orthogonal.  alpha = 0 is Poisson's model, where
dL / d alpha = ((y - mu)^2 - y) / 2, and its information is mu^2 / 2.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import gammaln, polygamma, psi, xlogy

from fedshed.linalg.arrays import Vector, namespace
from fedshed.objectives.family import Family, Parameter
from fedshed.objectives.objective import Sensitivity
from fedshed.objectives.parametric import Parametric
from fedshed.objectives.poisson import Poisson

LARGE = 50.0  # r from which Stirling's series is exact to rounding, where differences lose digits


class NegativeBinomial(Parametric, Poisson):
    """Counts with variance mu + alpha mu^2: alpha is the parameter; Poisson's where it is 0."""

    canonical: ClassVar[bool] = False
    parameter: ClassVar[float] = 1.0

    @property
    def _r(self) -> float:
        return 1.0 / self.parameter

    def losses(self, z: Vector) -> Vector:
        """(y + 1/alpha) log(1 + alpha exp(z)) - y z, without overflow."""
        if self.parameter == 0.0:
            return super().losses(z)
        xp, t = namespace(z), z + float(np.log(self.parameter))
        softplus = xp.log1p(xp.exp(-xp.abs(t))) + xp.maximum(t, 0.0 * t)
        losses: Vector = (self.y + self._r) * softplus - self.y * z
        return losses

    def slopes(self, z: Vector) -> Vector:
        """(mu - y) / (1 + alpha mu), as (1 - y / mu) / (1 / mu + alpha) where mu is large."""
        if self.parameter == 0.0:
            return super().slopes(z)
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        high, low = (1.0 - self.y * e) / (e + self.parameter), (e - self.y) / (1.0 + self.parameter * e)
        slopes: Vector = xp.where(z > 0, high, low)
        return slopes

    def curvatures(self, z: Vector) -> Vector:
        """(y + 1/alpha) q (1 - q)."""
        if self.parameter == 0.0:
            return super().curvatures(z)
        xp = namespace(z)
        e = xp.exp(-xp.abs(z + float(np.log(self.parameter))))
        curvatures: Vector = (self.y + self._r) * e / xp.square(1.0 + e)
        return curvatures

    def information(self, z: Vector) -> Vector:
        """mu / (1 + alpha mu)."""
        mu = np.exp(z)
        information: Vector = np.where(np.isfinite(mu), mu / (1.0 + self.parameter * mu), self._limit())
        return information

    def _limit(self) -> float:
        return np.inf if self.parameter == 0.0 else self._r

    def excess(self, z: Vector) -> Vector:
        """y log(y / mu) - (y + 1/alpha) log((1 + alpha y) / (1 + alpha mu)), at least 0."""
        if self.parameter == 0.0:
            return super().excess(z)
        return np.maximum(self.losses(z) - self._least(), 0.0)

    def _least(self) -> Vector:
        """The least loss of each row, at mu = y."""
        least: Vector = (self.y + self._r) * np.log1p(self.parameter * self.y) - xlogy(self.y, self.y)
        return least

    def constants(self) -> Vector:
        """L where mu = y."""
        if self.parameter == 0.0:
            return super().constants()
        constants: Vector = _rising(self.y, self._r) - gammaln(self.y + 1.0) - self._least()
        return constants

    def precise_constant(self) -> float:
        """A weight multiplies the whole of a row's log-likelihood."""
        return super().precise_constant() if self.parameter == 0.0 else self.total(self.constants())

    def sensitivity(self, theta: Vector) -> Sensitivity:
        """By log alpha; by alpha where it is 0."""
        z = self.margins(theta)
        mu, y = np.exp(z), self.y
        if self.parameter == 0.0:
            slope, curvature = (y - np.square(y - mu)) / 2, np.square(mu) / 2
            return Sensitivity(self.mean(slope), self.mean(curvature), np.zeros(self.dim))
        r = self._r
        first, second = _by_r(y, mu, r)
        mixed = r * (y - mu) * mu / np.square(r + mu)
        return Sensitivity(
            float(self.mean(r * first)),
            float(self.mean(-r * first - r * r * second)),
            self.slope_product(self.shares(mixed)),
        )


def _rising(y: Vector, r: float) -> Vector:
    """log Gamma(y + r) - log Gamma(r) - y log r, which is sum_k<y log(1 + k / r) of a whole number y."""
    if r < LARGE:
        return np.asarray(gammaln(y + r) - gammaln(r) - y * np.log(r))
    return np.asarray((y + r - 0.5) * np.log1p(y / r) - y + _stirling(y + r) - _stirling(r))


def _stirling(x: Vector | float) -> Vector | float:
    """log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2."""
    s = 1.0 / (x * x)
    return (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s / 1680))) / x


def _by_r(y: Vector, mu: Vector, r: float) -> tuple[Vector, Vector]:
    """L_r and L_rr of each row."""
    if r < LARGE:
        one, two = psi(y + r) - psi(r), polygamma(1, y + r) - polygamma(1, r)
    else:
        one = np.log1p(y / r) + _psi_tail(y + r) - _psi_tail(r)
        two = _trigamma(y + r) - _trigamma(r)
    whole = r * (r + mu)
    first = one - y / r - np.log1p(mu / r) + (y + r) * mu / whole
    second = two + y / r**2 + mu / whole + mu * (whole - (y + r) * (2 * r + mu)) / np.square(whole)
    return np.asarray(first), np.asarray(second)


def _psi_tail(x: Vector | float) -> Vector | float:
    """psi(x) - log x."""
    s = 1.0 / (x * x)
    return -0.5 / x - s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s / 240)))


def _trigamma(x: Vector | float) -> Vector | float:
    """psi'(x)."""
    s = 1.0 / (x * x)
    return (1.0 + (0.5 + (1 / 6 - s * (1 / 30 - s * (1 / 42 - s / 30))) / x) / x) / x


FAMILY = Family(
    name="negative-binomial", loss="negative-binomial", objective=NegativeBinomial, title="Negative binomial",
    link="log", least=0.0, response="a count >= 0", unit_dispersion=True, ratio="rate ratio",
    parameter=Parameter(
        "alpha", least=1e-7, most=1e4, start=1.0, searched=True, none=(
            "The counts vary no more than in a Poisson model: alpha is 0, the end of its range, and the fit "
            "is a Poisson regression."
        ),
    ),
)  # fmt: skip
