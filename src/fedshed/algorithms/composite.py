"""Costs with an absolute penalty, F(theta) = f(theta) + sum_j l1_j |theta_j|: the proximal Newton step.

The smooth part f, its gradient g and its curvature H come from the sites as always; only the Master handles
the penalty, so no further byte is sent.  The direction d minimises

    g'd + d'H d / 2 + sum_j l1_j |theta_j + d_j|

(Lee, Sun and Saunders 2014, SIAM Journal on Optimization 24, 1420).  Coefficients that it sets to 0 are
exactly 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.conversation import Problem

SWEEPS = 500  # of coordinate descent at most; each is followed by exact solutions of linear systems
EXACT = 64 * np.finfo(float).eps  # of what cancels in the subgradient of the model
FLAT = 1e-13  # of a unit diagonal: a smaller eigenvalue is rounding


def direction(problem: Problem, theta: Vector, g: Vector, H: Any) -> Vector:
    """-H^-1 g, or with an absolute penalty the proximal Newton direction."""
    if problem.l1 is None:
        solution: Vector = -H.solve(g)
        return solution
    return minimiser(H.matrix(), g, theta, problem.l1) - theta


def steepest(problem: Problem, theta: Vector, g: Vector) -> Vector:
    """The subgradient of least norm, which is 0 at the optimum; g itself without an absolute penalty."""
    return g if problem.l1 is None else least_subgradient(theta, g, problem.l1)


def slope(problem: Problem, theta: Vector, g: Vector, d: Vector) -> float:
    """g'd + sum_j l1_j (|theta_j + d_j| - |theta_j|), the decrease that a full step promises."""
    smooth = float(g @ d)
    return smooth if problem.l1 is None else smooth + problem.lasso(theta + d) - problem.lasso(theta)


def least_subgradient(theta: Vector, g: Vector, l1: Vector) -> Vector:
    """g_j + l1_j sign(theta_j); where theta_j = 0, the part of g_j that exceeds l1_j."""
    return np.where(theta != 0, g + l1 * np.sign(theta), soft(g, l1))


def soft(x: Vector, by: Vector) -> Vector:
    """x, moved towards 0 by `by`, and no further than 0."""
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - by, 0.0))


def minimiser(H: Matrix, g: Vector, theta: Vector, l1: Vector) -> Vector:
    """w that minimises g'(w - theta) + (w - theta)'H(w - theta) / 2 + sum_j l1_j |w_j|, from w = theta.

    Coordinate descent (Friedman, Hastie and Tibshirani 2010, Journal of Statistical Software 33) finds which
    coefficients are not 0; on these, with their signs, the rest is a linear system.
    """
    w, c = theta.copy(), g - H @ theta  # the gradient of the quadratic at w is c + H w
    for _ in range(SWEEPS):
        w = _on_the_face(H, c, w, l1)
        off, small = _off(H, c, w, l1)
        before = w
        if off <= small:
            break
        w = _sweep(H, c, w, l1)
        if np.array_equal(w, before):
            break
    return w


def _off(H: Matrix, c: Vector, w: Vector, l1: Vector) -> tuple[float, float]:
    """The norm of the model's least subgradient at w, and the size of its rounding error."""
    size = np.abs(c) + np.abs(H) @ np.abs(w)
    return float(np.linalg.norm(least_subgradient(w, c + H @ w, l1))), float(EXACT * np.linalg.norm(size))


def _on_the_face(H: Matrix, c: Vector, w: Vector, l1: Vector) -> Vector:
    """From w towards the minimum with the same zeros and signs; coefficients that reach 0 stay there."""
    for _ in range(len(w) + 1):
        aim = w - _newton_with_signs(H, c + H @ w + l1 * np.sign(w), (w != 0) | (l1 == 0))
        crossing = (np.sign(aim) != np.sign(w)) & (l1 > 0)
        if not crossing.any():
            return aim
        shares = np.where(crossing, w / np.where(crossing, w - aim, 1.0), 1.0)
        w = np.where(crossing & (shares <= shares.min()), 0.0, w + shares.min() * (aim - w))
    return w


def _newton_with_signs(H: Matrix, r: Vector, support: NDArray[np.bool_]) -> Vector:
    """H^-1 r over the support; where H is singular there, a long step along what is flat, up to 0."""
    step, A = np.zeros_like(r), H[np.ix_(support, support)]
    if not len(A):
        return step
    scale = 1 / np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
    unit = A * scale[:, None] * scale
    factor, failed = dpotrf(unit, lower=1)
    if failed or (np.diag(factor) ** 2).min(initial=1.0) <= FLAT:
        values, columns = np.linalg.eigh(unit)
        solved = columns @ ((columns.T @ (scale * r[support])) / np.maximum(values, FLAT))
    else:
        solved = cho_solve((factor, True), scale * r[support], check_finite=False)
    step[support] = scale * solved
    return step


def _sweep(H: Matrix, c: Vector, w: Vector, l1: Vector) -> Vector:
    """Coordinate descent once over all coefficients."""
    w, r = w.copy(), c + H @ w
    for j in range(len(w)):
        h = max(H[j, j], np.finfo(float).tiny)
        x = w[j] - r[j] / h
        beyond = max(abs(x) - l1[j] / h, 0.0)
        moved = np.copysign(beyond, x) - w[j] if beyond else -w[j]
        if moved:
            w[j] = w[j] + moved if beyond else 0.0
            r += H[:, j] * moved
    return w
