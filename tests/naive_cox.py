"""Cox's partial likelihood by its definition, one risk set after the other: the oracle of the fast sums."""

from __future__ import annotations

import numpy as np


def risk_sets(y):
    """Each event time of each stratum: who is at risk, and who has the event."""
    for s in np.unique(y["stratum"]):
        for t in np.unique(y["time"][(y["stratum"] == s) & y["event"]]):
            at_risk = (y["stratum"] == s) & (y["time"] >= t) & (y["entry"] < t)
            yield t, at_risk, at_risk & y["event"] & (y["time"] == t)


def partial_likelihood(X, y, w, z, efron=True, g=lambda t: 0.0):
    """Minus the log partial likelihood, its gradient and Hessian; and U, I_1, I_2 of `proportionality`."""
    n = X.shape[1]
    f, U, H = 0.0, np.zeros(n), np.zeros((n, n))
    tilted, cross, square = np.zeros(n), np.zeros((n, n)), np.zeros((n, n))
    for t, at_risk, events in risk_sets(y):
        d, mean_weight = events.sum(), w[events].mean()
        f -= w[events] @ z[events]
        U -= w[events] @ X[events]
        tilted -= g(t) * (w[events] @ X[events])
        top = z[at_risk].max()
        for k in range(d):
            p = w * np.exp(np.where(at_risk, z - top, -np.inf)) * (1 - (k / d if efron else 0) * events)
            m = p @ X / p.sum()
            V = (X.T * p) @ X / p.sum() - np.outer(m, m)
            f += mean_weight * (np.log(p.sum()) + top)
            U, H = U + mean_weight * m, H + mean_weight * V
            tilted, cross = tilted + g(t) * mean_weight * m, cross + g(t) * mean_weight * V
            square = square + g(t) ** 2 * mean_weight * V
    return f, U, H, (-tilted, cross, square)


def score_residuals(X, y, w, z, efron=True):
    """R's residuals of type "score": for each row its event less what was expected, both times x - m."""
    U = np.zeros_like(X)
    for _, at_risk, events in risk_sets(y):
        d, mean_weight = events.sum(), w[events].mean()
        for k in range(d):
            left = at_risk * (1 - (k / d if efron else 0) * events)
            r = np.exp(z) * left
            m = (w * r) @ X / (w @ r)
            U += events[:, None] * (X - m) / d - (mean_weight * r / (w @ r))[:, None] * (X - m)
    return U
