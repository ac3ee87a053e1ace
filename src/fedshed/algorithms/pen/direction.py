"""The Master's direction: Newton's with secants, corrected by the change of the Hessian (tensor step)."""

from __future__ import annotations

import numpy as np

from fedshed.algorithms.lbfgs import two_loop
from fedshed.linalg.arrays import Matrix, Vector

SHORTEST, LONGEST, BLIND = 0.1, 0.7, 0.35  # shares of a rejected step that are tried next


def minimize_cubic(f0: float, slope0: float, f1: float, slope1: float) -> float:
    """The minimiser, within bounds, of the cubic with those values and slopes at 0 and 1.

    Nocedal and Wright, Numerical Optimization (2nd ed.), (3.59).
    """
    d1 = slope0 + slope1 - 3 * (f1 - f0)
    square = d1 * d1 - slope0 * slope1
    if not (np.isfinite(square) and square >= 0):
        return BLIND
    d2 = float(np.sqrt(square))
    below = slope1 - slope0 + 2 * d2
    return min(max(1 - (slope1 + d2 - d1) / below, SHORTEST), LONGEST) if below > 0 else BLIND


def direction(g: Vector, A: Matrix, before: tuple[Matrix, Vector] | None, s: Matrix, y: Matrix) -> Vector:
    """B g, corrected by the tensor step: model g + A d + a (s'd)^2 / 2 = 0, a = (A - A_last) s / (s's)^2.

    Schnabel and Chow, SIAM J. Optim. 1 (1991); used where it points downhill and is not longer than twice.
    """

    def solve(v: Vector) -> Vector:
        return np.asarray(np.linalg.solve(A, v), dtype=np.float64)

    p = two_loop(g, s, y, solve)
    if before is None:
        return p
    A_last, last = before
    size = float(last @ last) ** 2
    if size == 0:  # a step that was rounded to 0 shows no change of the Hessian
        return p
    q = two_loop((A - A_last) @ last / size, s, y, solve)
    bend, along = float(last @ q), float(last @ p)
    if bend == 0 or 1 - 2 * bend * along <= 0:
        return p
    b = (np.sqrt(1 - 2 * bend * along) - 1) / bend
    d: Vector = p + q * float(b) * float(b) / 2
    return d if d @ g > 0 and d @ A @ d < 4 * (p @ A @ p) else p
