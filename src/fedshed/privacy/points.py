"""Rules at a point: what a site answers about theta may not be about a few of its rows.

A gradient is a sum over rows of w l'(z) x, a curvature one of w l''(z) x x'.  Where a few of these weights
outweigh all others, the answer is about those rows.  Two rules look at the weights (docs/privacy.md):

* Kish's effective rows, (sum v)^2 / sum v^2, of v = w |l'| and of v = w l'' (Kish 1965, Survey Sampling).
* The deviance of a loss whose slopes saturate, as those of classes do: where theta is large in a direction,
  each row counts fully or not at all, and two points that differ in one row give that row.

All answers of a quadratic loss follow from one cross-product, whatever the points: no rule applies to them.
"""

from __future__ import annotations

from functools import cached_property
from math import exp, expm1, inf, isfinite, log1p
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dasum

from fedshed._utils.errors import DisclosureError
from fedshed.linalg.arrays import Vector
from fedshed.objectives import LinearModel
from fedshed.objectives.base import LinearPoint
from fedshed.objectives.cox import Cox
from fedshed.objectives.families import FAMILIES
from fedshed.objectives.links import LinkedClasses
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial
from fedshed.objectives.ordinal import Ordinal
from fedshed.privacy.policy import Objection, Policy

TINY, HUGE = 1e-200, 1e200  # sums of squares that have neither lost digits nor overflowed
ROUNDING = 1e-9  # of a number of rows, or of a deviance
OF_A_GOOD_FIT = 0.5  # of `effective_rows`, where a site's rows fit as well as without any columns
FEW_COUNT = (
    "at least {least:g} rows that count at each point asked about, or half as many where the model fits "
    "(effective_rows); "
    "set l2, or raise it, if the classes are almost separated, and standardise the columns"
)
FITS_BADLY = (
    "a deviance of at most {most:g} times that of the model without columns at each point asked about "
    "(max_deviance); standardise the columns, or choose the algorithm newton or lbfgs"
)


# what a study's stages have in common, as long as a site holds the rows
_KNOWN: WeakKeyDictionary[LinearModel, tuple[float, float]] = WeakKeyDictionary()


class ForbiddenPointError(DisclosureError):
    """A site's policy forbids an answer at theta; the objection says why.

    A point that fits the site's rows badly is one that a search has tried and will reject.  One that fits
    them well is where the study leads, so that it cannot go on.
    """

    def __init__(self, theta: Vector, objection: Objection, fits: bool) -> None:
        super().__init__(f"its disclosure policy demands {objection.rule}")
        self.theta, self.objection, self.fits = theta, objection, fits


def effective_rows(weights: NDArray[np.float64]) -> float:
    """Kish's (sum |v|)^2 / sum v^2, of each column the least: N for equal weights, 1 where one row counts.

    A column of zeros says nothing about any row, and counts as all of them.
    """
    if weights.ndim > 1:
        return min(map(effective_rows, np.ascontiguousarray(weights.T)), default=float(len(weights)))
    squares = float(np.vdot(weights, weights))
    if TINY < squares < HUGE:
        return float(dasum(weights)) ** 2 / squares
    largest = float(np.abs(weights).max(initial=0.0))
    if largest == 0.0:
        return float(len(weights))
    return effective_rows(weights / largest) if isfinite(largest) else 1.0


def saturates(model: LinearModel) -> bool:
    """Whether rows count fully or not at all far from 0: those of classes, shares and risk sets."""
    return isinstance(model, Logistic | LinkedClasses | Multinomial | Ordinal | Cox)


def quadratic(model: LinearModel) -> bool:
    """Whether all answers about a model follow from one cross-product."""
    return any(family.quadratic for family in FAMILIES.values() if family.objective is type(model))


def _known_costs(model: LinearModel) -> tuple[float, float]:
    """The larger cost of the points that every study passes, and the cost if each row fitted best."""
    null = model.null()
    levels = type(null).null_levels(null.null_moments())
    with np.errstate(over="ignore", invalid="ignore"):
        z = null.margins(levels)
        losses = null.losses(z)
        costs = [float(null.mean(losses))] + [null.at(np.zeros_like(levels)).value] * saturates(model)
        costs = [cost for cost in costs if isfinite(cost)] or [inf]  # thresholds cannot all be 0
        plain = type(null).excess is LinearModel.excess
        least = 0.0 if plain else float(null.mean(losses - null.excess(z)))
    return max(costs), least


FAR = 1e6  # times the spread of the times: there the sum is the gradient


