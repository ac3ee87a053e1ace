"""Rules at a point: what a site answers about theta may not be about a few of its rows.

A gradient is a sum over rows of w l'(z) x, a curvature one of w l''(z) x x'.  Where a few of these weights
outweigh all others, the answer is about those rows.  Two rules look at the weights (docs/privacy.md):

* Kish's effective rows, (sum v)^2 / sum v^2, of v = w |l'| and of v = w l'' (Kish 1965, Survey Sampling).
* The deviance of a loss whose slopes saturate, as those of classes do: where theta is large in a direction,
  each row counts fully or not at all, and two points that differ in one row give that row.

All answers of a quadratic loss follow from one cross-product, whatever the points: no rule applies to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DisclosureError
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives import LinearModel
from fedshed.objectives.base import LinearPoint
from fedshed.objectives.families import FAMILIES
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial
from fedshed.privacy.policy import Objection, Policy

ROUNDING = 1e-9  # of a number of rows, or of a deviance
OF_A_GOOD_FIT = 0.5  # of `effective_rows`, where a site's rows fit as well as without any columns
FEW_COUNT = (
    "at least {least:g} rows that count at each point asked about (effective_rows); "
    "set l2, or raise it, if the classes are almost separated, and standardise the columns"
)
FITS_BADLY = (
    "a deviance of at most {most:g} times that of the model without columns at each point asked about "
    "(max_deviance); standardise the columns, or choose the algorithm newton or lbfgs"
)


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
    sizes = np.abs(weights)
    largest = sizes.max(axis=0, initial=0.0)
    if not np.isfinite(largest).all():
        return 1.0
    shares = sizes / np.where(largest > 0, largest, 1.0)
    counts = np.square(shares.sum(axis=0)) / np.maximum(np.square(shares).sum(axis=0), 1.0)
    return float(np.where(largest > 0, counts, len(weights)).min(initial=len(weights)))


def saturates(model: LinearModel) -> bool:
    """Whether the slopes of a loss are bounded, as those of classes and shares are."""
    return isinstance(model, Logistic | Multinomial)


def quadratic(model: LinearModel) -> bool:
    """Whether all answers about a model follow from one cross-product."""
    return any(family.quadratic for family in FAMILIES.values() if family.objective is type(model))


class PointRules:
    """The rules of a policy at points of one site's model.

    An honest fit of almost separated classes ends where few rows count, and a fit of separated ones where
    fewer and fewer do.  So half of `effective_rows` is enough where the rows fit no worse than the better
    known of two points that every study passes: the model without columns, and theta = 0 where slopes
    saturate.
    """

    def __init__(self, policy: Policy, model: LinearModel) -> None:
        self._policy, self._model = policy, model
        self._weights = model.weights
        null = model.null()
        levels = type(model).null_levels(null.null_moments())
        with np.errstate(over="ignore", invalid="ignore"):
            points = [null.at(levels)] + [null.at(np.zeros_like(levels))] * saturates(model)
            costs = [point.value for point in points]
            least = costs[0] - points[0].fit.deviance / 2 / model.weight  # where each row fits best
        self._known = max(costs)
        bounded = saturates(model) and np.isfinite(policy.max_deviance)
        self._most = least + policy.max_deviance * (self._known - least) if bounded else np.inf

    def fits(self, cost: float) -> bool:
        """Whether the site's rows fit no worse than at the points that every study passes."""
        return cost <= self._known + ROUNDING * abs(self._known)

    def costs_allowed(self, costs: Scalars) -> NDArray[np.bool_]:
        """Which costs come from points with a deviance that the policy allows."""
        return np.asarray(costs <= self._most + ROUNDING * max(1.0, abs(self._most)))

    def of_gradient(self, point: LinearPoint) -> Objection | None:
        """What the policy has against the cost and the gradient at a point."""
        value = point.value
        if not self.costs_allowed(np.array([value]))[0]:
            rule = FITS_BADLY.format(most=self._policy.max_deviance)
            return Objection(rule, f"the mean loss is {value:.6g}, and {self._most:.6g} is allowed")
        return self.of_slopes(value, point.slopes)

    def of_slopes(self, cost: float, slopes: NDArray[np.float64]) -> Objection | None:
        """What the policy has against a point with this cost and these slopes of its rows."""
        return self._few(cost, slopes, "gradient")

    def of_curvature(self, point: LinearPoint) -> Objection | None:
        """What the policy has against the curvature at a point."""
        curvatures = point.curvatures
        own = curvatures * (1.0 - curvatures) if curvatures.ndim > 1 else curvatures
        return self._few(point.value, own, "curvature")

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
