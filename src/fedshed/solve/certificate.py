"""How far from the optimum a result can be, computed from what the Master knows at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from fedshed.algorithms.base import AnyAlgorithm, State
from fedshed.linalg.arrays import Vector
from fedshed.objectives import family_of
from fedshed.protocol.conversation import Problem


class Certificate(Struct, frozen=True):
    """The gradient norm at the end of a run, and a bound or an estimate of f(theta) - f*.

    Attributes
    ----------
    grad_norm : float
        The norm of the global gradient; with an absolute penalty, of the subgradient of least norm.
    bound : float or None
        ||g||^2 / (2 min l2), a bound of f(theta) - f* by strong convexity; None unless every coefficient has
        a ridge and the gradient is exact. With an absolute penalty the bound holds too.
    estimate : float or None
        g'H^-1 g / 2 if the exact Hessian is known; it is not a bound. None with an absolute penalty.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm="newton").certificate.grad_norm < 1e-9
    True
    """

    grad_norm: float
    bound: float | None
    estimate: float | None


def certify(
    problem: Problem, algorithm: AnyAlgorithm, state: State[Any], g: Vector, exact: bool = True
) -> Certificate:
    """The certificate of a state; there is no bound if an agent is silent or a gradient is rounded."""
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
