"""Two-stage meta-analysis of one coefficient: estimates y_i with variances v_i of k sites, combined.

y_i ~ N(mu_i, v_i) with mu_i ~ N(mu, tau^2); a fixed effect is tau^2 = 0.  With weights
w_i = 1 / (v_i + tau^2) the estimate of mu is sum w_i y_i / sum w_i, and its variance 1 / sum w_i.
"""

from __future__ import annotations

from math import inf, nan
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtrc, ndtri, stdtrit

Values: TypeAlias = NDArray[np.float64]
Method: TypeAlias = Literal["fixed", "dl", "pm", "reml"]
Interval: TypeAlias = Literal["hk", "normal"]
TITLES: dict[Method, str] = {
    "fixed": "fixed effect", "dl": "random (DerSimonian-Laird)",
    "pm": "random (Paule-Mandel)", "reml": "random effects (REML)",
}  # fmt: skip
_CLOSE = 1e-13  # the relative tolerance of tau^2


class Combined(Struct, frozen=True):
    """A combined estimate: its interval, the heterogeneity, and the prediction interval for one more site.

    `q` is Cochran's statistic with k - 1 degrees of freedom, and `i2` the share of the variation between
    sites that chance does not explain: tau^2 / (tau^2 + s^2), where s^2 is the typical variance of an
    estimate (`typical_variance`). With a fixed effect it is 1 - (k - 1) / Q, which is that of
    DerSimonian and Laird's tau^2. A number that k sites cannot give is NaN.
    """

    method: Method
    estimate: float
    std_err: float
    low: float
    high: float
    tau2: float
    q: float
    df: int
    p_heterogeneity: float
    i2: float
    low_new: float
    high_new: float
    weights: tuple[float, ...]  # of the sites; they sum to 1


def combine(
    y: Values, v: Values, method: Method = "reml", interval: Interval = "hk", level: float = 0.95
) -> Combined:
    """Combine the estimates y with variances v.

    The interval of random effects is that of Hartung and Knapp (2001, Statistics in Medicine 20, 3875):
    Student's t on k - 1 degrees of freedom, with the variance sum w_i (y_i - mu)^2 / ((k - 1) sum w_i).
    The interval for one more site is mu +- t_(k-2) (tau^2 + 1 / sum w_i)^(1/2), for k > 2 (Higgins,
    Thompson and Spiegelhalter 2009, Journal of the Royal Statistical Society A 172, 137).
    """
    k, tail = len(y), (1 - level) / 2
    tau2 = 0.0 if k < 2 else TAU2[method](y, v)
    w = 1 / (v + tau2)
    mu = float(w @ y / w.sum())
    plain = float(1 / np.sqrt(w.sum()))
    error, quantile = plain, float(-ndtri(tail))
    if method != "fixed" and interval == "hk":
        error = float(np.sqrt(w @ np.square(y - mu) / (k - 1) / w.sum())) if k > 1 else nan
        quantile = float(-stdtrit(k - 1, tail)) if k > 1 else nan
    q = cochran(y, v)
    reach = float(-stdtrit(k - 2, tail)) * float(np.sqrt(tau2 + plain**2)) if k > 2 else nan
    return Combined(
        method, mu, error, mu - quantile * error, mu + quantile * error, tau2, q, k - 1,
        float(chdtrc(k - 1, q)) if k > 1 else nan, _i2(v, q, tau2, method),
        mu - reach, mu + reach, tuple((w / w.sum()).tolist()),
    )  # fmt: skip


def typical_variance(v: Values) -> float:
    """(k - 1) sum w / ((sum w)^2 - sum w^2), w = 1 / v (Higgins and Thompson 2002)."""
    w = 1 / v
    return float((len(v) - 1) * w.sum() / (w.sum() ** 2 - w @ w))


def _i2(v: Values, q: float, tau2: float, method: Method) -> float:
    """I^2 that belongs to tau^2; with a fixed effect, to Q."""
    if method == "fixed":
        return max(0.0, 1 - (len(v) - 1) / q) if q > 0 else 0.0
    return tau2 / (tau2 + typical_variance(v)) if tau2 > 0 else 0.0


def cochran(y: Values, v: Values, tau2: float = 0.0) -> float:
    """sum w_i (y_i - mu)^2 with w_i = 1 / (v_i + tau^2) (Cochran 1954, Biometrics 10, 101)."""
    w = 1 / (v + tau2)
    return float(w @ np.square(y - w @ y / w.sum()))


def dersimonian_laird(y: Values, v: Values) -> float:
    """(Q - (k - 1)) / (sum w - sum w^2 / sum w), at least 0 (1986, Controlled Clinical Trials 7, 177)."""
    w = 1 / v
    return max(0.0, (cochran(y, v) - (len(y) - 1)) / float(w.sum() - w @ w / w.sum()))


def paule_mandel(y: Values, v: Values) -> float:
    """The tau^2 at which Q has its expectation, k - 1 (1982, J. Res. Natl. Bur. Stand. 87, 377)."""
    return _root(lambda tau2: cochran(y, v, tau2) - (len(y) - 1), y, v)


def reml(y: Values, v: Values) -> float:
    """The maximum of the restricted likelihood, by the root of its derivative with the largest likelihood.

    2 l = -sum log(v_i + tau^2) - log sum w_i - sum w_i (y_i - mu)^2 (Viechtbauer 2005, J. Educ. Behav.
    Stat. 30, 261).  It may have several local maxima, so that a grid comes first.
    """
    top = _largest(y, v)
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 200) * top])
    slopes = np.array([_restricted_slope(tau2, y, v) for tau2 in grid])
    roots = [0.0] if slopes[0] <= 0 else []
    for a, b, left, right in zip(grid[:-1], grid[1:], slopes[:-1], slopes[1:], strict=True):
        if left > 0 >= right:
            roots.append(float(brentq(_restricted_slope, a, b, (y, v), xtol=_CLOSE * b, rtol=_CLOSE)))
    return max(roots, key=lambda tau2: restricted_likelihood(tau2, y, v), default=top)


def restricted_likelihood(tau2: float, y: Values, v: Values) -> float:
    """Twice the restricted log-likelihood of tau^2, up to a constant."""
    w = 1 / (v + tau2)
    return float(np.log(w).sum() - np.log(w.sum())) - cochran(y, v, tau2)


def _restricted_slope(tau2: float, y: Values, v: Values) -> float:
    """Its derivative: -sum w + sum w^2 / sum w + sum w^2 (y - mu)^2."""
    w = 1 / (v + tau2)
    residuals = np.square(y - w @ y / w.sum())
    return float(-w.sum() + w @ w / w.sum() + np.square(w) @ residuals)


def _root(f: object, y: Values, v: Values) -> float:
    assert callable(f)
    if f(0.0) <= 0:
        return 0.0
    top = _largest(y, v)
    return float(brentq(f, 0.0, top, xtol=_CLOSE * top, rtol=_CLOSE))


def _largest(y: Values, v: Values) -> float:
    """A tau^2 beyond which neither Q - (k - 1) nor the restricted slope is above 0."""
    return float(10 * (np.square(y - y.mean()).sum() + v.max())) or inf


TAU2 = {
    "fixed": lambda y, v: 0.0, "dl": dersimonian_laird, "pm": paule_mandel, "reml": reml
}  # fmt: skip
