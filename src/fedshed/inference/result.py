"""`Inference`: estimates, covariances and measures of fit as plain data, and the statistics from them."""

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
from fedshed.inference.records import (
    ClassCoding,
    Numbers,
    Promise,
    Score,
    SiteReport,
    SurvivalFacts,
    numbers,
    packed,
)
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.objectives import family_of
from fedshed.objectives.build import threshold_count
from fedshed.objectives.families import is_known
from fedshed.preparation.study import WeightType as WeightType
from fedshed.solve.certificate import Certificate

FEW_SITES = 10
ENOUGH_CLUSTERS = 5.0  # effective sites below which a robust error is not reliable
FAR, MISSED = 1e-3, 1e-6  # standard errors, and share of the null deviance, from estimate to optimum
ROUNDED = 1e-20  # of the null deviance; a smaller share is rounding error
Distribution: TypeAlias = Literal["auto", "normal"]
RowRobust: TypeAlias = Literal[
    "HC0", "HC1", "HC2", "HC3", "cluster", "HC0-expected", "HC1-expected", "HC2-expected", "HC3-expected"
]  # with the Hessian, as in statsmodels, or with the expected information, as in R's sandwich
Robust: TypeAlias = bool | Literal["site"] | RowRobust  # True is "site"
EXPECTED = "-expected"


class FewSitesWarning(UserWarning):
    """Warns that errors are based on too few sites, or that there are too few for an interval."""


