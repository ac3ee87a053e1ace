"""The interface of an objective: the cost of a site's rows at a point, and what else it can be asked."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Packed, Scalars, Vector
from fedshed.linalg.kernels import Kernel
from fedshed.linalg.rows import Rows
from fedshed.linalg.spectrum import Leading
from fedshed.objectives.folds import WithoutRows
from fedshed.objectives.life_table import LifeTable
from fedshed.objectives.scored import Scored
from fedshed.objectives.time_scale import TimeScale


class Fit(Struct, frozen=True):
    """How well a model fits a site's rows, in totals, as statistics need it beside the derivatives.

    Attributes
    ----------
    rows : int
        The number of rows.
    deviance : float
        The deviance.
    pearson : float
        Pearson's chi2; infinite where a fitted variance is 0.
    constant : float
        The part of the log-likelihood that depends on y alone.
    precise : float or None
        The same if weights are precisions; None if it depends on the dispersion.
    weighing : str
        "" if rows have no weights, "counts" if all weights are whole numbers, otherwise "fractions".
    """

    rows: int
    deviance: float
    pearson: float  # chi2; infinite where a fitted variance is 0
    constant: float  # what of the log-likelihood depends on y alone
    precise: float | None  # the same where weights are precisions; None where it depends on the dispersion
    weighing: Literal["", "counts", "fractions"]  # whether rows have weights, and all of them whole numbers


class Sensitivity(Struct, frozen=True):
    """How the mean cost f(theta, v), constants of y included, depends on a family's parameter v at one point.

    Derivatives are by log v, where v > 0; at v = 0, an end of the range, by v itself (or its square, as the
    family says), and `curvature` is their expected information.
    """

    slope: float  # df / d log v
    curvature: float  # d2f / (d log v)2
    mixed: Vector  # d2f / (d theta d log v)


class Point(Protocol):
    """The cost of a site's rows at one point, with its derivatives."""

    @property
    def value(self) -> float:
        """f^(i)(theta)."""
        ...

    @property
    def gradient(self) -> Vector:
        """Gradient of f^(i) at theta."""
        ...

    @property
    def factor(self) -> Rows:
        """A matrix F with Hessian = F'F."""
        ...

    @property
    def hessian(self) -> Packed:
        """The Hessian, packed: its upper triangle row by row."""
        ...

    @property
    def diagonal(self) -> Vector:
        """The diagonal of the Hessian."""
        ...

    def leading_eigenpairs(self, count: int, kernel: Kernel, units: Vector | None = None) -> Leading:
        """At least the first `count` eigenpairs of the Hessian H, or of diag(1/units) H diag(1/units)."""
        ...

    def trace(self, units: Vector | None = None) -> float:
        """The trace of the Hessian H, or of diag(1/units) H diag(1/units)."""
        ...

    @property
    def information(self) -> Rows:
        """A matrix F with expected information = F'F: `factor` itself where the two are the same."""
        ...

    @property
    def fit(self) -> Fit:
        """Deviance, Pearson's statistic and the like."""
        ...


class Objective(Protocol):
    """The local cost f^(i) of a site without the ridge: the interface that algorithms use."""

    @property
    def weight(self) -> float:
        """The weight of its rows, N_i if each counts once; p_i is proportional to it."""
        ...

    @property
    def dim(self) -> int:
        """Dimension n of theta."""
        ...

    def at(self, theta: Vector) -> Point:
        """The cost at theta."""
        ...

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """f^(i)(theta + eta * direction) for each eta."""
        ...

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """The derivative of f^(i)(theta + eta * direction) by eta, for each eta."""
        ...

    def null_moments(self) -> Scalars:
        """Sums from which a start at the model without columns follows."""
        ...

    def scatter(self, theta: Vector, inverse: Matrix | None, power: int, counts: bool) -> Rows:
        """A matrix F with F'F the sum of squared scores of the rows."""
        ...

    def cluster_scores(self, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
        """The score of each cluster of rows, and what it adds to the variance of each coefficient."""
        ...

    def life_table(self, times: Scalars, columns: tuple[int, ...], least: int) -> LifeTable:
        """Counts of a survival model's rows by group and cell of a grid, none but 0 below `least`."""
        ...

    def event_times(self) -> tuple[Scalars, float]:
        """The distinct event times of a survival model's rows, and their largest time."""
        ...

    def scored(self, theta: Vector) -> Scored:
        """The rows with their scores at theta, for an evaluation."""
        ...

    def sensitivity(self, theta: Vector) -> Sensitivity:
        """How the cost depends on the parameter of the family, if it has one."""
        ...

    def leverage_pull(self, theta: Vector, inverse: Matrix) -> Vector:
        """The contribution of the rows to the slope of Firth's penalty, by their leverages."""
        ...

    def pair_counts(self, theta: Vector) -> tuple[float, float, float]:
        """For a survival model, the weight of concordant, discordant and tied pairs of rows."""
        ...

    def proportionality(self, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
        """For a survival model, sums over events of g (x - m), g V and g^2 V with a function g of time."""
        ...

    def fold_of_each(self, site: str, folds: int, seed: int) -> NDArray[np.intp]:
        """The fold of each row, from 1 on; all 0 where there are none."""
        ...

    def without(self, theta: Vector, left_out: NDArray[np.bool_] | None) -> WithoutRows:
        """Sums over all rows except some at theta, and how well these are predicted."""
        ...
