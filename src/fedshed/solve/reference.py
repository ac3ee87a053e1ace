"""The pooled optimum by Newton's method on all rows at once: the reference f* of every gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import gram
from fedshed.objectives import LinearModel


def pooled_optimum(
    objectives: Mapping[str, LinearModel], l2: Vector, max_iterations: int = 200
) -> tuple[Vector, float]:
    """theta* and f* of sum_i p_i f^(i) + ridge, to rounding; independent of the federated code paths.

    Damped Newton with halving; ends when a full step no longer lowers the gradient norm, at rounding level.
    """
    theta = next(iter(objectives.values())).origin()
    f, g, H = _pooled(objectives.values(), theta, l2)
    for _ in range(max_iterations):
        direction = -np.linalg.solve(H, g)
        eta, slack = 1.0, 1e-15 * max(1.0, abs(f))
        while (
            not (new := _pooled(objectives.values(), theta + direction, l2))[0] <= f + slack and eta > 1e-12
        ):
            direction, eta = direction / 2, eta / 2
        if np.linalg.norm(new[1]) >= np.linalg.norm(g) and np.linalg.norm(g) < 1e-10:
            break
        theta, (f, g, H) = theta + direction, new
    return theta, f


def _pooled(objectives: Iterable[LinearModel], theta: Vector, l2: Vector) -> tuple[float, Vector, Any]:
    objectives = list(objectives)
    total = sum(objective.weight for objective in objectives)
    f, g, H = float(0.5 * theta @ (l2 * theta)), l2 * theta, np.diag(l2)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is halved
        for objective in objectives:
            point, p = objective.at(theta), objective.weight / total
            f, g, H = f + p * point.value, g + p * point.gradient, H + p * gram(point.factor)
    return f, g, H
