"""Zero-concentrated differential privacy: what Gaussian releases cost, and which (epsilon, delta) they are.

Neighbours are two tables of the same number of rows that differ in one row: the number of rows is public.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import exp, expm1, log, log1p, pi, sqrt

from fedshed._utils.errors import ConfigError

LARGEST_RHO = 1e6  # beyond it nothing is private
_STEPS = 80  # halvings of an interval, more than a float has bits


def rho_of(sensitivity: float, sigma: float) -> float:
    """The cost of a Gaussian release, rho = s^2 / (2 sigma^2) (Bun and Steinke 2016, Proposition 1.6).

    Costs of releases add up, whatever was asked after which answer (Lemma 2.3 there).
    """
    return sensitivity**2 / (2 * sigma**2)


def sigma_of(sensitivity: float, rho: float) -> float:
    """The noise of a Gaussian release that costs rho, the inverse of `rho_of`."""
    return sensitivity / sqrt(2 * rho)


def summed_rho(sensitivity: float, sigma: float, parties: int, numbers: int) -> float:
    """The cost where each of `parties` sites adds discrete Gaussian noise of scale `sigma`, in whole units.

    A sum of discrete Gaussians is none, but is close to one: it costs eps^2 / 2 with

        eps = min( sqrt(s^2 / (m sigma^2) + tau d / 2),  s / (sqrt(m) sigma) + tau sqrt(d) ),
        tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 sigma^2 k / (k + 1)),

    m being the parties and d the numbers (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian
    mechanism for federated learning with secure aggregation", the theorem on sums of discrete Gaussians).
    From sigma = 9 units on, tau is below the smallest float, and the cost is that of a Gaussian of variance
    m sigma^2; noise in units of 2^-64 has a scale of about 2^64 units.
    """
    tau = 10 * sum(exp(-2 * pi**2 * sigma**2 * k / (k + 1)) for k in range(1, parties))
    plain = sensitivity / (sqrt(parties) * sigma)
    epsilon = min(sqrt(plain**2 + tau * numbers / 2), plain + tau * sqrt(numbers))
    return epsilon**2 / 2


def composed(costs: Iterable[float]) -> float:
    """The cost of several releases together: rho adds up."""
    return sum(costs)


def delta_of(rho: float, epsilon: float) -> float:
    """The smallest delta that rho-zCDP promises at this epsilon, by the optimal conversion.

        delta = min over alpha > 1 of  exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)

    (Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy", Corollary 13).  The
    logarithm is convex in alpha with slope (2 alpha - 1) rho - epsilon + log(1 - 1/alpha), whose only zero is
    found by halving.
    """
    if rho <= 0:
        return 0.0
    low, high = 1.0, (epsilon + 1) / (2 * rho) + 2
    for _ in range(_STEPS):
        alpha = (low + high) / 2
        slope = (2 * alpha - 1) * rho - epsilon + (log1p(-1 / alpha) if alpha > 1 else -1e300)
        low, high = (alpha, high) if slope < 0 else (low, alpha)
    alpha = high
    power = (alpha - 1) * (alpha * rho - epsilon) + alpha * log1p(-1 / alpha) - log(alpha - 1)
    return exp(min(power, 0.0))


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP promises with this delta, at most rho + 2 sqrt(rho log(1/delta)).

    Examples
    --------
    >>> 3.9 < epsilon_of(rho_for(4.0, 1e-6), 1e-6) <= 4.0
    True
    """
    if rho <= 0:
        return 0.0
    low, high = 0.0, rho + 2 * sqrt(rho * log(1 / delta))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(rho, middle) <= delta else (middle, high)
    return high


@lru_cache(maxsize=64)
def rho_for(epsilon: float, delta: float) -> float:
    """The largest rho whose promise is (epsilon, delta).

    Raises
    ------
    ConfigError
        If epsilon is not above 0 or delta not between 0 and 1.

    Examples
    --------
    >>> round(rho_for(1.0, 1e-6), 4) > round(1 / (4 * 13.8156 + 4), 4)
    True
    """
    if not (epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon must be above 0 and delta between 0 and 1, not {epsilon} and {delta}")
    low, high = 0.0, min(epsilon + 1, LARGEST_RHO)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of one continuous Gaussian release with s / sigma = mu, as a reference.

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, Theorem 8).
    """
    from scipy.special import log_ndtr

    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(-exp(first) * expm1(second - first))
