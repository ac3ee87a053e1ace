"""Sums over risk sets one by one, for margins so far apart that cumulative sums would lose their digits.

A line search may look at such points, and columns in small units lead there.  Each risk set is then summed in
units of its largest term, for a time that grows with the rows times the events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives.risk_sets import RiskSets

Numbers = NDArray[np.float64]


def log_denominators(risk: RiskSets, z: Numbers) -> Numbers:
    """log S_k of each event; without late rows by sums of logarithms, which are as fast as others."""
    if z.ndim > 1:
        return np.array([log_denominators(risk, each) for each in z])
    if risk.truncated:
        return np.array([log_sum for _, _, log_sum, _ in shares(risk, z)])
    weighted = z + np.log(risk.weights)
    sums = risk.log_over_risk_sets(weighted)
    events = np.logaddexp.reduceat(weighted[risk.deaths], risk.first)
    logs: Numbers = sums[risk.group] + np.log1p(-risk.share * np.exp(events - sums)[risk.group])
    return logs


def hazards(risk: RiskSets, z: Numbers, tilt: Numbers) -> Numbers:
    """exp(z) L of each row, each event times a number."""
    if z.ndim > 1:
        return np.array([hazards(risk, each, tilt) for each in z])
    found = np.zeros_like(z)
    for event, members, _, share in shares(risk, z):
        weight = tilt[event] * risk.mean_weight[risk.group[event]]
        found[members] += weight * share / risk.weights[members]
    return found


def means(risk: RiskSets, z: Vector, X: Matrix) -> Matrix:
    """m_k of each event."""
    return np.array([share @ X[members] for _, members, _, share in shares(risk, z)])


def shares(risk: RiskSets, z: Vector) -> Iterator[tuple[int, NDArray[np.intp], float, Vector]]:
    """For each event its risk set, log S_k, and what share of S_k each row has."""
    for event, group in enumerate(risk.group):
        members = risk.members(group)
        top = z[members].max()
        tied = (risk.until[members] == group + 1) & risk.event[members]
        terms = risk.weights[members] * np.exp(z[members] - top) * (1.0 - risk.share[event] * tied)
        total = terms.sum()
        yield event, members, float(top + np.log(total)), terms / total
