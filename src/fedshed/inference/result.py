"""`Inference`: what the exchange taught, as plain data that JSON can hold, and what follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import sqrt

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.special import ndtr, ndtri

from fedshed._utils.errors import ConfigError
from fedshed.exchange.wire import Traffic
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.objectives import FAMILIES, family_of
from fedshed.solve.certificate import Certificate

FEW_SITES = 10
FAR, MISSED = 1e-3, 1e-6  # standard errors, and share of the null deviance, between estimate and optimum
ROUNDED = 1e-20  # of the null deviance: less cannot be told from rounding
Numbers = tuple[float, ...]


class FewSitesWarning(UserWarning):
    """Errors clustered by site rest on too few sites."""


class Score(Struct, frozen=True):
    """A score test: chi2 on df degrees of freedom; no p-value where there is nothing to test."""

    statistic: float
    df: int
    p_value: float | None


class SiteReport(Struct, frozen=True):
    """One site: its fit, what it adds to the test of heterogeneity, and its own test against the others."""

    rows: int
    weight: float
    deviance: float
    contribution: float
    score: Score


class Inference(Struct, frozen=True):
    """Estimates with their covariances, measures of fit, and reports of the sites.

    `weight` is W, the sum of the weights: each counts its row so many times.  With a ridge `df_model` is the
    effective number of parameters, tr(H_l2^-1 H_0).  Covariances are packed upper triangles; None where the
    information is singular or the dispersion unknown, and `notes` say why.
    """

    loss: str
    names: tuple[str, ...]
    coefficients: Numbers
    model_covariance: Numbers | None
    cluster_covariance: Numbers | None
    dispersion: float | None
    l2: Numbers
    rows: int
    weight: float
    df_model: float
    deviance: float
    null_deviance: float | None
    pearson: float | None
    log_likelihood: float | None
    certificate: Certificate
    heterogeneity: Score
    sites: dict[str, SiteReport]
    traffic: Traffic = Traffic()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        covariances = (self.model_covariance, self.cluster_covariance)
        if self.loss not in FAMILIES or len(self.coefficients) != n:
            raise ValueError(f"{len(self.coefficients)} coefficients of {n} names, loss {self.loss!r}")
        if any(given is not None and len(given) != n * (n + 1) // 2 for given in covariances):
            raise ValueError(f"a covariance of {n} coefficients has {n * (n + 1) // 2} entries")

    @property
    def df_resid(self) -> float:
        """W - k."""
        return self.weight - self.df_model

    @property
    def coef(self) -> Vector:
        """The estimates."""
        return np.array(self.coefficients)

    def covariance(self, robust: bool = False) -> Matrix:
        """Of the estimates: from the model (aware of the ridge), or robust, clustered by site."""
        packed = self._robust() if robust else self.model_covariance
        n = len(self.names)
        return np.full((n, n), np.nan) if packed is None else unpack(np.array(packed), n)

    def std_err(self, robust: bool = False) -> Vector:
        """Standard errors."""
        errors: Vector = np.sqrt(np.maximum(np.diag(self.covariance(robust)), 0.0))
        return errors

    def z(self, robust: bool = False) -> Vector:
        """coef / std err."""
        return self.table(robust=robust)[:, 2]

    def p_values(self, robust: bool = False) -> Vector:
        """Two-sided, normal."""
        return self.table(robust=robust)[:, 3]

    def conf_int(self, level: float = 0.95, robust: bool = False) -> Matrix:
        """Lower and upper ends, one row a coefficient."""
        return self.table(level, robust)[:, 4:]

    def table(self, level: float = 0.95, robust: bool = False) -> Matrix:
        """coef, std err, z, p and the ends of the confidence interval: one row a coefficient."""
        if not 0 < level < 1:
            raise ConfigError(f"level must lie between 0 and 1, not {level!r}")
        coef, error = self.coef, self.std_err(robust)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = coef / error
        half = -ndtri((1 - level) / 2) * error
        return np.column_stack([coef, error, z, 2 * ndtr(-np.abs(z)), coef - half, coef + half])

    @property
    def aic(self) -> float | None:
        """-2 log L + 2 k; the dispersion is not counted, as in statsmodels."""
        return None if self.log_likelihood is None else -2 * self.log_likelihood + 2 * self.df_model

    @property
    def deviance_explained(self) -> float | None:
        """1 - D / D_null: R^2 for least squares."""
        return None if not self.null_deviance else 1 - self.deviance / self.null_deviance

    @property
    def mcfadden(self) -> float | None:
        """1 - log L / log L_null, for families without a dispersion."""
        if family_of(self.loss).dispersed or self.null_deviance is None or not self.log_likelihood:
            return None
        null = self.log_likelihood + (self.deviance - self.null_deviance) / 2
        return 1 - self.log_likelihood / null if null else None

    @property
    def distance(self) -> float | None:
        """How far the optimum may still be, in standard errors: (W g'H^-1 g / phi)^(1/2)."""
        estimate = self.certificate.estimate
        return (
            None if estimate is None or not self.dispersion else sqrt(self._gain(estimate) / self.dispersion)
        )

    @property
    def near(self) -> bool:
        """Whether the optimum is known to be within a small part of a standard error."""
        return self.distance is not None and self.distance < FAR

    @property
    def shortfall(self) -> str | None:
        """Why a gradient below tol is not enough here: in small units a gradient is small everywhere."""
        if self.distance is None or not self.null_deviance:
            return None
        share = self._gain(self.certificate.estimate or 0.0) / self.null_deviance
        excess = max(self.distance / FAR, sqrt(share / MISSED))
        if excess < 1 or share < ROUNDED:  # the latter: a perfect fit
            return None
        # in units where the curvature is 1 the gradient's norm is sqrt(g'H^-1 g)
        elsewhere = sqrt(2 * max(self.certificate.estimate or 0.0, 0.0)) > 10 * self.certificate.grad_norm
        remedy = "standardise" if elsewhere else "give the target in units in which its numbers are larger"
        return (
            f"the gradient norm is at most tol, but in these units the optimum is {self.distance:.2g} "
            f"standard errors and {share:.2g} of the null deviance away; {remedy}, or "
            f"set tol = {self.certificate.grad_norm / excess:.0e}"
        )

    def _gain(self, estimate: float) -> float:
        """By how much the deviance may still fall."""
        return 2 * self.weight * max(estimate, 0.0)

    def transformed(self, A: Matrix, names: Sequence[str]) -> Inference:
        """The same for A theta: coefficients A coef, covariances A cov A'."""
        if A.shape != (len(names), len(self.names)):
            raise ConfigError(
                f"a transformation of {len(self.names)} coefficients to {len(names)} is "
                f"{len(names)} x {len(self.names)}, not {' x '.join(map(str, A.shape))}"
            )
        return replace(
            self,
            names=tuple(names),
            coefficients=numbers(A @ self.coef),
            model_covariance=_moved(A, self.model_covariance),
            cluster_covariance=_moved(A, self.cluster_covariance),
        )

    def _robust(self) -> Numbers | None:
        if self.cluster_covariance is None and len(self.sites) < 2:
            raise ConfigError("errors clustered by site need at least two sites; use robust=False")
        if len(self.sites) < FEW_SITES:
            warnings.warn(few_sites(len(self.sites)), FewSitesWarning, stacklevel=3)
        return self.cluster_covariance


def few_sites(count: int) -> str:
    """Why to doubt cluster errors of few sites (Cameron and Miller 2015, VI)."""
    return (
        f"Robust errors are clustered by site, and {count} sites are few: "
        f"under {FEW_SITES} they are usually too small."
    )


def numbers(array: Vector) -> Numbers:
    """An array as plain numbers."""
    return tuple(array.tolist())


def packed(A: Matrix | None) -> Numbers | None:
    """A symmetric matrix as plain numbers."""
    return None if A is None else numbers(pack(A))


def _moved(A: Matrix, covariance: Numbers | None) -> Numbers | None:
    return None if covariance is None else packed(A @ unpack(np.array(covariance), A.shape[1]) @ A.T)
