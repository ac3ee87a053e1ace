"""Times to an event in proportional hazards, h(t | x) = h_0(t) exp(x'theta), with one h_0 per site.

The cost of a site is minus its log partial likelihood (Cox 1972, JRSS B 34, 187) over the weight of its
rows.  It is a function of the margins z = X theta + offset, though not row by row: with S_k the denominators
of `fedshed.objectives.risk_sets` and w the mean weight of the events of a group,

    f W = sum over groups of [ sum_k w log S_k - sum over events of w_j z_j ],
    d(f W) / dz_j = w_j (exp(z_j) L_j - event_j),       L_j = sum of w / S_k while j is at risk,
    d2(f W) = X' diag(w_j exp(z_j) L_j) X - sum_k w m_k m_k',   m_k the mean of x with the weights of S_k.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.columns import Narrow, narrowed
from fedshed.linalg.rows import Rows
from fedshed.objectives import concordance, far_risks, survival_scores
from fedshed.objectives.base import LinearModel, LinearPoint
from fedshed.objectives.family import Family
from fedshed.objectives.risk_sets import RiskSets
from fedshed.objectives.time_scale import TimeScale

FAR = 600.0  # beyond it exp(-z) and the sums that it is in are no numbers
LOST = 1e-6  # of a sum before late rows are taken away: below it, too few digits are left

Numbers = NDArray[np.float64]


class Denominators(NamedTuple):
    """What the sums over risk sets are at one or more points, in the units of exp(shift) of each stratum."""

    z: Numbers
    relative: Numbers  # exp(z - shift) of each row
    shift: Numbers  # of each row
    sums: Numbers  # S_k of each event
    exact: bool = False  # the sums lack digits: each risk set is summed alone


class Cox(LinearModel):
    """Minus the log partial likelihood with Efron's denominators, over the weight of all rows."""

    labelled: ClassVar[bool] = True
    can_recede: ClassVar[bool] = True
    efron: ClassVar[bool] = True

    @cached_property
    def risk(self) -> RiskSets:
        """Who is at risk when."""
        return RiskSets(self.y, self.weights, self.efron)

    @property
    def outcomes(self) -> NDArray[np.bool_]:
        """Which rows have an event: a disclosure policy counts these."""
        return np.asarray(self.y["event"])

    def at(self, theta: Vector) -> CoxPoint:
        """The cost at theta."""
        return CoxPoint(self, self.margins(theta))

    def null_moments(self) -> Scalars:
        """The weight of all events, and the total cost at theta = 0."""
        cost = self.total(self.losses(self.margins(np.zeros(self.dim))))
        return np.array([self.total(self.y["event"].astype(np.float64)), cost])

    @staticmethod
    def null_levels(sums: Scalars) -> Vector:
        """0, for there is no intercept."""
        return np.zeros(1)

    @staticmethod
    def null_cost(sums: Scalars) -> float | None:
        """The total cost at theta = 0; without any event there is no likelihood."""
        if not sums[0] > 0:
            raise DataError(NO_EVENT)
        return float(sums[1])

    @staticmethod
    def possible_moments(sums: Scalars, weight: float) -> bool:
        """Events are some of the rows; without any there is no cost."""
        return len(sums) == 2 and bool(sums[0] > 0 or sums[1] == 0) and 0 <= sums[0] <= weight * (1 + 1e-9)

    def losses(self, z: Numbers) -> Numbers:
        """log S - z of each event, log S its mean over tied events; 0 of all other rows."""
        return self._spread(self._event_losses(z[..., self.risk.order]), z.shape, self.risk.deaths)

    def _event_losses(self, z: Numbers) -> Numbers:
        risk, found = self.risk, self.denominators(z)
        if not len(risk.deaths):
            return np.zeros((*z.shape[:-1], 0))
        if found.exact:
            logs = far_risks.log_denominators(risk, z)
        else:
            logs = np.log(found.sums) + found.shift[..., risk.deaths]
        means = risk.over_ties(logs) / risk.tied
        losses: Numbers = means[..., risk.group] - z[..., risk.deaths]
        return losses

    def slopes(self, z: Numbers) -> Numbers:
        """exp(z) L - event of each row: minus its martingale residual."""
        zs = z[..., self.risk.order]
        slopes = self.hazards(self.denominators(zs)) - self.risk.event
        return self._spread(slopes, z.shape, None)

    def curvatures(self, z: Numbers) -> Numbers:
        """exp(z) L of each row, which bounds the curvature: that of X theta is less by a sum of squares."""
        zs = z[..., self.risk.order]
        return self._spread(self.hazards(self.denominators(zs)), z.shape, None)

    def pearson(self, z: Numbers) -> Numbers:
        """There is no such statistic: infinite, which is left out."""
        return np.full_like(z, np.inf)

    def denominators(self, z: Numbers) -> Denominators:
        """S_k of each event, at margins in the order of the risk sets."""
        risk = self.risk
        if not len(risk.deaths):
            return Denominators(z, np.zeros_like(z), np.zeros_like(z), np.zeros((*z.shape[:-1], 0)))
        shift = risk.largest(z)
        relative = np.exp(np.maximum(z - shift, -FAR))
        weighted = relative * risk.weights
        sums, before = risk.over_risk_sets(weighted)
        events = risk.over_events(weighted)
        exact = bool((z - shift).min() < -FAR or (sums < LOST * before).any())
        sums = np.maximum(sums, events)  # rounding may leave less, where rows enter late
        found = sums[..., risk.group] - risk.share * events[..., risk.group]
        return Denominators(z, relative, shift, found, exact)

    def hazards(self, found: Denominators, tilt: Vector | None = None) -> Numbers:
        """exp(z) L of each row, in the order of the risk sets; perhaps with a factor for each event."""
        risk = self.risk
        tilt = np.ones(len(risk.deaths)) if tilt is None else tilt
        if not len(risk.deaths):
            return np.zeros_like(found.relative)
        if found.exact:
            return far_risks.hazards(risk, found.z, tilt)
        inverse = tilt * risk.mean_weight[risk.group] / found.sums
        gathered = risk.while_at_risk(risk.from_start(risk.over_ties(inverse)))
        less = risk.over_ties(risk.share * inverse)  # a tied event is in S_k with 1 - k / d
        gathered[..., risk.deaths] -= less[..., risk.group]
        return found.relative * gathered

    def _spread(self, values: Numbers, shape: tuple[int, ...], chosen: NDArray[np.intp] | None) -> Numbers:
        """Values in the order of the risk sets as those of all rows, 0 for rows that are never at risk."""
        spread = np.zeros(shape)
        spread[..., self.risk.order if chosen is None else self.risk.order[chosen]] = values
        return spread

    @cached_property
    def centred(self) -> Matrix:
        """The rows of X that are at risk, in their order, less the mean of their stratum."""
        risk = self.risk
        X = self.X[risk.order] if isinstance(self.X, np.ndarray) else np.asarray(_dense(self.X)[risk.order])
        for s in range(len(risk.begins)):
            mine = risk.row_stratum == s
            X[mine] -= np.average(X[mine], axis=0, weights=risk.weights[mine])
        return X

    def slope_product(self, slopes: Numbers) -> Vector:
        """X's; slopes sum to 0 in each stratum, so centred columns give the same and keep their digits."""
        if not isinstance(self.X, np.ndarray):
            return super().slope_product(slopes)
        return np.asarray(self.centred.T @ slopes[self.risk.order])

    def means(self, found: Denominators) -> Matrix:
        """m_k of each event, less the mean of its stratum."""
        risk = self.risk
        if found.exact:
            return far_risks.means(risk, found.z, self.centred)
        weighted = (self.centred * (found.relative * risk.weights)[:, None]).T
        sums = risk.over_risk_sets(weighted)[0][:, risk.group]
        sums = sums - risk.share * risk.over_events(weighted)[:, risk.group]
        return np.asarray((sums / found.sums).T)

    def hessian(self, z: Numbers) -> Matrix:
        """The Hessian of the mean cost."""
        risk = self.risk
        if not len(risk.deaths):
            return np.zeros((self.dim, self.dim))
        found = self.denominators(z[risk.order])
        rows = self.centred * np.sqrt(risk.weights * self.hazards(found))[:, None]
        means = self.means(found) * np.sqrt(risk.mean_weight[risk.group])[:, None]
        return np.asarray((rows.T @ rows - means.T @ means) / self.weight)

    def pair_counts(self, theta: Vector) -> concordance.PairCounts:
        """The weight of concordant, discordant and tied pairs of rows (`concordance`)."""
        return concordance.pair_counts(self.risk, self.margins(theta)[self.risk.order])

    def proportionality(self, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
        """Sums of g (x - m), g V and g^2 V over events (`survival_scores.proportionality`)."""
        return survival_scores.proportionality(self, theta, scale)

    @property
    def varied(self) -> Rows:
        """The columns less their means in each stratum: the baseline hazard takes those."""
        return self.centred

    def scatter(self, theta: Vector, inverse: Matrix | None, power: int, counts: bool) -> Rows:
        """F with F'F the sum of squared score residuals of the rows; there is no leverage."""
        if power:
            raise ValueError("rows of a Cox model have no leverage; use HC0 or HC1")
        return survival_scores.scatter(self, theta, counts)

    def cluster_scores(self, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
        """The score of each cluster of rows."""
        return survival_scores.cluster_scores(self, theta, inverse)

    @cached_property
    def _pairs(self) -> survival_scores.Pairs:
        return survival_scores.Pairs(self, *survival_scores.pairs(self.risk))

    def gains(self, direction: Vector) -> Matrix:
        """What pairs of rows gain, one being at risk at the event of the other."""
        return self._pairs.gains(direction)

    def rows(self, chosen: NDArray[np.intp]) -> Any:
        """Some of the pairs of rows that `gains` is about."""
        return self._pairs.rows(chosen)


class Breslow(Cox):
    """The same with Breslow's denominators, in which tied events do not leave one after the other."""

    efron: ClassVar[bool] = False


class CoxPoint(LinearPoint):
    """A Cox model at one point: its Hessian is no sum over rows, and its factor is n x n."""

    _model: Cox

    @cached_property
    def factor(self) -> Rows:
        """The root of the Hessian by its eigenpairs: V diag(lambda)^(1/2) as rows."""
        values, vectors = np.linalg.eigh(self._model.hessian(self._z))
        return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)

    def narrow_factor(self) -> Narrow:
        """The factor on the columns that matter."""
        return narrowed(self.factor)


def _dense(X: Rows) -> Matrix:
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X)


NO_EVENT = "no row of any site has an event, so there is nothing to learn from; check the event column"

FAMILY = Family(
    name="cox", loss="cox", objective=Cox, title="Cox (Efron)", link="log", response="a time >= 0",
    ratio="hazard ratio", survival=True, intercept=False,
)  # fmt: skip
BRESLOW = Family(
    name="cox-breslow", loss="cox-breslow", objective=Breslow, title="Cox (Breslow)", link="log",
    response="a time >= 0", ratio="hazard ratio", survival=True, intercept=False,
)  # fmt: skip
