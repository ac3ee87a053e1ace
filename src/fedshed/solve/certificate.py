"""How far from the optimum a result can be, from what the Master knows at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from fedshed.algorithms.base import Algorithm, State
from fedshed.linalg.arrays import Vector
from fedshed.objectives import family_of
from fedshed.protocol.conversation import Problem


class Certificate(Struct, frozen=True):
    """The gradient norm, and with it a bound or an estimate of f(theta) - f*.

    bound = ||g||^2 / (2 min l2), where every coefficient is penalised (strong convexity);
    estimate = g'H^-1 g / 2, where the exact Hessian is at hand: not a bound.
    With an absolute penalty g is the subgradient of least norm, for which the bound holds too; no estimate.
    """

    grad_norm: float
    bound: float | None
    estimate: float | None


def certify(
    problem: Problem, algorithm: Algorithm[Any], state: State[Any], g: Vector, exact: bool = True
) -> Certificate:
    """The certificate of a state in which every agent has answered; a rounded gradient bounds nothing."""
    heard = not state.silent(problem)
    H = algorithm.exact_curvature(problem, state) if heard else None
    return certificate(problem, g, H, bounds=exact and heard)


def certificate(problem: Problem, g: Vector, H: Any, bounds: bool = True) -> Certificate:
    """The certificate of a gradient of the whole cost, and of its exact Hessian if there is one."""
    bounds = bounds and family_of(problem.loss).convex
    norm, weakest = float(np.linalg.norm(g)), float(problem.l2.min())
    return Certificate(
        grad_norm=norm,
        bound=norm**2 / (2 * weakest) if weakest > 0 and bounds else None,
        estimate=None if H is None or problem.l1 is not None else float(g @ H.solve(g)) / 2,
    )
