"""`Inference`: what the exchange taught, as plain data that JSON can hold, and what follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import inf, log, sqrt
from typing import Literal, TypeAlias, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from fedshed._utils.errors import ConfigError
from fedshed.exchange.wire import Traffic
from fedshed.inference.nuisance import Nuisance
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.objectives import family_of
from fedshed.objectives.families import is_known
from fedshed.preparation.study import WeightType as WeightType
from fedshed.solve.certificate import Certificate

FEW_SITES = 10
ENOUGH_CLUSTERS = 5.0  # effective sites below which a robust error means nothing
FAR, MISSED = 1e-3, 1e-6  # standard errors, and share of the null deviance, between estimate and optimum
ROUNDED = 1e-20  # of the null deviance: less cannot be told from rounding
Numbers = tuple[float, ...]
Distribution: TypeAlias = Literal["auto", "normal"]
RowRobust: TypeAlias = Literal["HC0", "HC1", "HC2", "HC3", "cluster"]
Robust: TypeAlias = bool | Literal["site", "HC0", "HC1", "HC2", "HC3", "cluster"]  # True is "site"


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


class Promise(Struct, frozen=True):
    """Differential privacy of each row: (epsilon, delta), for predictors of at most the norm `clip`.

    `noise` is the standard deviation that the noise adds to each coefficient; errors include it.
    """

    epsilon: float
    delta: float
    clip: float
    noise: Numbers


class PhTest(Struct, frozen=True):
    """A score test of proportional hazards, chi2 on df; without freedom there is nothing to test."""

    statistic: float
    df: int
    p_value: float | None


class SurvivalFacts(Struct, frozen=True):
    """Of a survival model: the weight of its events, Harrell's C, and whether hazards are proportional.

    C is over pairs of rows of the same site and stratum; `proportional` has a test of each coefficient.
    """

    events: float
    concordance: float | None
    pairs: float
    transform: str
    proportional: tuple[PhTest, ...]
    proportional_global: PhTest


class Inference(Struct, frozen=True):
    """Estimates with their covariances, measures of fit, and reports of the sites.

    `weight` is W, the sum of the weights.  A weight of the type "frequency" is how often its row counts; one
    of the type "precision" divides the variance of its row's response, which stays one observation.  With a
    ridge `parameters` is the effective number of them, tr(H_l2^-1 H_0).  Covariances are packed upper
    triangles; None where the information is singular or the dispersion unknown, and `notes` say why.
    `clusters` is the effective number of sites behind the robust error of each coefficient.
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
    parameters: float
    deviance: float | None  # None where no cost was released
    null_deviance: float | None
    pearson: float | None
    log_likelihood: float | None
    certificate: Certificate | None
    heterogeneity: Score
    sites: dict[str, SiteReport]
    traffic: Traffic = Traffic()
    notes: tuple[str, ...] = ()
    weight_type: Literal["none", "frequency", "precision"] = "none"
    clusters: Numbers | None = None
    row_covariance: Numbers | None = None  # robust by rows, if it was asked for
    row_kind: RowRobust | None = None
    row_clusters: int = 0  # within the sites, if errors are by cluster
    row_groups: Numbers | None = None  # the effective number of them behind each coefficient
    intercepts: int = 0  # coefficients that are intercepts, one for each contrast of the classes
    protected: int | None = None  # how many sites, of which only sums are known
    promise: Promise | None = None  # differential privacy, if the study has it
    l1: Numbers = ()  # the absolute penalty of each coefficient, if there is one
    nuisance: Nuisance | None = None  # the parameter of the family beside the coefficients, if it has one
    firth: bool = False  # the estimates are of Firth's penalised likelihood
    influence: dict[str, Numbers] = {}  # what each site adds to the estimate, in one Newton step
    survival: SurvivalFacts | None = None  # of a survival model

    def __post_init__(self) -> None:
        n = len(self.names)
        covariances = (self.model_covariance, self.cluster_covariance, self.row_covariance)
        if not is_known(self.loss) or len(self.coefficients) != n:
            raise ValueError(f"{len(self.coefficients)} coefficients of {n} names, loss {self.loss!r}")
        if any(given is not None and len(given) != n * (n + 1) // 2 for given in covariances):
            raise ValueError(f"a covariance of {n} coefficients has {n * (n + 1) // 2} entries")

    @property
    def site_count(self) -> int:
        """How many sites there are, whether each is known or only their sums."""
        return len(self.sites) if self.protected is None else self.protected

    @property
    def selected(self) -> tuple[str, ...]:
        """The coefficients that are not 0."""
        pairs = zip(self.names, self.coefficients, strict=True)
        return tuple(name for name, value in pairs if value != 0)

    @property
    def observations(self) -> float:
        """The number of rows, or the sum of weights that count rows."""
        return self.weight if self.weight_type == "frequency" else float(self.rows)

    @property
    def df_model(self) -> float:
        """The parameters besides intercepts, as statsmodels counts them."""
        return self.parameters - self.intercepts

    @property
    def df_resid(self) -> float:
        """Observations less parameters, N - k."""
        return self.observations - self.parameters

    @property
    def coef(self) -> Vector:
        """The estimates."""
        return np.array(self.coefficients)

    def covariance(self, robust: Robust = False) -> Matrix:
        """Of the estimates: from the model (aware of the ridge), or robust: clustered by site, or by rows."""
        packed = self._robust(robust) if robust else self.model_covariance
        n = len(self.names)
        return np.full((n, n), np.nan) if packed is None else unpack(np.array(packed), n)

    def clustered(self, robust: Robust) -> bool:
        """Whether errors rest on clusters: the sites, or those within them."""
        return by_site(robust) or robust == "cluster"

    def std_err(self, robust: Robust = False) -> Vector:
        """Standard errors; robust ones are NaN where too few sites inform the coefficient."""
        errors: Vector = np.sqrt(np.maximum(np.diag(self.covariance(robust)), 0.0))
        if by_site(robust) and self.clusters is not None:
            errors[np.array(self.clusters) < ENOUGH_CLUSTERS] = np.nan
        if robust == "cluster" and self.row_groups is not None:
            errors[np.array(self.row_groups) < ENOUGH_CLUSTERS] = np.nan
        return errors

    def freedom(self, robust: Robust = False, distribution: Distribution = "auto") -> float:
        """Degrees of freedom of Student's t, infinite for the normal distribution.

        N - k where the dispersion is estimated, and M - 1 for errors that are clustered by M sites (Cameron
        and Miller 2015, VI.D).
        """
        if distribution not in get_args(Distribution):
            raise ConfigError(f"distribution is 'auto' or 'normal', not {distribution!r}")
        if distribution == "normal":
            return inf
        if by_site(robust):
            return self.site_count - 1.0
        if robust == "cluster":
            return self.row_clusters - 1.0
        return self.df_resid if family_of(self.loss).dispersed else inf

    def z(self, robust: Robust = False) -> Vector:
        """coef / std err."""
        return self.table(robust=robust)[:, 2]

    def p_values(self, robust: Robust = False, distribution: Distribution = "auto") -> Vector:
        """Two-sided."""
        return self.table(robust=robust, distribution=distribution)[:, 3]

    def conf_int(
        self, level: float = 0.95, robust: Robust = False, distribution: Distribution = "auto"
    ) -> Matrix:
        """Lower and upper ends, one row a coefficient."""
        return self.table(level, robust, distribution)[:, 4:]

    def table(
        self, level: float = 0.95, robust: Robust = False, distribution: Distribution = "auto"
    ) -> Matrix:
        """coef, std err, z or t, p and the ends of the confidence interval: one row a coefficient."""
        if not 0 < level < 1:
            raise ConfigError(f"level must lie between 0 and 1, not {level!r}")
        coef, error = self.coef, self.std_err(robust)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = coef / error
        tail, quantile = student(self.freedom(robust, distribution), (1 - level) / 2, z)
        return np.column_stack([coef, error, z, 2 * tail, coef - quantile * error, coef + quantile * error])

    @property
    def penalised_log_likelihood(self) -> float | None:
        """log L + log det I / 2 at Firth's estimates, I being the inverse of their covariance; else None."""
        if not self.firth or self.log_likelihood is None or self.model_covariance is None:
            return None
        return float(self.log_likelihood - np.linalg.slogdet(self.covariance())[1] / 2)

    @property
    def aic(self) -> float | None:
        """-2 log L + 2 k; the dispersion is not counted, as in statsmodels, but a parameter found is."""
        return None if self.log_likelihood is None else -2 * self.log_likelihood + 2 * self._counted

    @property
    def bic(self) -> float | None:
        """-2 log L + k log N; the dispersion is not counted, but a parameter of the family that was found."""
        if self.log_likelihood is None or self.observations <= 0:
            return None
        return -2 * self.log_likelihood + self._counted * log(self.observations)

    @property
    def _counted(self) -> float:
        """The parameters, and that of the family where it was found."""
        return self.parameters + (self.nuisance is not None and self.nuisance.found)

    @property
    def deviance_explained(self) -> float | None:
        """1 - D / D_null: R^2 for least squares."""
        if not self.null_deviance or self.deviance is None:
            return None
        return 1 - self.deviance / self.null_deviance

    @property
    def mcfadden(self) -> float | None:
        """1 - log L / log L_null, for families without a dispersion."""
        if family_of(self.loss).dispersed or self.null_deviance is None or not self.log_likelihood:
            return None
        assert self.deviance is not None
        null = self.log_likelihood + (self.deviance - self.null_deviance) / 2
        return 1 - self.log_likelihood / null if null else None

    @property
    def distance(self) -> float | None:
        """How far the optimum may still be, in standard errors: (W g'H^-1 g / phi)^(1/2)."""
        estimate = None if self.certificate is None else self.certificate.estimate
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
        if self.distance is None or not self.null_deviance or self.certificate is None:
            return None
        share = self._gain(self.certificate.estimate or 0.0) / self.null_deviance
        excess = max(self.distance / FAR, sqrt(share / MISSED))
        if excess < 1 or share < ROUNDED:  # the latter: a perfect fit
            return None
        target = self._standard_gradient() < 10 * self.certificate.grad_norm  # standardising would not help
        remedy = "give the target in units in which its numbers are larger" if target else "standardise"
        return (
            f"the gradient norm is at most tol, but in these units the optimum is {self.distance:.2g} "
            f"standard errors and {share:.2g} of the null deviance away; {remedy}, or "
            f"set tol = {self.certificate.grad_norm / excess:.0e}"
        )

    def _standard_gradient(self) -> float:
        """About the gradient's norm if every column had the largest curvature of any, h = phi / (W se^2)."""
        least = float(np.sqrt(np.diag(self.covariance()).min()))
        return (self.distance or 0.0) * (self.dispersion or 0.0) / (self.weight * least) if least else np.inf

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
            row_covariance=_moved(A, self.row_covariance),
            clusters=None if self.clusters is None else _fewest(A, self.clusters),
            row_groups=None if self.row_groups is None else _fewest(A, self.row_groups),
            influence={
                i: numbers(A @ np.array(moved)) if moved else () for i, moved in self.influence.items()
            },
        )

    def _robust(self, robust: Robust) -> Numbers | None:
        if not by_site(robust):
            return self._by_rows(str(robust))
        if self.cluster_covariance is None and self.site_count < 2:
            raise ConfigError("errors clustered by site need at least two sites; use robust=False")
        if self.site_count < FEW_SITES:
            warnings.warn(few_sites(self.site_count), FewSitesWarning, stacklevel=3)
        return self.cluster_covariance

    def _by_rows(self, kind: str) -> Numbers | None:
        if kind not in get_args(RowRobust):
            known = ", ".join(("site", *get_args(RowRobust)))
            raise ConfigError(f"robust is True, False or one of {known}, not {kind!r}")
        if kind != self.row_kind:
            raise ConfigError(f"{kind} errors need one more exchange: fit with errors={kind!r}")
        return self.row_covariance


def by_site(robust: Robust) -> bool:
    """Whether errors are clustered by site."""
    return robust is True or robust == "site"


def student(freedom: float, tail: float, z: Vector) -> tuple[Vector, float]:
    """P(T > |z|) of Student's t or, with infinite freedom, the normal; and the quantile of 1 - tail."""
    if freedom == inf:
        return np.asarray(ndtr(-np.abs(z))), float(-ndtri(tail))
    if freedom <= 0:
        return np.full_like(z, np.nan), float("nan")
    return np.asarray(stdtr(freedom, -np.abs(z))), float(-stdtrit(freedom, tail))


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
    return None if A is None or not np.isfinite(A).all() else numbers(pack(A))


def _fewest(A: Matrix, clusters: Numbers) -> Numbers:
    """Of a combination of coefficients, the fewest effective sites that one of them has."""
    return tuple(min((clusters[k] for k in np.flatnonzero(row)), default=0.0) for row in A)


def _moved(A: Matrix, covariance: Numbers | None) -> Numbers | None:
    return None if covariance is None else packed(A @ unpack(np.array(covariance), A.shape[1]) @ A.T)
