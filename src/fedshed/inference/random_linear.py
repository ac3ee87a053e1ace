"""A linear model with a random intercept per site, in closed form from what each site said at one point.

y = X theta + b_i + e with b_i ~ N(0, tau^2), e ~ N(0, sigma^2 / w), and lambda = tau / sigma.  With
r = y - X theta, s_i = sum_j w_j r_j, W_i = sum_j w_j and a_i = X'w over the rows of site i, v = lambda^2 and
k_i = v / (1 + v W_i),

    Q(theta, v) = sum_i [sum_j w_j r_j^2 - k_i s_i^2],    M(v) = sum_i [X'wX - k_i a_i a_i'],

the restricted log-likelihood, sigma^2 = Q / (N - n) at its best, is (Patterson and Thompson 1971, Biometrika
58:545; Lindstrom and Bates 1988, JASA 83:1014)

    -2 L = (N - n)(log(2 pi Q / (N - n)) + 1) + sum_i log(1 + v W_i) + log det M.

The sites' costs, gradients and Hessians at one theta give all of these, as the cost is quadratic and the
intercept is the last column, so that a_i and s_i are entries of these.  Nothing more is asked of the sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import exp, log, pi, sqrt

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from fedshed._utils.errors import ConfigError
from fedshed.inference.nuisance import FEW_SITES, NORMAL, Nuisance, few_sites
from fedshed.inference.records import numbers, packed
from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.objectives.random_intercept import TAU
from fedshed.solve.inspection import Inspected

STEP = 1e-3  # of logarithms, for second derivatives
FARTHEST = 60.0  # of log lambda^2
WIDEST = log(1e6)  # of an interval's upper end above tau and sigma
NOTE = (
    "The estimates and the log-likelihood are those of restricted maximum likelihood (REML); compare only "
    "models with the same columns by it. The table of the sites and the test of heterogeneity are those of "
    "the model without a random intercept."
)
UNKNOWN = (
    "The intercept and the columns that are constant at each site are as many as the sites, so nothing is "
    "left from which tau could be estimated: it is 0 here and has no interval, and the errors of these "
    "coefficients do not include differences between sites."
)
UNBOUNDED = "tau has no interval: the profile likelihood is too flat, or singular, far above its estimate."


class SiteSums:
    """What the sites said at theta, as functions of a step d and of v = lambda^2; the intercept is last.

    `varying` says of each column whether it varies within some site; that of the intercept does not.
    """

    def __init__(
        self, theta: Vector, sites: Mapping[str, Inspected], observations: float, varying: NDArray[np.bool_]
    ) -> None:  # fmt: skip
        n, each = len(theta), [sites[i] for i in sorted(sites)]
        self.theta, self.freedom, self.varying = theta, observations - n, varying
        self.W = np.array([site.weight for site in each])
        self.A = np.array([site.weight * unpack(site.information, n) for site in each])
        self.g = np.array([site.weight * site.gradient for site in each])  # -X'wr
        self.squares = sum(2 * site.weight * site.loss for site in each)

    @property
    def between(self) -> float:
        """M - 1 - q: sites less the intercept and the columns that are constant at each of them."""
        return len(self.W) - float(np.count_nonzero(~self.varying))

    def freedom_by_level(self) -> Vector:
        """Degrees of freedom of the t test of each coefficient (Pinheiro and Bates 2000, section 2.4.2).

        With M sites and p columns that vary within some site, these have N - M - p, as has the intercept in
        R's nlme.  The q columns that are constant at each site have M - 1 - q.
        """
        within = self.freedom + len(self.varying) - len(self.W) - np.count_nonzero(self.varying)
        freedom = np.where(self.varying, within, self.between)
        freedom[-1] = within
        return freedom

    def best(self, v: float) -> tuple[Vector, float, Matrix]:
        """The best theta for v, Q there, and M."""
        k = v / (1 + v * self.W)
        a, s = self.A[:, :, -1], -self.g[:, -1]
        M = self.A.sum(axis=0) - (a.T * k) @ a
        slope = self.g.sum(axis=0) + (k * s) @ a  # half the gradient of Q
        d = -np.linalg.solve(M, slope)
        return self.theta + d, float(self.squares - k @ (s * s) + slope @ d), M

    def slope(self, v: float) -> float:
        """The derivative of -2 L by v, with sigma^2 at its best."""
        theta, Q, M = self.best(v)
        a = self.A[:, :, -1]
        s = -self.g[:, -1] - a @ (theta - self.theta)
        change = 1 / np.square(1 + v * self.W)
        spread = (a * np.linalg.solve(M, a.T).T).sum(axis=1)
        return float((self.W / (1 + v * self.W)).sum() - change @ (self.freedom * s * s / Q + spread))

    def likelihood(self, log_tau: float, log_sigma: float) -> float:
        """L at any tau and sigma."""
        v, variance = exp(2 * (log_tau - log_sigma)), exp(2 * log_sigma)
        _, Q, M = self.best(v)
        logs = float(np.log1p(v * self.W).sum()) + float(np.linalg.slogdet(M)[1])
        return -(self.freedom * log(2 * pi * variance) + Q / variance + logs) / 2

    @cached_property
    def ratio(self) -> float:
        """The best v; 0 if L does not increase with v, as where L does not depend on v."""
        if self.between <= 0 or not self.slope(0.0) < 0:
            return 0.0
        low = high = log(1.0 / float(self.W.mean()))
        while self.slope(exp(low)) > 0:
            low -= 1.0
        while self.slope(exp(high)) < 0 and high < FARTHEST:
            high += 1.0
        if high >= FARTHEST:
            raise ConfigError(
                "with an intercept per site the model fits every row exactly, so tau has no finite estimate; "
                "leave random_intercept out"
            )
        return exp(float(brentq(lambda u: self.slope(exp(u)), low, high, xtol=1e-13, rtol=1e-14)))


def with_random_intercept(
    inference: Inference, theta: Vector, sites: Mapping[str, Inspected], varying: NDArray[np.bool_]
) -> tuple[Vector, Inference]:
    """theta and the inference of the model with a random intercept, from those of the model without one."""
    sums = SiteSums(theta, sites, inference.observations, varying)
    if sums.freedom <= 0:
        raise ConfigError("a random intercept needs more observations than coefficients; remove some columns")
    best, Q, M = sums.best(sums.ratio)
    variance = Q / sums.freedom
    if not variance > 0:
        raise ConfigError(
            "the model fits every row exactly, so there is no variance; leave random_intercept out"
        )
    tau, sigma = sqrt(sums.ratio * variance), sqrt(variance)
    inverse = np.linalg.inv(M)
    changed = replace(
        inference, coefficients=numbers(best), cluster_covariance=None, clusters=None,
        model_covariance=packed(variance * (inverse + inverse.T) / 2),
        dispersion=variance, deviance=Q, null_deviance=None, pearson=Q,
        log_likelihood=sums.likelihood(log(tau), log(sigma)) if tau else _without(sums, variance),
        nuisance=_nuisance(sums, tau, sigma, inference.site_count),
        level_freedom=numbers(sums.freedom_by_level()), notes=(*inference.notes, NOTE),
    )  # fmt: skip
    return best, changed


def _without(sums: SiteSums, variance: float) -> float:
    """L for tau = 0."""
    _, Q, M = sums.best(0.0)
    return -(sums.freedom * log(2 * pi * variance) + Q / variance + float(np.linalg.slogdet(M)[1])) / 2


def profile_interval(sums: SiteSums, tau: float, sigma: float) -> tuple[float, float] | None:
    """The values of tau for which -2 L, with sigma at its best, is at most 3.84 above its least.

    None if there is no upper end up to 1e6 times tau and sigma.
    3.84 is the quantile of 0.95 of chi2 with one degree of freedom, so that this is a 95 % interval.
    """

    def excess(log_tau: float) -> float:
        spread = {
            "bounds": (log(sigma) - 5, log(sigma) + 5),
            "method": "bounded",
            "options": {"xatol": 1e-10},
        }
        best = minimize_scalar(lambda at: -sums.likelihood(log_tau, float(at)), **spread)
        return float(2 * (top + best.fun)) - NORMAL**2

    variance = sums.best(0.0)[1] / sums.freedom
    at_zero = _without(sums, variance)
    top = sums.likelihood(log(tau), log(sigma)) if tau else at_zero
    start = log(tau) if tau else log(sigma) - log(float(sums.W.sum())) / 2
    while excess(start) > 0:
        start -= 1.0
    low = high = start
    widest = max(start, log(sigma)) + WIDEST
    while excess(high) < 0:
        high += 1.0
        if high > widest:
            return None
    upper = exp(float(brentq(excess, high - 1.0, high, xtol=1e-10)))
    if 2 * (top - at_zero) <= NORMAL**2:
        return 0.0, upper
    while excess(low) < 0:
        low -= 1.0
    return exp(float(brentq(excess, low, low + 1.0, xtol=1e-10))), upper


def _nuisance(sums: SiteSums, tau: float, sigma: float, count: int) -> Nuisance:
    """tau with the error of its logarithm, from the Hessian of L by log tau and log sigma."""
    words = [few_sites(count)] if count < FEW_SITES else []
    if sums.between <= 0:
        return Nuisance(TAU.name, 0.0, found=True, restricted=True, note=" ".join([UNKNOWN, *words]))
    try:
        ends = profile_interval(sums, tau, sigma)
    except np.linalg.LinAlgError:  # M, at a tau far above the estimate
        ends = None
    if ends is None:
        words.append(UNBOUNDED)
    if tau == 0.0:
        return Nuisance(
            TAU.name, 0.0, found=True, restricted=True, note=" ".join([TAU.none, *words]), profile=ends
        )
    at, h = np.log([tau, sigma]), STEP * np.eye(2)

    def L(point: Vector) -> float:  # noqa: N802
        return sums.likelihood(float(point[0]), float(point[1]))

    corners = [[L(at + u + w) + L(at - u - w) - L(at + u - w) - L(at - u + w) for u in h] for w in h]
    variances = np.linalg.inv(-np.array(corners) / (4 * STEP * STEP))
    error = sqrt(float(variances[0, 0])) if variances[0, 0] > 0 else None
    return Nuisance(
        TAU.name, tau, found=True, restricted=True, log_error=error, note=" ".join(words), profile=ends
    )
