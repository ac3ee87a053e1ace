"""A model whose points are looked at before anything about them leaves its site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Matrix, Packed, Scalars, Vector
from fedshed.linalg.kernels import Kernel
from fedshed.linalg.rows import Rows
from fedshed.linalg.spectrum import Leading
from fedshed.objectives import Fit, LinearModel
from fedshed.objectives.base import LinearPoint
from fedshed.objectives.folds import WithoutRows
from fedshed.objectives.life_table import LifeTable, small_count
from fedshed.objectives.objective import Sensitivity
from fedshed.objectives.scored import Scored
from fedshed.objectives.scores import leverages
from fedshed.objectives.time_scale import TimeScale
from fedshed.privacy.leverage import curvature_vectors, slope_vectors
from fedshed.privacy.points import ForbiddenPointError, PointRules
from fedshed.privacy.policy import Objection
from fedshed.protocol.messages import Costs, Search

REMEMBERED = 4  # points whose gradients are known to be allowed


class WatchedModel:
    """A model that answers only where the rules at points allow it, whichever algorithm asks.

    An algorithm sees its site through this objective and nothing else, so no kind of request can be
    forgotten.  `weighed` has the weights of rows behind the gradients and curvatures of the last request.
    """

    def __init__(self, model: LinearModel, rules: PointRules) -> None:
        self._model, self._rules = model, rules
        self.weight, self.dim = model.weight, model.dim
        self.withheld = 0  # points at which an answer was held back
        self._allowed: list[bytes] = []
        self._weighed: list[tuple[Vector, Vector, bool]] = []  # where, the weights, and of a curvature or not

    def start(self) -> None:
        """A request begins."""
        self._weighed = []

    @property
    def weighed(self) -> Iterator[Vector]:
        """The weights of rows behind each gradient and curvature that the last request asked for."""
        return (weights for _, weights, _ in self._weighed)

    def at(self, theta: Vector) -> WatchedPoint:
        """The cost at theta, if a gradient there may leave."""
        point = self._model.at(theta)
        if not self._is_allowed_point(theta):
            self._demand(theta, point, self._rules.of_gradient(point))
            self._allowed = [*self._allowed[1 - REMEMBERED :], theta.tobytes()]
        return WatchedPoint(self, theta, point)

    def curvature_at(self, theta: Vector, point: LinearPoint) -> None:
        """Whether a curvature there may leave."""
        self._demand(theta, point, self._rules.of_curvature(point))
        if not any(at is theta and curved for at, _, curved in self._weighed):
            self._weigh(theta, curvature_vectors(point.curvatures), curved=True)

    def _demand(self, theta: Vector, point: LinearPoint, objection: Objection | None) -> None:
        """Refuse a point that a rule forbids, with all that was computed there."""
        if objection is not None:
            self.withheld += 1
            self._weighed = [one for one in self._weighed if one[0] is not theta]
            raise ForbiddenPointError(theta, objection, self._rules.fits(point.value))

    def gradient_at(self, theta: Vector, slopes: NDArray[np.float64]) -> None:
        """Remember the weights of rows behind a gradient that is about to leave."""
        self._weigh(theta, slope_vectors(slopes))

    def _weigh(self, theta: Vector, vectors: Iterable[Vector], curved: bool = False) -> None:
        w = 1.0 if self._model.weights is None else self._model.weights
        self._weighed += [(theta, w * vector, curved) for vector in vectors]

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Costs along a direction, before `limited` has looked at them."""
        return self._model.along(theta, direction, etas)

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Slopes along a direction, before `limited` has looked at them."""
        return self._model.slopes_along(theta, direction, etas)

    def limit_costs(self, search: Search, costs: Costs) -> Costs:
        """Costs and slopes of a search, infinite at the points that a rule forbids."""
        if not len(search.etas):
            return costs
        allowed = np.asarray(costs.values <= self._rules.largest_cost)
        order = np.argsort(search.etas)
        self._trim(search, costs.values, allowed, order[::-1])  # from the longest step down
        if not (search.etas[order[0]] >= 0 and self._is_allowed_point(search.theta)):
            self._trim(search, costs.values, allowed, order)  # of steps between them only costs are looked at
        if allowed.all():
            return costs
        self.withheld += int((~allowed & np.isfinite(costs.values)).sum())
        slopes = None if costs.slopes is None else np.where(allowed, costs.slopes, np.inf)
        return Costs(np.where(allowed, costs.values, np.inf), slopes)

    def _trim(self, search: Search, costs: Scalars, allowed: NDArray[np.bool_], order: Any) -> None:
        """Forbid the first steps in this order until one is allowed."""
        for j in order[allowed[order]].tolist():
            eta, cost = float(search.etas[j]), float(costs[j])
            objection = self._objection(search, eta, cost)
            if objection is None:
                return
            if self._rules.fits(cost):
                raise ForbiddenPointError(search.theta, objection, fits=True)
            allowed[j] = False

    def _objection(self, search: Search, eta: float, cost: float) -> Objection | None:
        """What the rules have against a step, unless an update was asked for there or where it began."""
        if self._is_allowed_point(search.theta + eta * search.direction):
            return None
        z = self._model.margins(search.theta) + eta * self._model.shift(search.direction)
        return self._rules.of_step(cost, z)

    def _is_allowed_point(self, theta: Vector) -> bool:
        """Whether a gradient at theta is known to be allowed."""
        return theta.tobytes() in self._allowed

    def null_moments(self) -> Scalars:
        """Sums from which a start at the model without columns follows."""
        return self._model.null_moments()

    def sensitivity(self, theta: Vector) -> Sensitivity:
        """How the cost depends on the parameter of the family, where a gradient and a curvature may leave."""
        self.curvature_at(theta, self._model.at(theta))
        return self._model.sensitivity(theta)

    def scatter(self, theta: Vector, inverse: Matrix | None, power: int, counts: bool) -> Rows:
        """A matrix F with F'F the sum of squared scores of the rows, if many count in it."""
        self._squared(theta)
        return self._model.scatter(theta, inverse, power, counts)

    def fold_of_each(self, site: str, folds: int, seed: int) -> NDArray[np.intp]:
        """None: no rule looks at points of a path, so a site behind a gate answers none of them."""
        raise ProtocolError(
            "a site with a disclosure policy answers no path of penalties; fit at one penalty (l1)"
        )

    def without(self, theta: Vector, left_out: NDArray[np.bool_] | None) -> WithoutRows:
        """None, for the same reason."""
        raise ProtocolError(
            "a site with a disclosure policy answers no path of penalties; fit at one penalty (l1)"
        )

    def cluster_scores(self, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
        """The score of each cluster of rows, and what it adds to the variance of each coefficient."""
        self._squared(theta)
        return self._model.cluster_scores(theta, inverse)

    def life_table(self, times: Scalars, columns: tuple[int, ...], least: int) -> LifeTable:
        """Counts by group and cell of a grid, none of them too small: cells are merged until they are not."""
        least = max(least, self._rules.least_count)
        table = self._model.life_table(times, columns, least)
        if (small := small_count(table, least)) is not None:
            self._refuse(
                f"at least {least} rows, or none, in each count of a life table (min_rows_per_level, "
                "min_rows_per_class); group the levels, or leave the groups out",
                f"a count of one group is {small} over all times",
            )
        return table

    def event_times(self) -> tuple[Scalars, float]:
        """No time of a row leaves."""
        self._refuse("that times of rows stay at the site: give a grid of times", "times were asked for")

    def _refuse(self, rule: str, detail: str) -> NoReturn:
        raise ForbiddenPointError(np.zeros(self.dim), Objection(rule, detail), fits=True)

    def scored(self, theta: Vector) -> Scored:
        """The rows with their scores at theta, where a gradient might leave too."""
        self.at(theta)
        return WatchedScores(self, theta, self._model.scored(theta))

    def on_line(self, theta: Vector, losses: Vector, errors: Vector, spreads: Vector) -> None:
        """Refuse a line of recalibration at which few rows count, or which fits badly."""
        if objection := self._rules.of_line(losses, errors, spreads):
            self.withheld += 1
            raise ForbiddenPointError(theta, objection, fits=True)

    def leverage_pull(self, theta: Vector, inverse: Matrix) -> Vector:
        """What the rows add to the slope of Firth's penalty, if many of them have a leverage."""
        point, h = self.at(theta), leverages(self._model, theta, inverse)
        pulls = h * np.tanh(self._model.margins(theta) / 2)
        if objection := self._rules.of_squares(point.value, h) or self._rules.of_squares(point.value, pulls):
            self.withheld += 1
            raise ForbiddenPointError(theta, objection, fits=True)
        self._weigh(theta, slope_vectors(h))
        return self._model.leverage_pull(theta, inverse)

    def pair_counts(self, theta: Vector) -> tuple[float, float, float]:
        """The weight of concordant, discordant and tied pairs of rows, where a gradient may leave."""
        self.at(theta)
        return self._model.pair_counts(theta)

    def proportionality(self, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
        """The sums of a test of proportional hazards, where a gradient and a curvature may leave.

        They are weighted by time, so they must not be those of a few events either: neither of events far
        from all others in time, nor of one cell of a grid.
        """
        self.gradient_at(theta, self.at(theta).slopes)
        self.curvature_at(theta, self._model.at(theta))
        event = self._model.y["event"]
        times = self._model.y["time"][event]
        least = self._rules.least_count
        if scale.times is not None:
            counts = np.bincount(scale.cells(times))
            if ((counts > 0) & (counts < least)).any():
                self._refuse(
                    f"at least {least} events, or none, in each interval of the grid (min_rows_per_level, "
                    'min_rows_per_class); use a wider grid, or ph_transform = "identity" or "log"',
                    "the test of proportional hazards is on the scale of a grid with fewer",
                )
        if objection := self._rules.of_times(self.at(theta).value, event, scale.of(times)):
            self.withheld += 1
            raise ForbiddenPointError(theta, objection, fits=True)
        return self._model.proportionality(theta, scale)

    def _squared(self, theta: Vector) -> None:
        """Refuse squared scores that a few rows make up: their weights are the squares of the slopes."""
        point = self.at(theta)
        squares = np.square(point.slopes)
        if objection := self._rules.of_squares(point.value, squares):
            self.withheld += 1
            raise ForbiddenPointError(theta, objection, fits=True)
        self._weigh(theta, slope_vectors(squares))


class WatchedScores(Scored):
    """Rows with their scores; a line that recalibrates these is looked at as theta is."""

    def __init__(self, watched: WatchedModel, theta: Vector, scored: Scored) -> None:
        self.__dict__.update(vars(scored))
        self._watched, self._theta = watched, theta

    def recalibrated(self, line: Scalars) -> Scalars:
        """The five sums, where the rules at points allow them."""
        self._watched.on_line(self._theta, *self.on_line(line))
        return super().recalibrated(line)

    def line(self) -> Scalars | None:
        """This site's own line; None where a rule forbids a point on the way to it."""
        try:
            return super().line()
        except ForbiddenPointError:
            return None


class WatchedPoint:
    """A point at which a gradient may leave; a curvature is looked at when it is asked for."""

    def __init__(self, watched: WatchedModel, theta: Vector, point: LinearPoint) -> None:
        self._watched, self._theta, self._point = watched, theta, point

    @property
    def value(self) -> float:
        """Mean loss."""
        return self._point.value

    @property
    def slopes(self) -> NDArray[np.float64]:
        """l' of each row."""
        return self._point.slopes

    @property
    def gradient(self) -> Vector:
        """The gradient."""
        self._watched.gradient_at(self._theta, self.slopes)
        return self._point.gradient

    @property
    def factor(self) -> Rows:
        """A matrix F with Hessian = F'F."""
        return self._of_curvature().factor

    @property
    def hessian(self) -> Packed:
        """The Hessian, packed."""
        return self._of_curvature().hessian

    @property
    def diagonal(self) -> Vector:
        """The diagonal of the Hessian."""
        return self._of_curvature().diagonal

    def leading_eigenpairs(self, count: int, kernel: Kernel, units: Vector | None = None) -> Leading:
        """At least the first `count` eigenpairs of the Hessian, or of it in these units."""
        return self._of_curvature().leading_eigenpairs(count, kernel, units)

    def trace(self, units: Vector | None = None) -> float:
        """The trace of the Hessian in these units."""
        return self._of_curvature().trace(units)

    @property
    def information(self) -> Rows:
        """A matrix F with expected information = F'F."""
        return self._of_curvature().information

    @property
    def fit(self) -> Fit:
        """Deviance and the like."""
        return self._point.fit

    def _of_curvature(self) -> LinearPoint:
        self._watched.curvature_at(self._theta, self._point)
        return self._point
