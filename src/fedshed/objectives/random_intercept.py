"""A random intercept per site: b ~ N(0, tau^2) is added to the linear predictor of all rows of a site.

The cost of site i is its marginal one, with W the weight of its rows,

    f(theta) = -(1/W) log int exp(-sum_j w_j l(z_j + b, y_j)) phi(b; 0, tau^2) db,    z = X theta + offset.

It is convex in theta for each tau, as the integrand is log-concave in (theta, b) (Prekopa 1973, Acta Sci.
Math. 34:335).  Let E and Cov be over the posterior of b given the rows, S(b) = sum_j w_j l'(z_j + b) x_j.
Then (Louis 1982, JRSS B 44:226)

    W f' = E S,    W f'' = sum_j w_j E l''(z_j + b) x_j x_j' - Cov S,

and with c = b^2 / tau^2

    W df/dlog tau = 1 - E c,    W d2f/(dlog tau)^2 = 2 E c - Var c,    W d2f/(dtheta dlog tau) = Cov(c, S).

Where tau = 0 the cost is the family's own, and W df/dtau^2 = (I - s^2) / 2, of information I^2 / 2, with
s = sum_j w_j l'_j and I = sum_j w_j l''_j.

The integral is a sum over equally spaced nodes about the mode of b, which for analytic integrands that fall
off at both ends converges faster than any power of their number (Trefethen and Weideman 2014, SIAM Review
56:385): half a standard deviation of the posterior apart, at most 0.3, and as far out as the integrand is
above exp(-37) of its largest value.  Then the error is below 1e-12, and the derivatives above are those of
the sum too.  Adaptive Gauss-Hermite quadrature of 25 nodes tends to the same, but more slowly where a site
has few rows and tau is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.rows import Rows, gram
from fedshed.objectives import binomial, logistic, poisson
from fedshed.objectives.base import LinearModel, LinearPoint
from fedshed.objectives.family import Family, Parameter
from fedshed.objectives.objective import Sensitivity
from fedshed.objectives.parametric import Parametric

if TYPE_CHECKING:
    from fedshed.objectives.scored import Scored

AT_SITE = "@site"  # what is added to the name of a loss
SPACING, WIDEST = 0.5, 0.3  # of nodes: posterior standard deviations, and at most
NEGLIGIBLE = 37.0  # by how much the logarithm of the integrand falls at its ends
FARTHEST, STRETCH = (
    8.7,
    1.35,
)  # standard deviations where a normal one has fallen so; how much further next
BLOCK = 1 << 21  # numbers at once: rows times nodes
MOST_STEPS = 100


class Posterior(Struct, frozen=True):
    """Of b given the rows of a site: nodes and their probabilities, and the log of the integral."""

    nodes: Vector
    probabilities: Vector
    log_marginal: float
    mode: float

    def mean(self, values: Vector) -> float:
        """E of a function of b, by its values at the nodes."""
        return float(self.probabilities @ values)


class RandomIntercept(Parametric):
    """The marginal cost of a site, of rows whose model given b is `plain`."""

    rowwise: ClassVar[bool] = False
    parameter: ClassVar[float] = 0.5
    plain: ClassVar[type[LinearModel]]  # the model of a row given b
    _posterior: tuple[NDArray[np.float64], Posterior] | None = None

    @cached_property
    def _row(self) -> LinearModel:
        """The model of the rows given b."""
        return self.plain(self.X, self.y, self.weights, self.offset)

    def at(self, theta: Vector) -> LinearPoint:
        """The cost at theta."""
        return super().at(theta) if self.parameter == 0.0 else MarginalPoint(self, self.margins(theta))

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Costs along a direction."""
        z, u = self.margins(theta), self.shift(direction)
        return np.array([self.cost(z + eta * u) for eta in etas])

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Slopes along a direction."""
        z, u = self.margins(theta), self.shift(direction)
        return np.array([float(np.vdot(self.shares(self.slopes(z + eta * u)), u)) for eta in etas])

    def cost(self, z: NDArray[np.float64]) -> float:
        """The marginal cost at margins z."""
        if self.parameter == 0.0:
            return float(self.mean(self._row.losses(z)))
        return -self.posterior(z).log_marginal / self.weight

    def losses(self, z: NDArray[np.float64]) -> Vector:
        """The marginal cost, the same for each row: only their mean has a meaning."""
        return self._row.losses(z) if self.parameter == 0.0 else np.full(len(z), self.cost(z))

    def slopes(self, z: NDArray[np.float64]) -> Vector:
        """E l' of each row: the derivative of W f by its margin, divided by its weight."""
        if self.parameter == 0.0:
            return self._row.slopes(z)
        found = self.posterior(z)
        return self._expected(self._row.slopes, z, found)

    def curvatures(self, z: NDArray[np.float64]) -> Vector:
        """E l'' of each row, before Cov S is taken off."""
        if self.parameter == 0.0:
            return self._row.curvatures(z)
        return self._expected(self._row.curvatures, z, self.posterior(z))

    def excess(self, z: NDArray[np.float64]) -> Vector:
        """The marginal cost less the least loss of each row, so that log L = constants - deviance / 2."""
        if self.parameter == 0.0:
            return self._row.excess(z)
        return np.asarray(self.cost(z) - (self._row.losses(z) - self._row.excess(z)))

    def pearson(self, z: NDArray[np.float64]) -> Vector:
        """Given the mode of b."""
        if self.parameter == 0.0:
            return self._row.pearson(z)
        return self._row.pearson(z + self.posterior(z).mode)

    def scored(self, theta: Vector) -> Scored:
        """The rows at b = 0, as predictions are: each with a loss of its own, which no marginal cost has."""
        row = self._row
        row.held, row.least = self.held, self.least
        return row.scored(theta)

    def posterior(self, z: NDArray[np.float64]) -> Posterior:
        """Of b at margins z; that of the last margins is kept."""
        if self._posterior is None or self._posterior[0] is not z:
            with np.errstate(over="ignore", invalid="ignore"):
                self._posterior = z, self._found(z)
        return self._posterior[1]

    def _found(self, z: NDArray[np.float64]) -> Posterior:
        """The nodes about the mode, and the integral."""
        if not np.isfinite(z).all():
            return Posterior(np.zeros(1), np.ones(1), -np.inf, 0.0)
        mode, spread = self._mode(z)
        h = min(SPACING * spread, WIDEST)
        low, high = (int(np.ceil(far / h)) for far in self._reach(z, mode, spread))
        nodes: Vector = np.asarray(mode + h * np.arange(-low, high + 1), dtype=np.float64)
        heights = self._heights(z, nodes)
        top = float(heights.max())
        if not np.isfinite(top):
            return Posterior(np.zeros(1), np.ones(1), -np.inf, 0.0)
        shares = np.exp(heights - top)
        total = float(shares.sum())
        scale = h / (np.sqrt(2 * np.pi) * self.parameter)
        return Posterior(nodes, shares / total, top + float(np.log(total * scale)), mode)

    def _heights(self, z: NDArray[np.float64], nodes: Vector) -> Vector:
        """log of exp(-sum_j w_j l(z_j + b)) exp(-b^2 / (2 tau^2)) at each b."""
        sums = [self._row.losses(z + part) for part in self._blocks(nodes, len(z))]
        rows = [self.mean(losses) * self.weight for losses in sums]
        heights = -np.concatenate(rows) - np.square(nodes / self.parameter) / 2
        return np.where(np.isnan(heights), -np.inf, heights)

    def _mode(self, z: NDArray[np.float64]) -> tuple[float, float]:
        """The most probable b and (-second derivative)^(-1/2) there: Newton's method between known signs."""
        b, low, high, precision = 0.0, -np.inf, np.inf, 1.0 / self.parameter**2
        for _ in range(MOST_STEPS):
            slope = self.total(self._row.slopes(z + b)) + b * precision
            bend = self.total(self._row.curvatures(z + b)) + precision
            if abs(slope) < 1e-3 * np.sqrt(bend):
                break
            low, high = (b, high) if slope < 0 else (low, b)
            step = float(np.clip(-slope / bend, -FARTHEST * self.parameter, FARTHEST * self.parameter))
            inside = low < b + step < high
            b = b + step if inside else (low + high) / 2
        return b, 1.0 / float(np.sqrt(bend))

    def _reach(self, z: NDArray[np.float64], mode: float, spread: float) -> tuple[float, float]:
        """How far to each side the integrand matters: its log falls at least as b^2 / (2 tau^2) does."""
        most = FARTHEST * self.parameter
        far = np.minimum(FARTHEST * spread * STRETCH ** np.arange(int(np.log(most / spread) / 0.3) + 2), most)
        ends = [most, most]
        top = float(self._heights(z, np.array([mode]))[0])
        for part in (far[:2], far[2:]):
            falls = top - self._heights(z, mode + np.concatenate([-part, part])).reshape(2, -1)
            for side, fall in enumerate(falls):
                enough = part[fall >= NEGLIGIBLE]
                ends[side] = min(ends[side], float(enough.min(initial=most)))
            if max(ends) <= part[-1]:
                break
        return ends[0], ends[1]

    def _blocks(self, nodes: Vector, rows: int) -> Iterator[Matrix]:
        """The nodes as columns, as many at once as memory allows."""
        size = max(1, BLOCK // max(rows, 1))
        return (nodes[k : k + size, None] for k in range(0, len(nodes), size))

    def _expected(self, function: object, z: NDArray[np.float64], found: Posterior) -> Vector:
        """E of a function of each row's margin z_j + b."""
        total = np.zeros(len(z))
        weights = self._blocks(found.probabilities, len(z))
        for nodes, shares in zip(self._blocks(found.nodes, len(z)), weights, strict=True):
            total += shares[:, 0] @ function(z + nodes)  # type: ignore[operator]
        return total

    def scores(self, z: NDArray[np.float64], found: Posterior) -> Matrix:
        """S(b) / W at each node, a row each."""
        nodes = (part for block in self._blocks(found.nodes, len(z)) for part in block)
        rows = [self.slope_product(self.shares(self._row.slopes(z + b))) for b in nodes]
        return np.array(rows)

    def sensitivity(self, theta: Vector) -> Sensitivity:
        """By log tau; by tau^2 where it is 0."""
        z, W = self.margins(theta), self.weight
        if self.parameter == 0.0:
            s, bend = self.total(self._row.slopes(z)), self.total(self._row.curvatures(z))
            return Sensitivity((bend - s * s) / (2 * W), bend * bend / (2 * W), np.zeros(self.dim))
        found = self.posterior(z)
        c = np.square(found.nodes / self.parameter)
        mean = found.mean(c)
        mixed = (found.probabilities * (c - mean)) @ self.scores(z, found)
        spread = found.mean(np.square(c - mean))
        return Sensitivity((1.0 - mean) / W, (2.0 * mean - spread) / W, np.asarray(mixed))


class MarginalPoint(LinearPoint):
    """A marginal cost at one point."""

    _model: RandomIntercept

    @cached_property
    def value(self) -> float:
        """The marginal cost."""
        return self._model.cost(self._z)

    @cached_property
    def factor(self) -> Rows:
        """F with F'F the Hessian, of which Cov S has been taken off: its root by eigenvalues."""
        model, found = self._model, self._model.posterior(self._z)
        scores = model.scores(self._z, found)
        apart = scores - found.probabilities @ scores
        H = gram(model.curvature_factor(model.shares(self.curvatures)))
        H = H - model.weight * (apart.T * found.probabilities) @ apart
        values, vectors = np.linalg.eigh((H + H.T) / 2)
        root: Matrix = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return root


class RandomLogistic(RandomIntercept, logistic.Logistic):
    """Two classes."""

    plain = logistic.Logistic


class RandomBinomial(RandomIntercept, binomial.Binomial):
    """Successes among trials."""

    plain = binomial.Binomial


class RandomPoisson(RandomIntercept, poisson.Poisson):
    """Counts."""

    plain = poisson.Poisson


KINDS: dict[str, type[RandomIntercept]] = {
    logistic.FAMILY.loss: RandomLogistic,
    binomial.FAMILY.loss: RandomBinomial,
    poisson.FAMILY.loss: RandomPoisson,
}
TAU = Parameter(
    "tau", least=1e-4, most=20.0, start=0.5, searched=True, squared=True, none=(
        "The sites differ no more than chance explains: tau, the standard deviation of the random intercept, "
        "is 0, an end of its range, and the fit is that of the model without a random intercept."
    ),
)  # fmt: skip


def at_sites(family: Family) -> Family:
    """The family with a random intercept per site."""
    return replace(
        family, loss=family.loss + AT_SITE, objective=KINDS[family.loss], parameter=TAU,
        title=f"{family.title}, mixed", unit_dispersion=False,
    )  # fmt: skip
