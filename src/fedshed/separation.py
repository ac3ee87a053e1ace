"""Whether a cost falls for ever along some direction: separated classes, or counts that are all 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedshed.algorithm import Problem
from fedshed.arrays import Vector
from fedshed.objectives import LinearModel
from fedshed.objectives.base import gram

FLAT = 1e-6  # of the largest curvature: directions this flat may be directions of recession
NEGLIGIBLE = 1e-4  # of the typical margin along a direction: below it a row does not move


def separating(objectives: Mapping[str, LinearModel], problem: Problem, theta: Vector) -> tuple[str, ...]:
    """The unpenalised coefficients that carry a direction of recession at theta; none where there is none.

    Without a penalty and with such a direction there is no finite optimum (Albert and Anderson 1984).
    Candidates are theta itself (complete separation) and its part in flat directions (quasi-complete).
    """
    free = np.flatnonzero(problem.l2 == 0)
    scale = np.sqrt(sum(problem.p[i] * objectives[i].column_squares() for i in problem.agents))
    free = free[scale[free] > 0]
    for v in _candidates(objectives, problem, theta, free, scale):
        reach = float(np.linalg.norm(v * scale))
        if reach > 0 and all(objectives[i].recedes(v, NEGLIGIBLE * reach) for i in problem.agents):
            large = np.abs(v * scale) > 0.1 * np.abs(v * scale).max()
            return tuple(problem.columns[j] for j in np.flatnonzero(large))
    return ()


def _candidates(
    objectives: Mapping[str, LinearModel],
    problem: Problem,
    theta: Vector,
    free: NDArray[np.intp],
    scale: Vector,
) -> Iterable[Vector]:
    whole = np.zeros_like(theta)
    whole[free] = theta[free]
    yield whole
    if len(free) < 2:
        return
    H = np.zeros((len(free), len(free)))
    for i in problem.agents:
        H += problem.p[i] * gram(objectives[i].at(theta).factor[:, free])
    values, vectors = np.linalg.eigh(H / np.outer(scale[free], scale[free]))
    flat = vectors[:, values < FLAT * values[-1]]
    if flat.shape[1]:
        part = np.zeros_like(theta)
        part[free] = flat @ (flat.T @ (theta[free] * scale[free])) / scale[free]
        yield part
