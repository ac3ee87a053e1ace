"""Two classes, or successes among trials, with the links probit and complementary log-log.

With p = F(z) a success costs -log p and a failure -log(1 - p); both are convex in z, as F and 1 - F are
log-concave.  Neither link is canonical: curvature is the Hessian, errors follow from the expected information
F'^2 / (p (1 - p)), as in a generalised linear model (McCullagh and Nelder 1989, chapter 4).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.special import erfcx, exprel, log_ndtr, ndtr, ndtri

from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives import binomial
from fedshed.objectives.family import Family
from fedshed.objectives.two_classes import TwoClasses

FAR = 300.0  # below -FAR the series of the inverse Mills ratio has more digits than its definition
SMALL = 0.1  # below it the series of u / (1 - exp(-u)) has more digits than the quotient
LARGE = 700.0  # exp(-700) is 1e-304: nothing is left to add


class LinkedClasses(TwoClasses):
    """Two classes; a link gives the loss of a success and of a failure with its derivatives by z."""

    canonical: ClassVar[bool] = False

    def success(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """-log p, and its first two derivatives by z."""
        raise NotImplementedError

    def failure(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """-log(1 - p), and its first two derivatives by z."""
        raise NotImplementedError

    def mixed(self, success: Vector, failure: Vector) -> Vector:
        """The part of each row that belongs to its class."""
        return np.where(self.y > 0, success, failure)

    def losses(self, z: Vector) -> Vector:
        """-log p of the row's class."""
        return self.mixed(self.success(z)[0], self.failure(z)[0])

    def slopes(self, z: Vector) -> Vector:
        """The first derivative."""
        return self.mixed(self.success(z)[1], self.failure(z)[1])

    def curvatures(self, z: Vector) -> Vector:
        """The second derivative, never negative."""
        return self.mixed(self.success(z)[2], self.failure(z)[2])

    def moves(self, theta: Vector, step: Vector) -> Vector:
        """|u| l'' / |l'|, for slopes that vanish more quickly than an exponential does."""
        z = self.margins(theta)
        slopes = np.abs(self.slopes(z))
        ratio = np.divide(self.curvatures(z), slopes, out=np.full_like(z, np.inf), where=slopes > 0)
        return np.abs(self.linear(step)) * np.maximum(1.0, ratio)

    def pearson(self, z: Vector) -> Vector:
        """(y - p)^2 / (p (1 - p)), which is 1 / p - 1 with the probability p of the row's class."""
        pearson: Vector = np.expm1(self.losses(z))
        return pearson


class Shares(LinkedClasses):
    """Successes among trials: y is their share, and the weight of a row its trials."""

    labelled: ClassVar[bool] = False

    def mixed(self, success: Vector, failure: Vector) -> Vector:
        """y times that of a success and 1 - y times that of a failure, without 0 * inf."""
        yes = np.multiply(self.y, success, out=np.zeros_like(success), where=self.y > 0)
        no = np.multiply(1.0 - self.y, failure, out=np.zeros_like(failure), where=self.y < 1)
        return np.asarray(yes + no)

    gains = binomial.Binomial.gains
    null_moments = binomial.Binomial.null_moments
    excess = binomial.Binomial.excess
    constants = binomial.Binomial.constants
    averages = binomial.Binomial.averages
    precise_constant = binomial.Binomial.precise_constant

    def pearson(self, z: Vector) -> Vector:
        """y^2 / p + (1 - y)^2 / (1 - p) - 1, which is (y - p)^2 / (p (1 - p))."""
        p, q = np.exp(-self.success(z)[0]), np.exp(-self.failure(z)[0])
        square = np.square(np.where(self.y > 0.5, q - (1.0 - self.y), self.y - p))
        infinite = np.full_like(square, np.inf)
        return np.asarray(np.divide(square, p * q, out=infinite, where=p * q > 0))


