"""The score residuals of a Cox model's rows, and the pairs of rows that make its likelihood monotone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import far_risks
from fedshed.objectives.risk_sets import RiskSets
from fedshed.objectives.time_scale import TimeScale

if TYPE_CHECKING:
    from fedshed.objectives.cox import Cox


def score_residuals(model: Cox, theta: Vector) -> Matrix:
    """U_j = event_j (x_j - m) - exp(z_j) sum of (x_j - m_k) w / S_k while j is at risk, for each row.

    m is the mean of m_k over tied events (Therneau and Grambsch 2000, section 7.2; R's residuals "score").
    Without weights they sum to minus N times the gradient.
    """
    risk, residuals = model.risk, np.zeros((len(model.y), model.dim))
    if not len(risk.deaths):
        return residuals
    found, X = model.denominators(model.margins(theta)[risk.order]), model.centred
    means = model.means(found)
    own = np.add.reduceat(means, risk.first)[risk.group] / risk.tied[risk.group][:, None]
    mine = -_expected(model, found.z, means) if found.exact else -(
        X * model.hazards(found)[:, None] - found.relative[:, None] * _gathered(risk, found.sums, means)
    )  # fmt: skip
    mine[risk.deaths] += X[risk.deaths] - own
    residuals[risk.order] = mine
    return residuals


def _gathered(risk: RiskSets, sums: Vector, means: Matrix) -> Matrix:
    """The sum of m_k w / S_k over the events while each row is at risk."""
    terms = means.T * (risk.mean_weight[risk.group] / sums)
    gathered = risk.while_at_risk(risk.from_start(risk.over_ties(terms)))
    gathered[:, risk.deaths] -= risk.over_ties(terms * risk.share)[:, risk.group]
    return np.asarray(gathered.T)


def _expected(model: Cox, z: Vector, means: Matrix) -> Matrix:
    """exp(z_j) sum of (x_j - m_k) w / S_k, one risk set after the other."""
    risk, found = model.risk, np.zeros_like(model.centred)
    for event, members, _, share in far_risks.shares(risk, z):
        part = risk.mean_weight[risk.group[event]] * share / risk.weights[members]
        found[members] += part[:, None] * (model.centred[members] - means[event])
    return found


def scatter(model: Cox, theta: Vector, counts: bool) -> Matrix:
    """F with F'F = sum_j w_j^2 U_j U_j', or sum_j w_j U_j U_j' where weights count rows."""
    residuals = score_residuals(model, theta)
    if model.weights is None:
        return residuals
    return residuals * (np.sqrt(model.weights) if counts else model.weights)[:, None]


def cluster_scores(model: Cox, theta: Vector, inverse: Matrix | None) -> tuple[Matrix, Matrix | None]:
    """The sum of w_j U_j over each cluster; and what its rows add to (A H A)_jj, before m_k is taken away."""
    if model.clusters is None:
        raise ValueError("errors by cluster need a column of clusters")
    weights = np.ones(len(model.y)) if model.weights is None else model.weights
    codes = np.unique(model.clusters, return_inverse=True)[1]
    scores = _summed(codes, weights[:, None] * score_residuals(model, theta))
    if inverse is None:
        return scores, None
    squares = np.zeros((len(model.y), model.dim))
    squares[model.risk.order] = np.square(model.centred @ inverse)
    part = weights * model.curvatures(model.margins(theta))
    return scores, _summed(codes, part[:, None] * squares)


def _summed(codes: NDArray[np.intp], values: Matrix) -> Matrix:
    sums = np.zeros((int(codes.max()) + 1, values.shape[1]))
    np.add.at(sums, codes, values)
    return np.asarray(sums)


def proportionality(model: Cox, theta: Vector, scale: TimeScale) -> tuple[Vector, Matrix, Matrix]:
    """Sums over events of g (x - m), g V and g^2 V, with m and V of their risk sets and g of their times."""
    risk, n = model.risk, model.dim
    if not len(risk.deaths):
        return np.zeros(n), np.zeros((n, n)), np.zeros((n, n))
    found, X = model.denominators(model.margins(theta)[risk.order]), model.centred
    means, g = model.means(found), scale.of(risk.times)[risk.group]
    weights = risk.mean_weight[risk.group]
    score = X[risk.deaths].T @ (g * risk.weights[risk.deaths]) - means.T @ (g * weights)

    def summed(tilt: Vector) -> Matrix:
        rows = risk.weights * model.hazards(found, tilt)
        return np.asarray((X * rows[:, None]).T @ X - (means * (weights * tilt)[:, None]).T @ means)

    return np.asarray(score), summed(g), summed(g**2)


def pairs(risk: RiskSets) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows (a, b), in the order of the risk sets, with z_a >= z_b wherever the cost falls without bound.

    Along such a direction each event has the largest z of its risk set.  An event of each group stands for
    the others: those tied with it must be equal to it, rows that leave before the next group are at most as
    large, and so is the event of the next group, which speaks for all that stay.  Where that event entered
    later, it cannot speak for them, and they are compared themselves.
    """
    if not len(risk.deaths):
        nobody = np.zeros(0, dtype=np.intp)
        return nobody, nobody
    early = np.lexsort((risk.since[risk.deaths], risk.group))  # of tied events the one that entered first
    spokesman = risk.deaths[early][risk.first]
    last = risk.until - 1
    tied = np.flatnonzero(risk.event & (spokesman[last] != np.arange(len(last))))
    others = np.flatnonzero(~risk.event)
    found = [(spokesman[last[tied]], tied), (tied, spokesman[last[tied]]), (spokesman[last[others]], others)]
    for group in range(len(risk.times) - 1):
        following = spokesman[group + 1]
        if risk.stratum_of[group + 1] != risk.stratum_of[group]:
            continue
        if risk.since[following] <= group:
            below = np.array([following])
        else:
            members = risk.members(group)
            below = members[risk.until[members] > group + 1]
        found.append((np.full(len(below), spokesman[group]), below))
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


class Pairs:
    """Some of the pairs of a model, which gain or lose by a direction."""

    def __init__(self, model: Cox, above: NDArray[np.intp], below: NDArray[np.intp]) -> None:
        self._model, self._above, self._below = model, above, below

    def gains(self, direction: Vector) -> Matrix:
        """z_a - z_b of each pair."""
        z = self._model.linear(direction)[self._model.risk.order]
        return np.asarray((z[self._above] - z[self._below])[:, None])

    def rows(self, chosen: NDArray[np.intp]) -> Pairs:
        """Some of them."""
        return Pairs(self._model, self._above[chosen], self._below[chosen])
