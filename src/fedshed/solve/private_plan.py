"""The plan of a private fit: what is released, with how much noise, and how far it will be off.

Everything here follows from public numbers: rows N, columns n, sites M, and (epsilon, delta, clip).  A row is
x = (u, 1) with |u| <= C (`clip`), so |x| <= R with R^2 = C^2 + 1, and neighbours differ in one row:

- the bound X'X/4 and the Hessian sum p(1-p) xx' change by at most sqrt(2) R^2 / 4 in the Frobenius norm,
  because |w xx' - v yy'|^2 = w^2 |x|^4 + v^2 |y|^4 - 2 w v (x'y)^2 and w, v <= 1/4;
- the gradient sum (p - y) x changes by at most 2 R P, because |p - y| <= P = 1 / (1 + exp(-m)), m being the
  largest margin |theta_0| + C |theta_1| that any row can have at this (public) theta.  At theta = 0, P = 1/2.

The constants below were chosen on simulated problems with other rows, sizes and effects than those of
`python -m benchmarks private`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log10, sqrt

import numpy as np
from msgspec import Struct
from scipy.special import expit

from fedshed._utils.errors import ConfigError
from fedshed.linalg.arrays import Vector, pack
from fedshed.privacy.fixed_point import FEWEST_SITES
from fedshed.privacy.private import Privacy
from fedshed.privacy.zcdp import epsilon_of, sigma_of

BOUND_SHARE, CURVATURE_SHARE = 0.03, 0.07  # of the budget; the gradients have the rest
GROWTH = 1.8  # of the budget from one gradient to the next: far away, a rough one does
LAST = 4  # gradients at and after the Hessian, of which the estimate is made
STEPS, FEW_ROWS = 14, 1e5  # gradients, and the rows up to which these are enough
ROUNDING = 1e-6  # by which sensitivities are enlarged at least, for numbers that are rounded
UNIT = 2.0**-53  # by which one operation rounds
CURVED, SPREAD = 0.19, 0.5  # assumed by a prediction: mean p(1-p), and the mean of |u|^2 / C^2
EXCESS = 1.04  # of simulated deviations over those of the formula


class PrivatePlan(Struct, frozen=True, kw_only=True):
    """A private fit as all sites and the Master compute it from public numbers."""

    rows: int  # N, of all sites
    columns: int  # n, without the intercept
    sites: int  # M
    privacy: Privacy
    intercept: bool = True

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns + self.intercept < 1:
            raise ConfigError(f"a fit needs rows and columns, not {self.rows} and {self.columns}")
        if self.sites < FEWEST_SITES:
            raise ConfigError(f"a private fit needs at least {FEWEST_SITES} sites, not {self.sites}")
        self.privacy.check_rows(self.rows)

    @property
    def n(self) -> int:
        """Dimension of theta."""
        return self.columns + self.intercept

    @property
    def steps(self) -> int:
        """T, the number of gradients: 14, and two more for each tenfold of rows above 10^5."""
        return STEPS + max(0, ceil(2 * log10(self.rows / FEW_ROWS)))

    @property
    def turn(self) -> int:
        """The number of the gradient that comes with the Hessian."""
        return self.steps - LAST

    @property
    def norm(self) -> float:
        """R, the largest norm of a row."""
        return sqrt(self.privacy.clip**2 + self.intercept)

    @property
    def gradient_rhos(self) -> tuple[float, ...]:
        """The budget of each gradient, which grows geometrically."""
        growing = [GROWTH**t for t in range(self.steps)]
        whole = self.privacy.rho * (1 - BOUND_SHARE - CURVATURE_SHARE)
        return tuple(whole * one / sum(growing) for one in growing)

    @property
    def rounded(self) -> float:
        """By how much sums that are rounded may differ more between neighbours than exact ones.

        A sum of N numbers, in whatever order, is off by at most N UNIT times the sum of their sizes (Higham
        2002, "Accuracy and stability of numerical algorithms", Section 4.2), and so by N^2 UNIT times the
        largest; this holds for each of at most n^2 numbers and for both neighbours.
        """
        return 1 + ROUNDING + 2 * self.n * self.rows**2 * UNIT

    @property
    def matrix_sensitivity(self) -> float:
        """sqrt(2) R^2 / 4, in the Frobenius norm."""
        return sqrt(2) * self.norm**2 / 4 * self.rounded

    def reach(self, theta: Vector) -> float:
        """The largest margin that a row can have: |theta_0| + C |theta_1|."""
        slopes = theta[: self.columns]
        alone = float(np.abs(theta[self.columns :]).sum())
        return alone + self.privacy.clip * float(np.sqrt(slopes @ slopes))

    def gradient_sensitivity(self, theta: Vector) -> float:
        """2 R P at this theta."""
        return 2 * self.norm * float(expit(self.reach(theta))) * self.rounded

    def matrix_noise(self, share: float) -> Vector:
        """The noise of each number of a packed matrix: beside the diagonal each counts twice in the norm."""
        sigma = sigma_of(self.matrix_sensitivity, self.privacy.rho * share)
        return pack(np.full((self.n, self.n), sigma / sqrt(2)) + np.eye(self.n) * sigma * (1 - 1 / sqrt(2)))

    def gradient_noise(self, step: int, theta: Vector) -> float:
        """The noise of each number of a gradient."""
        return sigma_of(self.gradient_sensitivity(theta), self.gradient_rhos[step])

    @property
    def surplus(self) -> float:
        """M / (M - 1), by which the variance is larger than charged: without any one site it is enough."""
        return self.sites / (self.sites - 1)


class Prediction(Struct, frozen=True):
    """How far a private fit will be from the pooled one, before any of the budget is spent."""

    rows: int
    columns: int
    sites: int
    epsilon: float
    delta: float
    clip: float
    rho: float
    steps: int  # gradients
    deviation: float  # of a coefficient from the pooled fit, root mean square, in standard errors
    median: float  # the median of its size
    widening: float  # of confidence intervals
    exchanges: int
    numbers: int  # released: totals over all sites, each with noise
    needed_rows: int  # for a deviation of 1 standard error
    needed_epsilon: float  # the same

    @property
    def nonsense(self) -> str:
        """Why this must not be started, and what would be needed; empty if it may."""
        if self.deviation <= 1:
            return ""
        return (
            f"With {self.rows:,} rows, {self.columns} columns and epsilon = {self.epsilon:g} the private "
            f"estimates would be {self.deviation:.2g} standard errors from the pooled ones, which is only "
            f"noise; the study needs about {self.needed_rows:,} rows, or epsilon = "
            f"{self.needed_epsilon:.2g}, or fewer columns."
        )


def predict(
    N: int, n: int, epsilon: float, delta: float, clip: float, sites: int = 10, intercept: bool = True
) -> Prediction:
    """How far a private logistic fit will be from the pooled one, in standard errors, from public numbers.

    The noise of the estimate is H^-1 z, z having the variance s^2 = 1 / sum 1 / sigma_t^2 of the last
    gradients together.  A coefficient then deviates by s / sqrt(N h v) standard errors, with the mean h of
    p(1-p) and the variance v of its column.  Without a look at the rows h is taken as 0.19, and v as
    C^2 / (2n): rows whose typical norm is 0.7 of the clip, spread evenly over the columns.  The noise of the
    Hessian adds its share.

    Parameters
    ----------
    N, n : int
        Rows of all sites together, and columns without the intercept.
    epsilon, delta, clip : float
        As in `Privacy`.
    sites : int
        At least 3.
    intercept : bool
        Whether the model has one.

    Returns
    -------
    Prediction
        With the deviation, and what would be needed if it is nonsense.

    Examples
    --------
    >>> round(predict(100_000, 10, 4.0, 1e-6, 4.5).deviation, 1)
    0.1
    >>> "needs about" in predict(500, 10, 1.0, 1e-6, 4.5).nonsense
    True
    """
    privacy = Privacy(epsilon, delta, clip)
    plan = PrivatePlan(rows=N, columns=n, sites=sites, privacy=privacy, intercept=intercept)
    deviation, numbers = _deviation(plan, N, privacy.rho), plan.n * plan.steps + plan.n * (plan.n + 1)
    rows = _needed(lambda rows: _deviation(plan, rows, privacy.rho), N)
    return Prediction(
        rows=N, columns=n, sites=sites, epsilon=epsilon, delta=delta, clip=clip, rho=privacy.rho,
        steps=plan.steps, deviation=deviation, median=0.6745 * deviation, widening=sqrt(1 + deviation**2),
        exchanges=plan.steps + 1, numbers=numbers, needed_rows=_two_digits(rows),
        needed_epsilon=epsilon_of(_needed(lambda rho: _deviation(plan, N, rho), privacy.rho), delta),
    )  # fmt: skip


def _deviation(plan: PrivatePlan, rows: float, rho: float) -> float:
    """EXCESS s / sqrt(N h v) sqrt(1 + e^2), e being the relative noise of the Hessian."""
    tail = sum(plan.gradient_rhos[plan.turn :]) / plan.privacy.rho
    information = rows * CURVED * SPREAD * plan.privacy.clip**2 / max(plan.columns, 1)
    relative = sigma_of(plan.matrix_sensitivity, rho * CURVATURE_SHARE) * sqrt(plan.n / 2) / information
    largest = 2 * plan.norm * plan.rounded  # P = 1: nothing is known of theta
    ideal = sigma_of(largest, rho * tail) * sqrt(plan.surplus / information)
    return EXCESS * ideal * sqrt(1 + relative**2)


def _needed(deviation: Callable[[float], float], start: float) -> float:
    """Where a deviation that falls is 1, by halving in the logarithm."""
    low, high = log10(start) - 12, log10(start) + 12
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if deviation(10**middle) <= 1 else (middle, high)
    return float(10**high)


def _two_digits(count: float) -> int:
    """A count rounded up to two digits."""
    unit: int = 10 ** max(0, ceil(log10(count)) - 2)
    return ceil(count / unit) * unit
