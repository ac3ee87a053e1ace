"""The description of a family beside the mathematics of its loss: one record, in the file of its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Vector
from fedshed.objectives.base import LinearModel


class Totals(Struct, frozen=True):
    """A fit over all sites: the totals from which likelihoods and dispersions are computed."""

    rows: int
    weight: float
    observations: float  # rows, or the sum of weights that count rows
    deviance: float
    pearson: float | None
    constant: float | None  # None where the likelihood cannot be computed from sums
    weight_type: Literal["none", "frequency", "precision"] = "none"


LogLikelihood: TypeAlias = Callable[[Totals, float | None], float | None]


def saturated_less_half_the_deviance(fit: Totals, phi: float | None) -> float | None:
    """log L = c(y) - D / 2, of a family without a dispersion."""
    return None if fit.constant is None else fit.constant - fit.deviance / 2


def no_likelihood(fit: Totals, phi: float | None) -> None:
    """A quasi-family has a mean and a variance, but no likelihood."""


class Parameter(Struct, frozen=True):
    """A parameter of a family beside theta, which is fixed while theta is fitted."""

    name: str
    least: float
    most: float
    start: float  # what it is where it is neither given nor searched for, or where a search begins
    searched: bool = False  # whether the Master searches for it where it is not given; 0 is then possible too
    none: str = ""  # what it means that it is 0, in a sentence
    squared: bool = False  # whether derivatives at 0 are by its square

    def possible(self, value: float) -> bool:
        """Whether it is within its range."""
        return self.least <= value <= self.most or (self.searched and value == 0.0)


class Family(Struct, frozen=True):
    """A family of models: a response, its link, and how summaries describe it.

    `FAMILIES` has all families by the name of their loss.

    Attributes
    ----------
    name : str
        The name in a study, such as "linear".
    loss : str
        The name in `fedshed.optimize`, such as "least-squares".
    objective : type
        The class of its local costs.
    title : str
        The name in a summary.
    link : str
        The link function, such as "logit".
    response : str
        The response that it needs, in words.
    ratio : str
        The meaning of the exponential of a coefficient, such as "odds ratio".

    Examples
    --------
    >>> from fedshed.objectives import FAMILIES
    >>> FAMILIES["logistic"].ratio
    'odds ratio'
    """

    name: str  # as a study calls it
    loss: str  # as `optimize` calls it
    objective: type[LinearModel]
    title: str  # as a summary calls it
    link: str
    mean: Callable[[Vector], Vector] = np.exp  # of the linear predictor
    classes: Literal["none", "two", "many", "ordered"] = "none"
    dispersed: bool = False  # its dispersion is estimated, as Pearson's chi2 / residual degrees of freedom
    log_likelihood: LogLikelihood = saturated_less_half_the_deviance
    least: float | None = None  # what the response must be: at least this,
    positive: bool = False  # or above it
    most: float | None = None  # and at most this
    grouped: bool = False  # a row is several trials, and its response the share of successes
    response: str = "a number"  # such a response in words
    determination: Literal["R-squared", "Pseudo R2 (deviance)", "Pseudo R2 (McFadden)"] = (
        "Pseudo R2 (McFadden)"
    )
    unit_dispersion: bool = (
        False  # Pearson's chi2 / residual degrees of freedom should be 1, and is looked at
    )
    ratio: str = "exp(coef)"  # what the exponential of a coefficient is
    quadratic: bool = False  # the cost is, so that its digits cancel near the optimum
    survival: bool = False  # the response is a time to an event (`fedshed.tables.survival`)
    intercept: bool = True  # whether the model can have one
    parameter: Parameter | None = None  # a number beside theta, such as the power of a variance
    convex: bool = True  # the cost is; if not, curvature is the expected information, and an optimum local
    slope: Callable[[Vector], Vector] | None = None  # of the mean, where the link is none of the usual

    @property
    def classified(self) -> bool:
        """Whether the response is a class."""
        return self.classes != "none"

    @property
    def logarithmic(self) -> bool:
        """Whether an offset is the logarithm of an exposure."""
        return self.link == "log"

    def mean_slope(self, z: Vector) -> Vector:
        """The derivative of the mean by the linear predictor."""
        if self.slope is not None:
            return self.slope(z)
        mean = self.mean(z)
        slopes: dict[str, Vector] = {
            "identity": np.ones_like(z), "log": mean, "logit": mean * (1.0 - mean)
        }  # fmt: skip
        return slopes[self.link]

    def of_two(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probabilities of two classes, one column each, from the linear predictors."""
        p = self.mean(z)
        q = self.mean(-z) if self.link in ("logit", "probit") else 1.0 - p  # a symmetric one keeps its digits
        return np.column_stack([q, p])

    def unsuited(self, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """The rows whose response is outside the range of the family."""
        below = np.zeros(len(y), dtype=bool)
        if self.least is not None:
            below = y <= self.least if self.positive else y < self.least
        return np.asarray(below if self.most is None else below | (y > self.most))

    def contrasts(self, classes: int) -> int:
        """The number of linear predictors: K - 1 if there may be many classes, else 1."""
        return classes - 1 if self.classes == "many" else 1

    def levels(self, classes: int) -> int:
        """The number of parameters without columns: intercepts, or the thresholds between classes."""
        return classes - 1 if self.classes in ("many", "ordered") else 1