class Probit(LinkedClasses):
    """p = Phi(z): -log Phi(m) with m = y z, whose derivatives follow from the inverse Mills ratio."""

    def success(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """-log Phi(z), -h and h (h + z) with h = phi(z) / Phi(z)."""
        h = mills(z)
        far = np.minimum(z, -FAR)
        series = 1.0 - far**-2 + 6.0 * far**-4
        return -log_ndtr(z), -h, np.where(z < -FAR, series, h * np.maximum(h + z, 0.0))

    def failure(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """Those of a success at -z, mirrored."""
        loss, slope, curvature = self.success(-z)
        return loss, -slope, curvature

    def information(self, z: Vector) -> Vector:
        """phi^2 / (Phi(z) Phi(-z)) = h(z) h(-z)."""
        return mills(z) * mills(-z)

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """Phi^-1 of the share of successes, less the mean offset; 0 where one class has no weight."""
        if not sums[:2].all():
            return np.zeros(1)
        return np.asarray(ndtri(sums[1:2] / sums[:2].sum()) - sums[2] / sums[:2].sum())


class LogLog(LinkedClasses):
    """p = 1 - exp(-u) with u = exp(z), the complementary log-log link: hazards over grouped time."""

    def success(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """-log(1 - exp(-u)), -r and r (u / (1 - exp(-u)) - 1) with r = u / (exp(u) - 1)."""
        u = np.exp(np.minimum(z, np.log(LARGE)))
        r = 1.0 / exprel(u)
        small = np.minimum(u, SMALL)
        series = small / 2 + small**2 / 12 - small**4 / 720 + small**6 / 30240
        loss = np.where(
            z < 0, -z - np.log(exprel(-np.minimum(u, 1.0))), -np.log1p(-np.exp(-np.maximum(u, 1.0)))
        )
        return loss, -r, r * np.where(u < SMALL, series, 1.0 / exprel(-u) - 1.0)

    def failure(self, z: Vector) -> tuple[Vector, Vector, Vector]:
        """exp(z), which equals its first two derivatives."""
        with np.errstate(over="ignore"):  # a point too far away has an infinite cost
            u = np.exp(z)
        return u, u, u

    def information(self, z: Vector) -> Vector:
        """u^2 / (exp(u) - 1)."""
        u = np.exp(np.minimum(z, np.log(LARGE)))
        return np.asarray(u / exprel(u))

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """log(-log(1 - p)) of the share p, less the mean offset; 0 where one class has no weight."""
        if not sums[:2].all():
            return np.zeros(1)
        failures, weight = sums[:1], sums[:2].sum()
        return np.asarray(np.log(-np.log(failures / weight)) - sums[2] / weight)


class ProbitShares(Shares, Probit):
    """Successes among trials, p = Phi(z)."""


class LogLogShares(Shares, LogLog):
    """Successes among trials, p = 1 - exp(-exp(z))."""


def mills(z: Vector) -> Vector:
    """phi(z) / Phi(z) = sqrt(2 / pi) / erfcx(-z / sqrt(2)), which keeps its digits in both tails."""
    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-z / np.sqrt(2.0)))


def density(z: Vector) -> Vector:
    """phi(z)."""
    return np.asarray(np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi))


def loglog_mean(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - exp(-exp(z))."""
    return np.asarray(-np.expm1(-np.exp(np.minimum(z, np.log(LARGE)))))


def loglog_slope(z: Vector) -> Vector:
    """exp(z - exp(z))."""
    return np.asarray(np.exp(z - np.exp(np.minimum(z, np.log(LARGE)))))


PROBIT = Family(
    name="probit", loss="probit", objective=Probit, title="Binomial", link="probit", mean=ndtr,
    classes="two", response="one of two classes", slope=density,
)  # fmt: skip
CLOGLOG = replace(
    PROBIT, name="cloglog", loss="cloglog", objective=LogLog, link="cloglog", mean=loglog_mean,
    slope=loglog_slope, ratio="hazard ratio",
)  # fmt: skip
PROBIT_SHARES = replace(
    binomial.FAMILY, name="binomial-probit", loss="binomial-probit", objective=ProbitShares, link="probit",
    mean=ndtr, slope=density, ratio="exp(coef)",
)  # fmt: skip
CLOGLOG_SHARES = replace(
    PROBIT_SHARES, name="binomial-cloglog", loss="binomial-cloglog", objective=LogLogShares, link="cloglog",
    mean=loglog_mean, slope=loglog_slope, ratio="hazard ratio",
)  # fmt: skip