class Inference(Struct, frozen=True):
    """Estimates with their covariances, measures of fit, and a report of each site.

    A covariance is stored as a packed upper triangle. It is None if the information is singular or the
    dispersion is unknown; `notes` then say why.

    Attributes
    ----------
    loss : str
        The loss of the model.
    names : tuple of str
        The names of the coefficients.
    coefficients : tuple of float
        The estimates.
    model_covariance : tuple of float or None
        The covariance of the estimates from the model; it takes the ridge into account.
    cluster_covariance : tuple of float or None
        The covariance that is robust and clustered by site.
    dispersion : float or None
        The dispersion phi: estimated, or 1 for families without one.
    l2 : tuple of float
        The ridge of each coefficient.
    rows : int
        The number of rows of all sites.
    weight : float
        W, the sum of the weights.
    parameters : float
        The number of parameters k; with a ridge the effective number tr(H_l2^-1 H_0).
    deviance, null_deviance : float or None
        The deviance of the model, and of the model without columns; None if no cost was released.
    pearson : float or None
        Pearson's chi2.
    log_likelihood : float or None
        The log-likelihood at the estimates.
    certificate : Certificate or None
        How close the estimates are to the optimum.
    heterogeneity : Score
        The score test of whether one model fits all sites.
    sites : dict
        A `SiteReport` for each site; empty if only sums over all sites are known.
    traffic : Traffic
        The exchanges and bytes that the statistics took.
    notes : tuple of str
        Remarks on the statistics, in sentences.
    weight_type : "none", "frequency" or "precision"
        What weights mean. A frequency says how often its row counts; a precision divides the variance of its
        row's response, and the row stays one observation.
    clusters : tuple of float or None
        The effective number of sites behind the robust error of each coefficient.
    row_covariance : tuple of float or None
        The covariance that is robust by rows, if it was asked for.
    row_kind : str or None
        The kind of errors by rows, such as "HC3", or "HC3-expected" with the expected information.
    row_clusters : int
        The number of clusters within the sites, if errors are by cluster.
    row_groups : tuple of float or None
        The effective number of clusters behind each coefficient.
    intercepts : int
        How many coefficients are intercepts: one for each contrast of the classes.
    protected : int or None
        In a protected study, the number of sites of which only sums are known.
    promise : Promise or None
        The differential privacy of the study, if it has any.
    l1 : tuple of float
        The absolute penalty of each coefficient, if there is one.
    nuisance : Nuisance or None
        The parameter of the family besides the coefficients, if it has one.
    firth : bool
        Whether the estimates maximise Firth's penalised likelihood.
    influence : dict
        What each site contributes to the estimates, by one Newton step.
    survival : SurvivalFacts or None
        Events, concordance and tests of proportional hazards of a survival model.
    level_freedom : tuple of float or None
        In a linear model with a random intercept, the degrees of freedom of each coefficient by its level.
    coding : ClassCoding or None
        The classes of a multinomial model, and the class with which its coefficients compare the others.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> south = {"x": [0.4, 1.2, 2.0, 3.1], "y": [1.2, 2.4, 2.9, 4.6]}
    >>> model = fedshed.fit({"north": north, "south": south}, fedshed.Study(family="linear", target="y"))
    >>> found = model.inference
    >>> found.names, found.coef.round(2), found.std_err().round(2)
    (('x', 'intercept'), array([1.2 , 0.84]), array([0.09, 0.15]))
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
    deviance: float | None
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
    row_covariance: Numbers | None = None
    row_kind: RowRobust | None = None
    row_clusters: int = 0
    row_groups: Numbers | None = None
    intercepts: int = 0
    protected: int | None = None
    promise: Promise | None = None
    l1: Numbers = ()
    nuisance: Nuisance | None = None
    firth: bool = False
    influence: dict[str, Numbers] = {}
    survival: SurvivalFacts | None = None
    level_freedom: Numbers | None = None
    coding: ClassCoding | None = None

    def __post_init__(self) -> None:
        n = len(self.names)
        covariances = (self.model_covariance, self.cluster_covariance, self.row_covariance)
        if not is_known(self.loss) or len(self.coefficients) != n:
            raise ValueError(f"{len(self.coefficients)} coefficients of {n} names, loss {self.loss!r}")
        if any(given is not None and len(given) != n * (n + 1) // 2 for given in covariances):
            raise ValueError(f"a covariance of {n} coefficients has {n * (n + 1) // 2} entries")

    @property
    def site_count(self) -> int:
        """The number of sites, also if only sums over them are known."""
        return len(self.sites) if self.protected is None else self.protected

    @property
    def selected(self) -> tuple[str, ...]:
        """The names of the coefficients that are not 0."""
        pairs = zip(self.names, self.coefficients, strict=True)
        return tuple(name for name, value in pairs if value != 0)

    @property
    def observations(self) -> float:
        """N: the number of rows, or the sum of the weights if they are frequencies."""
        return self.weight if self.weight_type == "frequency" else float(self.rows)

    @property
    def df_model(self) -> float:
        """The number of parameters without intercepts, as statsmodels counts them."""
        return self.parameters - self.intercepts

    @property
    def df_resid(self) -> float:
        """Observations minus parameters, N - k."""
        return self.observations - self.parameters

    @property
    def coef(self) -> Vector:
        """The estimates as an array."""
        return np.array(self.coefficients)

    def covariance(self, robust: Robust = False) -> Matrix:
        """The covariance matrix of the estimates; NaN where it is not known.

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").

        Returns
        -------
        ndarray
            A matrix with one row and one column per coefficient.

        Raises
        ------
        ConfigError
            If the errors need two sites, or an exchange that was not made.
        """
        packed = self._robust(robust) if robust else self.model_covariance
        n = len(self.names)
        return np.full((n, n), np.nan) if packed is None else unpack(np.array(packed), n)

    def clustered(self, robust: Robust) -> bool:
        """Whether errors are clustered, by site or by clusters within the sites."""
        return by_site(robust) or robust == "cluster"

    def std_err(self, robust: Robust = False) -> Vector:
        """Standard errors; a clustered error is NaN if too few sites or clusters inform its coefficient.

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").

        Returns
        -------
        ndarray
            One standard error per coefficient.
        """
        errors: Vector = np.sqrt(np.maximum(np.diag(self.covariance(robust)), 0.0))
        if by_site(robust) and self.clusters is not None:
            errors[np.array(self.clusters) < ENOUGH_CLUSTERS] = np.nan
        if robust == "cluster" and self.row_groups is not None:
            errors[np.array(self.row_groups) < ENOUGH_CLUSTERS] = np.nan
        return errors

    @property
    def ratio(self) -> str:
        """What the exponential of a coefficient is called, such as odds ratio."""
        sums_to_zero = self.coding is not None and self.coding.reference is None
        return "exp(coef)" if sums_to_zero else family_of(self.loss).ratio

    @property
    def ratio_count(self) -> int:
        """How many coefficients have exponentials that are ratios: all but thresholds, which come last."""
        ordered = family_of(self.loss).classes == "ordered"
        return len(self.names) - threshold_count(self.names) * ordered

    def freedom(self, robust: Robust = False, distribution: Distribution = "auto") -> float:
        """Degrees of freedom of Student's t, infinite for the normal distribution.

        They are N - k if the dispersion is estimated, and M - 1 for errors that are clustered by M sites
        (Cameron and Miller 2015, VI.D). If they differ by coefficient (`freedoms`), this is the smallest of
        them.

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").
        distribution : "auto" or "normal", default "auto"
            "auto" uses Student's t where `freedom` is finite; "normal" always uses the normal distribution.

        Returns
        -------
        float
            The degrees of freedom.
        """
        if distribution not in get_args(Distribution):
            raise ConfigError(f"distribution must be 'auto' or 'normal', not {distribution!r}")
        if distribution == "normal":
            return inf
        if by_site(robust):
            return self.site_count - 1.0
        if robust == "cluster":
            return self.row_clusters - 1.0
        if self.level_freedom is not None:
            return min(self.level_freedom)
        return self.df_resid if family_of(self.loss).dispersed else inf

    def freedoms(self, robust: Robust = False, distribution: Distribution = "auto") -> Vector:
        """Degrees of freedom of the test of each coefficient; they differ if there is a random intercept.

        In a linear model with a random intercept per site, a column that does not vary within sites has those
        of the sites, and all others those of the rows (Pinheiro and Bates 2000, section 2.4.2).

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").
        distribution : "auto" or "normal", default "auto"
            "auto" uses Student's t where `freedom` is finite; "normal" always uses the normal distribution.

        Returns
        -------
        ndarray
            One number per coefficient.
        """
        freedom = self.freedom(robust, distribution)
        if self.level_freedom is None or robust or distribution == "normal":
            return np.full(len(self.names), freedom)
        return np.array(self.level_freedom)

    def z(self, robust: Robust = False) -> Vector:
        """Each coefficient divided by its standard error.

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").

        Returns
        -------
        ndarray
            One statistic per coefficient.
        """
        return self.table(robust=robust)[:, 2]

    def p_values(self, robust: Robust = False, distribution: Distribution = "auto") -> Vector:
        """Two-sided p-values of the hypotheses that a coefficient is 0.

        Parameters
        ----------
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").
        distribution : "auto" or "normal", default "auto"
            "auto" uses Student's t where `freedom` is finite; "normal" always uses the normal distribution.

        Returns
        -------
        ndarray
            One p-value per coefficient.
        """
        return self.table(robust=robust, distribution=distribution)[:, 3]

    def conf_int(
        self, level: float = 0.95, robust: Robust = False, distribution: Distribution = "auto"
    ) -> Matrix:
        """Confidence intervals.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level, between 0 and 1.
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").
        distribution : "auto" or "normal", default "auto"
            "auto" uses Student's t where `freedom` is finite; "normal" always uses the normal distribution.

        Returns
        -------
        ndarray
            The lower and the upper end, one row per coefficient.
        """
        return self.table(level, robust, distribution)[:, 4:]

    def table(
        self, level: float = 0.95, robust: Robust = False, distribution: Distribution = "auto"
    ) -> Matrix:
        """The numbers of a table of coefficients.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level, between 0 and 1.
        robust : bool or str, default False
            False for the errors of the model, True or "site" for errors clustered by site, or the kind of row
            errors with which the model was fitted ("HC0" to "HC3" or "cluster").
        distribution : "auto" or "normal", default "auto"
            "auto" uses Student's t where `freedom` is finite; "normal" always uses the normal distribution.

        Returns
        -------
        ndarray
            The coefficient, its standard error, z or t, the p-value and the two ends of the confidence
            interval, one row per coefficient.

        Raises
        ------
        ConfigError
            If `level` is not between 0 and 1, or another argument is not one of those above.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level must lie between 0 and 1, not {level!r}")
        coef, error = self.coef, self.std_err(robust)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = coef / error
        tail, quantile = student(self.freedoms(robust, distribution), (1 - level) / 2, z)
        return np.column_stack([coef, error, z, 2 * tail, coef - quantile * error, coef + quantile * error])

    @property
    def penalised_log_likelihood(self) -> float | None:
        """log L + log det I / 2 at Firth's estimates, with I the inverse of their covariance; or None."""
        if not self.firth or self.log_likelihood is None or self.model_covariance is None:
            return None
        return float(self.log_likelihood - np.linalg.slogdet(self.covariance())[1] / 2)

    @property
    def aic(self) -> float | None:
        """-2 log L + 2 k; k counts an estimated parameter of the family, but not the dispersion.

        R counts the dispersion, so that its AIC of a linear model is larger by 2. Of an inverse Gaussian
        model R's log L is also another: at phi = D / N, and here at phi = chi2 / (N - k).
        """
        return None if self.log_likelihood is None else -2 * self.log_likelihood + 2 * self._counted

    @property
    def bic(self) -> float | None:
        """-2 log L + k log N; k counts an estimated parameter of the family, but not the dispersion."""
        if self.log_likelihood is None or self.observations <= 0:
            return None
        return -2 * self.log_likelihood + self._counted * log(self.observations)

    @property
    def _counted(self) -> float:
        """The number of parameters, with that of the family if it was estimated."""
        return self.parameters + (self.nuisance is not None and self.nuisance.found)

    @property
    def deviance_explained(self) -> float | None:
        """1 - D / D_null, which is R^2 for least squares."""
        if not self.null_deviance or self.deviance is None:
            return None
        return 1 - self.deviance / self.null_deviance

    @property
    def mcfadden(self) -> float | None:
        """McFadden's pseudo R^2, 1 - log L / log L_null, for families without a dispersion."""
        if family_of(self.loss).dispersed or self.null_deviance is None or not self.log_likelihood:
            return None
        assert self.deviance is not None
        null = self.log_likelihood + (self.deviance - self.null_deviance) / 2
        return 1 - self.log_likelihood / null if null else None

    @property
    def distance(self) -> float | None:
        """The distance to the optimum in standard errors, (W g'H^-1 g / phi)^(1/2)."""
        estimate = None if self.certificate is None else self.certificate.estimate
        return (
            None if estimate is None or not self.dispersion else sqrt(self._gain(estimate) / self.dispersion)
        )

    @property
    def near(self) -> bool:
        """Whether the optimum is known to be within a small fraction of a standard error."""
        return self.distance is not None and self.distance < FAR

    @property
    def shortfall(self) -> str | None:
        """Why a gradient below tol is not small enough in the units of this table; None if it is."""
        if self.distance is None or not self.null_deviance or self.certificate is None:
            return None
        share = self._gain(self.certificate.estimate or 0.0) / self.null_deviance
        excess = max(self.distance / FAR, sqrt(share / MISSED))
        if excess < 1 or share < ROUNDED:  # the second holds for a perfect fit
            return None
        target = self._standard_gradient() < 10 * self.certificate.grad_norm  # standardising would not help
        remedy = "give the target in units in which its numbers are larger" if target else "standardise"
        return (
            f"the gradient norm is at most tol, but in these units the optimum is {self.distance:.2g} "
            f"standard errors and {share:.2g} of the null deviance away; {remedy}, or "
            f"set tol = {self.certificate.grad_norm / excess:.0e}"
        )

    def _standard_gradient(self) -> float:
        """The approximate gradient norm if every column had the largest curvature, h = phi / (W se^2)."""
        least = float(np.sqrt(np.diag(self.covariance()).min()))
        return (self.distance or 0.0) * (self.dispersion or 0.0) / (self.weight * least) if least else np.inf

    def _gain(self, estimate: float) -> float:
        """By how much the deviance may still decrease."""
        return 2 * self.weight * max(estimate, 0.0)

    def transformed(self, A: Matrix, names: Sequence[str]) -> Inference:
        """The inference for A theta: coefficients A coef and covariances A cov A'.

        Parameters
        ----------
        A : ndarray
            A matrix with one row per new coefficient and one column per coefficient of this inference.
        names : sequence of str
            The names of the new coefficients.

        Returns
        -------
        Inference
            The same measures of fit with the new coefficients.

        Raises
        ------
        ConfigError
            If the shape of A does not fit.
        """
        if A.shape != (len(names), len(self.names)):
            raise ConfigError(
                f"the matrix that transforms {len(self.names)} coefficients to {len(names)} must be "
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
            level_freedom=None if self.level_freedom is None else _fewest(A, self.level_freedom),
            coding=None,
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
            raise ConfigError(f"robust must be True, False or one of {known}, not {kind!r}")
        if kind != self.row_kind:
            raise ConfigError(f"{kind} errors need one more exchange; fit the model with errors={kind!r}")
        return self.row_covariance


def by_site(robust: Robust) -> bool:
    """Whether errors are clustered by site."""
    return robust is True or robust == "site"


def student(freedom: float | Vector, tail: float, z: Vector) -> tuple[Vector, Vector]:
    """P(T > |z|) and the quantile of 1 - tail, for Student's t or, with infinite freedom, the normal.

    Both are NaN without degrees of freedom.
    """
    df = np.broadcast_to(np.asarray(freedom, dtype=np.float64), np.shape(z))
    normal, known = df == inf, np.where((df > 0) & (df < inf), df, np.nan)
    below = np.where(normal, ndtr(-np.abs(z)), stdtr(known, -np.abs(z)))
    return below, np.where(normal, -ndtri(tail), -stdtrit(known, tail))


def few_sites(count: int) -> str:
    """A warning about cluster errors of few sites (Cameron and Miller 2015, VI)."""
    return (
        f"Robust errors are clustered by site, but {count} sites are few: "
        f"with fewer than {FEW_SITES} sites these errors are usually too small."
    )


def _fewest(A: Matrix, clusters: Numbers) -> Numbers:
    """The smallest of the coefficients' numbers in each combination."""
    return tuple(min((clusters[k] for k in np.flatnonzero(row)), default=0.0) for row in A)


def _moved(A: Matrix, covariance: Numbers | None) -> Numbers | None:
    return None if covariance is None else packed(A @ unpack(np.array(covariance), A.shape[1]) @ A.T)
