"""Objectives of linear models: functions of the margins z = X theta + offset, computed once per point."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Packed, Scalars, Vector, pack
from fedshed.linalg.columns import Batched, Columns, Narrow, columns_of, narrowed
from fedshed.linalg.kernels import Kernel
from fedshed.linalg.rows import Rows, chosen_columns, diagonal, gram, with_units
from fedshed.linalg.spectrum import Leading, leading
from fedshed.linalg.tall import Tall
from fedshed.objectives import folds, scores
from fedshed.objectives.folds import WithoutRows
from fedshed.objectives.life_table import LifeTable, table_of, times_of, told_by
from fedshed.objectives.objective import Fit, Sensitivity
from fedshed.objectives.scored import Scored
from fedshed.objectives.time_scale import TimeScale

if TYPE_CHECKING:
    from fedshed.objectives.stack import StackSlot

SHORT = 4096  # rows up to which all step sizes are evaluated at once
KEPT_TWICE = 1 << 18  # entries of a table up to which its narrow form is kept too


class LinearModel:
    """Base class of local costs: f(theta) = sum_j w_j l(z_j, y_j) / sum_j w_j with z = X theta + offset.

    A subclass gives the loss l and its derivatives (docs/extend.md). The margins z are one number per row, or
    one per row and class. A row of weight 2 counts as two rows.

    Parameters
    ----------
    X : array or scipy CSR array
        One row per observation.
    y : array
        The responses, coded as the loss needs them.
    weights : array, optional
        The weight of each row. Default: 1.
    offset : array, optional
        A number per row that is added to its margin. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.objectives import LeastSquares
    >>> model = LeastSquares(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    >>> model.at(np.array([1.0])).value
    0.25
    """

    labelled: ClassVar[bool] = True  # y holds classes, whose rows a disclosure policy counts
    canonical: ClassVar[bool] = True  # the link is, so the expected information is the Hessian
    can_recede: ClassVar[bool] = False  # the loss of a row may decrease without bound as its margin grows
    rowwise: ClassVar[bool] = False  # losses and derivatives act on each margin alone, whatever their shape
    clusters: NDArray[np.intp] | None = None  # rows with the same number are not independent
    least: int = 1  # rows in each cell of an evaluation that leaves the site
    held: bool = False  # rows that were held out: they are evaluated, and nothing else is asked about them
    slot: StackSlot | None = None  # its place among models that are evaluated together

    def __init__(
        self,
        X: Rows,
        y: NDArray[Any],
        weights: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
    ) -> None:
        self.X, self.y, self.weights, self.offset = X, y, weights, offset
        self.weight = float(X.shape[0] if weights is None else weights.sum())
        self.dim = int(X.shape[1])
        self._last: tuple[Vector, NDArray[np.float64]] | None = None  # the last theta and its margins
        self._shift: tuple[Vector, NDArray[np.float64]] | None = None  # the last direction and X d
        self._units: tuple[Vector, Columns] | None = None  # the last units, and what matters in them

    def __getstate__(self) -> dict[str, Any]:
        """A copy is evaluated alone."""
        return {name: value for name, value in self.__dict__.items() if name != "slot"}

    @property
    def varied(self) -> Rows:
        """The table in which collinear columns are searched."""
        return self.X

    @property
    def outcomes(self) -> NDArray[Any]:
        """The responses as a disclosure policy counts them."""
        return self.y

    def null(self) -> Self:
        """The same responses, weights and offsets with an intercept as the only column."""
        rows, tall = len(self.y), isinstance(self.X, Tall)
        ones = Tall(np.empty((rows, 0)), ones=True) if tall else np.ones((rows, 1))
        return type(self)(ones, self.y, self.weights, self.offset)

    def at(self, theta: Vector) -> LinearPoint:
        """The cost at theta; value, gradient and curvature share one product with X."""
        together = self.slot.at(self, theta) if self.slot else None
        return together or LinearPoint(self, self.margins(theta))

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Costs along a direction: two products with X, then O(N) per step size."""
        if self.slot and (together := self.slot.along(theta, direction, etas)) is not None:
            return together
        z, u = self.margins(theta), self.shift(direction)
        if z.ndim == 1 and len(z) <= SHORT:
            return np.asarray(self.mean(self.losses(z + etas[:, None] * u)))
        return np.array([self.mean(self.losses(z + eta * u)) for eta in etas])

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Slopes along a direction, at the price of costs: the mean of l'(z + eta u) u."""
        if self.slot and (together := self.slot.slopes_along(theta, direction, etas)) is not None:
            return together
        z, u = self.margins(theta), self.shift(direction)
        if z.ndim == 1 and len(z) <= SHORT:
            return np.asarray(self.slopes(z + etas[:, None] * u) @ self.shares(u))
        return np.array([float(np.vdot(self.shares(self.slopes(z + eta * u)), u)) for eta in etas])

    def margins(self, theta: Vector) -> NDArray[np.float64]:
        """z = X theta + offset; the last ones are kept, because a search starts where an update was."""
        if self._last is None or not np.array_equal(self._last[0], theta):
            if isinstance(self.X, Tall):
                self._last = self._shift = None  # a number for each of very many rows
            z = self.linear(theta)
            self._last = theta.copy(), z if self.offset is None else z + self.offset
        return self._last[1]

    def shift(self, direction: Vector) -> NDArray[np.float64]:
        """X d; the last one is kept, because costs and slopes are asked for along the same direction."""
        if self._shift is None or not np.array_equal(self._shift[0], direction):
            self._shift = direction.copy(), self.linear(direction)
        return self._shift[1]

    def linear(self, direction: Vector) -> NDArray[np.float64]:
        """X d."""
        return np.asarray(self.X @ direction)

    def mean(self, values: NDArray[np.float64]) -> Any:
        """The weighted mean over rows."""
        return (values if self.weights is None else values * self.weights).sum(axis=-1) / self.weight

    def shares(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """w_j v_j / sum w, the contribution of each row to a mean."""
        if self.weights is None:
            return values / self.weight
        return values * (self.weights / self.weight).reshape(-1, *[1] * (values.ndim - 1))

    def slope_product(self, slopes: NDArray[np.float64]) -> Vector:
        """X's, the gradient from the contribution of each row."""
        return np.asarray(self._transposed @ slopes)

    @cached_property
    def _transposed(self) -> Rows:
        """X' as a view."""
        return self.X.T

    def scaled_rows(self, curvatures: NDArray[np.float64]) -> Rows:
        """diag(c)^(1/2) X, dense or CSR as X is, for contributions c of the rows to the curvature."""
        return self.rows_times(np.sqrt(curvatures))

    def rows_times(self, roots: Vector) -> Rows:
        """diag(r) X, dense or CSR as X is."""
        return _scaled(self.X, roots)

    def narrow_rows(self, curvatures: NDArray[np.float64]) -> Narrow | None:
        """`scaled_rows` on the columns that matter, of a table small enough to keep them; else None."""
        return None if self._narrow is None else self.narrow_times(np.sqrt(curvatures))

    def narrow_times(self, roots: Vector) -> Narrow | None:
        """`rows_times` on the columns that matter, of a table small enough to keep them; else None."""
        if self._narrow is None:
            return None
        return Narrow(_scaled(self._narrow.rows, roots), self._narrow.columns)

    @cached_property
    def _narrow(self) -> Narrow | None:
        size = self.X.size if self.rowwise and not isinstance(self.X, Tall) else KEPT_TWICE + 1
        return Narrow(self.columns.narrow(self.X), self.columns) if size <= KEPT_TWICE else None

    @cached_property
    def columns(self) -> Columns:
        """The columns of X that matter."""
        return columns_of(self.X)

    def columns_in(self, units: Vector) -> Columns | None:
        """The columns of X diag(1/units) that matter, those of the last units kept; None where X is no table.

        Of a scaled factor diag(c)^(1/2) X diag(1/units) they are the same, so they are looked for once.
        """
        if not self.rowwise or isinstance(self.X, Tall):
            return None
        last = self._units
        if last is None or not (last[0] is units or np.array_equal(last[0], units)):
            self._units = last = units, columns_of(with_units(self.X, 1 / units))
        return last[1]

    def total(self, values: Vector) -> float:
        """The weighted sum over rows."""
        return float((values if self.weights is None else values * self.weights).sum())

    def scatter(self, theta: Vector, inverse: Matrix | None, power: int, counts: bool) -> Rows:
        """F with F'F the sum of squared scores of the rows (`scores.scatter`)."""
        return scores.scatter(self, theta, inverse, power, counts)

    def cluster_scores(self, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
        """The score of each cluster of rows (`scores.cluster_scores`)."""
        return scores.cluster_scores(self, theta, inverse)

    def life_table(self, times: Scalars, columns: tuple[int, ...], least: int) -> LifeTable:
        """Counts by group and cell of a grid (`life_table.told_by`)."""
        return told_by(table_of(self, times, columns), least)

    def event_times(self) -> tuple[Scalars, float]:
        """Distinct event times, and the largest time (`life_table.times_of`)."""
        return times_of(self)

    def scored(self, theta: Vector) -> Scored:
        """The rows with their scores at theta, for an evaluation."""
        return Scored(self, self.margins(theta))

    def sensitivity(self, theta: Vector) -> Sensitivity:
        """How the cost depends on the parameter of the family, if it has one."""
        raise ValueError(f"{type(self).__name__} has no parameter other than theta")

    def leverage_pull(self, theta: Vector, inverse: Matrix) -> Vector:
        """The contribution of the rows to the slope of Firth's penalty (`scores.leverage_pull`)."""
        return scores.leverage_pull(self, theta, inverse)

    def pair_counts(self, theta: Vector) -> tuple[float, float, float]:
        """The weight of concordant, discordant and tied pairs of rows."""
        raise ValueError("only a survival model has pairs of rows in time")

    def proportionality(self, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
        """The sums of a test of proportional hazards."""
        raise ValueError("only a survival model has hazards")

    def fold_of_each(self, site: str, count: int, seed: int) -> NDArray[np.intp]:
        """The fold of each row (`folds.fold_of_each`)."""
        return folds.fold_of_each(self, site, count, seed)

    def without(self, theta: Vector, left_out: NDArray[np.bool_] | None) -> WithoutRows:
        """Sums over all rows except some at theta, and how well these are predicted (`folds.without`)."""
        return folds.without(self, theta, left_out)

    def null_moments(self) -> Scalars:
        """Sums over rows, to be added over sites, from which `null_levels` follows."""
        raise NotImplementedError

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """The intercept of the model without columns; only a start, and inexact with logistic offsets."""
        raise NotImplementedError

    @staticmethod
    def null_cost(sums: Scalars) -> float | None:
        """The total loss of the model without columns, if the sums determine it; otherwise None."""
        return None

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Whether a site of this weight can have these sums; True if the family cannot tell."""
        return True

    def curvature_factor(self, curvatures: NDArray[np.float64]) -> Rows:
        """F such that F'F is the curvature: `scaled_rows`, or the R factor of a table in a file."""
        if not isinstance(self.X, Tall):
            return self.scaled_rows(curvatures)
        growth = curvatures[0].size ** 2  # of classes: a row becomes K rows of K - 1 times the columns
        return self.X.triangular(lambda part, X: self._on(X).scaled_rows(curvatures[part]), growth)

    def _on(self, X: Rows) -> Self:
        """The same model of some rows."""
        other = copy(self)
        other.X, other.slot = X, None
        return other

    def rows(self, chosen: NDArray[np.intp]) -> Self:
        """The same model of some rows, each counted once."""
        return type(self)(self.X[chosen], self.y[chosen])

    def gains(self, direction: Vector) -> Matrix:
        """The gain of each row along a direction, one or more numbers per row, linear in the direction.

        Where `can_recede` is true, the cost rises nowhere along a direction if and only if no gain is
        negative.
        """
        raise NotImplementedError

    def probabilities(self, z: NDArray[np.float64]) -> Matrix:
        """The probability of each of several classes, in an evaluation."""
        raise ValueError("this family gives no probabilities of classes, so it cannot be evaluated")

    def origin(self) -> Vector:
        """A point at which the cost is finite, from which a run may start."""
        return np.zeros(self.dim)

    def squares(self, free: NDArray[np.intp]) -> Matrix:
        """The sum of squared margins over rows, as a quadratic form of some coefficients."""
        contrast, column = np.divmod(free, self.X.shape[1])
        return np.asarray(gram(chosen_columns(self.varied, column)) * (contrast[:, None] == contrast))

    def row_slopes(self, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights of rows in a gradient, one or more columns."""
        return slopes

    def row_curvatures(self, curvatures: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights of rows in a curvature: of classes with probabilities p, p (1 - p)."""
        return curvatures * (1.0 - curvatures) if curvatures.ndim > 1 else curvatures

    def moves(self, theta: Vector, step: Vector) -> NDArray[np.float64]:
        """How much a step from theta changes each slope, relative to it: at most |u| where l'' <= |l'|."""
        return np.abs(self.linear(step))

    def losses(self, z: NDArray[np.float64]) -> Vector:
        """l(z_j, y_j)."""
        raise NotImplementedError

    def slopes(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """dl/dz."""
        raise NotImplementedError

    def curvatures(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """d2l/dz2, at least 0."""
        raise NotImplementedError

    def information(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """E[d2l/dz2] under the model: the curvature itself where the link is canonical."""
        return self.curvatures(z)

    def excess(self, z: NDArray[np.float64]) -> Vector:
        """l(z_j, y_j) - min_z l(z, y_j), half the deviance of each row; the loss if its minimum is 0."""
        return self.losses(z)

    def constants(self) -> Vector:
        """The part of each row's log-likelihood that depends on y alone: 0 by default."""
        return np.zeros(len(self.y))

    def precise_constant(self) -> float | None:
        """The part of the log-likelihood that depends on y alone, if weights divide variances."""
        return self.total(self.constants())

    @property
    def weighing(self) -> Literal["", "counts", "fractions"]:
        """Whether rows have weights; those that are not all whole numbers cannot count rows."""
        if self.weights is None or (self.weights == 1.0).all():
            return ""
        whole = np.array_equal(self.weights, np.round(self.weights)) and not self.averages()
        return "counts" if whole else "fractions"

    def averages(self) -> bool:
        """Whether responses are averages, such as rates, over as many units as the weight says."""
        return False

    def pearson(self, z: NDArray[np.float64]) -> Vector:
        """(y - mu)^2 / V(mu), which is l'^2 / E[l'']; infinite where the variance is 0."""
        squares, variances = np.square(self.slopes(z)), self.information(z)
        infinite = np.full_like(squares, np.inf)
        return np.divide(squares, variances, out=infinite, where=variances > 0)


class LinearPoint:
    """A linear model at one point, by its margins z."""

    def __init__(self, model: LinearModel, z: NDArray[np.float64]) -> None:
        self._model, self._z = model, z

    @cached_property
    def value(self) -> float:
        """Mean loss."""
        return float(self._model.mean(self._model.losses(self._z)))

    @cached_property
    def slopes(self) -> NDArray[np.float64]:
        """l' of each row."""
        return self._model.slopes(self._z)

    @cached_property
    def curvatures(self) -> NDArray[np.float64]:
        """l'' of each row."""
        return self._model.curvatures(self._z)

    @property
    def gradient(self) -> Vector:
        """X'l'/N."""
        return self._model.slope_product(self._model.shares(self.slopes))

    @cached_property
    def factor(self) -> Rows:
        """F = diag(l''/N)^(1/2) X, dense or CSR as X is."""
        return self._model.curvature_factor(self._model.shares(self.curvatures))

    @cached_property
    def narrow(self) -> Narrow | Batched:
        """The factor on the columns that matter."""
        return self.narrow_factor()

    @property
    def hessian(self) -> Packed:
        """The Hessian F'F, packed."""
        return pack(gram(self.factor))

    @property
    def diagonal(self) -> Vector:
        """The diagonal of F'F."""
        return diagonal(self.factor)

    def leading_eigenpairs(self, count: int, kernel: Kernel, units: Vector | None = None) -> Leading:
        """At least the first `count` eigenpairs of F'F, or of it in these units."""
        return leading(self.narrow if units is None else self._narrow_in(units), count, kernel)

    def trace(self, units: Vector | None = None) -> float:
        """The trace of F'F in these units."""
        return float(diagonal(self.factor if units is None else with_units(self.factor, 1 / units)).sum())

    def _narrow_in(self, units: Vector) -> Narrow:
        """The factor in these units on the columns that matter; equal columns may have different units."""
        columns, factor = self._model.columns_in(units), with_units(self.factor, 1 / units)
        return narrowed(factor) if columns is None else Narrow(columns.narrow(factor), columns)

    def narrow_factor(self) -> Narrow:
        """The factor on the columns that matter; which these are is found once for a small table."""
        narrow = self._model.narrow_rows(self._model.shares(self.curvatures))
        return narrowed(self.factor) if narrow is None else narrow

    @cached_property
    def information(self) -> Rows:
        """A factor of the expected information, mean E[l''] x x': `factor` itself for a canonical link."""
        if self._model.canonical:
            return self.factor
        return self._model.curvature_factor(self._model.shares(self._model.information(self._z)))

    @property
    def fit(self) -> Fit:
        """Totals over rows; the deviance is 2 sum w (l - min l) (McCullagh and Nelder 1989, 2.3)."""
        model, z = self._model, self._z
        return Fit(
            rows=len(model.y),
            deviance=2 * model.total(model.excess(z)),
            pearson=model.total(model.pearson(z)),
            constant=model.total(model.constants()),
            precise=model.precise_constant(),
            weighing=model.weighing,
        )


def _scaled(X: Rows, roots: Vector) -> Rows:
    """diag(r) X, dense or CSR as X is; a CSR one has the same indices, which need not be checked again."""
    if isinstance(X, np.ndarray):
        return X * roots[:, None]
    scaled = copy(X)
    scaled.data = X.data * np.repeat(roots, np.diff(X.indptr))
    return scaled