def centre_worst(g: Vector, w: Vector) -> Vector:
    """g - c with the c for which (sum w |g - c|)^2 / sum w^2 (g - c)^2 is least.

    Between two neighbours of g this is (a + b c)^2 / (Q - 2 P c + A c^2), which has one stationary point,
    c = (b Q + a P) / (a A + b P); the least is at one of these or of g.
    """
    centred: Vector = g - g.mean()
    largest = float(np.abs(centred).max(initial=0.0))
    if not 0.0 < largest < inf:
        return centred
    order = np.argsort(centred)
    x, w = centred[order] / largest, w[order]
    below, moment = (np.concatenate([[0.0], np.cumsum(part)]) for part in (w, w * x))
    b, a = (
        2 * below - below[-1],
        moment[-1] - 2 * moment,
    )  # before the first, between each two, after the last
    A, P, Q = float(w @ w), float(np.square(w) @ x), float(np.square(w * x).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (b * Q + a * P) / (a * A + b * P)
    inside = (between > np.append(-inf, x)) & (between < np.append(x, inf)) & (np.abs(between) < FAR)
    at = np.concatenate([x, between[inside]])
    sums = np.concatenate([a[1:] + b[1:] * x, (a + b * between)[inside]])
    worst = at[np.argmin(np.square(sums) / (Q - 2 * P * at + A * np.square(at)))]
    return np.asarray(centred / largest - worst)


class PointRules:
    """The rules of a policy at points of one site's model.

    An honest fit of almost separated classes ends where few rows count, and a fit of separated ones where
    fewer and fewer do.  So half of `effective_rows` is enough where the rows fit no worse than the better
    known of two points that every study passes: the model without columns, and theta = 0 where slopes
    saturate.
    """

    def __init__(self, policy: Policy, model: LinearModel) -> None:
        self._policy, self._model = policy, model
        self._weights, self._saturates = model.weights, saturates(model)

    @property
    def least_count(self) -> int:
        """The smallest count of rows that may leave, but for 0."""
        return max(self._policy.min_rows_per_level, self._policy.min_rows_per_class)

    @cached_property
    def _costs(self) -> tuple[float, float]:
        """The cost at the points that every study passes, the larger; and the largest that is allowed."""
        if self._model not in _KNOWN:
            _KNOWN[self._model] = _known_costs(self._model)
        known, least = _KNOWN[self._model]
        most = least + self._policy.max_deviance * (known - least) if self._saturates else inf
        return known, most + ROUNDING * max(1.0, abs(most))

    def fits(self, cost: float) -> bool:
        """Whether the site's rows fit no worse than at the points that every study passes."""
        known, _ = self._costs
        return cost <= known + ROUNDING * abs(known)

    @property
    def largest_cost(self) -> float:
        """The cost of a point with the largest deviance that the policy allows."""
        return self._costs[1]

    def of_gradient(self, point: LinearPoint) -> Objection | None:
        """What the policy has against the cost and the gradient at a point."""
        value = point.value
        if not value <= self.largest_cost:
            rule = FITS_BADLY.format(most=self._policy.max_deviance)
            return Objection(rule, f"the mean loss is {value:.6g}, and {self.largest_cost:.6g} is allowed")
        return self._few(value, self._model.row_slopes(point.slopes), "gradient")

    def of_step(self, cost: float, z: NDArray[np.float64]) -> Objection | None:
        """What the policy has against a step of a search, by its cost and margins."""
        return None if self._many(cost, z) else self._few(cost, self._slopes(z), "gradient")

    def _slopes(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._model.row_slopes(self._model.slopes(z))

    def _many(self, cost: float, z: NDArray[np.float64]) -> bool:
        """Whether enough rows of two classes count, as a bound tells that is faster than all slopes.

        With s = |l'| <= 1, (sum s)^2 / sum s^2 >= sum s; and s = 1 - exp(-l) >= l (1 - exp(-L)) / L for all
        losses l <= L.
        """
        if type(self._model) is not Logistic or self._weights is not None or not cost <= self.largest_cost:
            return False
        largest = max(float(z.max()), -float(z.min()))  # |margin|
        loss = largest + log1p(exp(-largest))
        return len(z) * cost * -expm1(-loss) / loss >= self._policy.effective_rows

    def of_curvature(self, point: LinearPoint) -> Objection | None:
        """What the policy has against the curvature at a point."""
        return self._few(point.value, self._model.row_curvatures(point.curvatures), "curvature")

    def of_squares(self, value: float, squares: NDArray[np.float64]) -> Objection | None:
        """What the policy has against a sum of squared scores."""
        return self._few(value, squares, "squared scores")

    def of_times(self, value: float, event: NDArray[np.bool_], g: Vector) -> Objection | None:
        """What the policy has against a sum over events that is weighted by g of their times.

        The gradient may leave, too, so that every sum with g - c in place of g follows from both.
        """
        weights = np.zeros(len(event))
        weights[event] = centre_worst(g, np.ones(len(g)) if self._weights is None else self._weights[event])
        return self._few(value, weights, "time of events")

    def of_line(self, losses: Vector, errors: Vector, spreads: Vector) -> Objection | None:
        """What the policy has against the sums of a recalibration: its line is a point as theta is."""
        value = float(self._model.mean(losses))
        if not value <= self.largest_cost:
            rule = FITS_BADLY.format(most=self._policy.max_deviance)
            return Objection(rule, f"the mean loss of a line is {value:.6g}")
        return self._few(value, errors, "score of a line") or self._few(value, spreads, "curvature of a line")

    def _few(self, value: float, weights: NDArray[np.float64], what: str) -> Objection | None:
        least = self._policy.effective_rows * (OF_A_GOOD_FIT if self.fits(value) else 1.0)
        count = effective_rows(self._weighted(weights))
        if count >= least * (1 - ROUNDING):
            return None
        return Objection(
            FEW_COUNT.format(least=self._policy.effective_rows),
            f"{count:.3g} rows count in the {what}, and {least:g} are demanded there",
        )

    def _weighted(self, values: NDArray[np.float64]) -> Any:
        if self._weights is None:
            return values
        return values * self._weights.reshape(-1, *[1] * (values.ndim - 1))
