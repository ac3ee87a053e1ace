"""Detects that a method without a line search diverges."""

from __future__ import annotations

from math import isfinite
from typing import Any

from fedshed.algorithms.base import DIVERGED, State

FAR = 100.0  # times the cost at the start
PATIENCE = 20  # iterations after which the cost must be below that at the start
SLACK = 1e-6  # of the cost: a start at the optimum is not left by rounding


def divergence_reason(state: State[Any], f: float, first: float, hint: str) -> str | None:
    """The reason to stop if the cost f is far above the first one, or still above it after many iterations.

    With some convex losses the cost of a diverging method stays bounded and oscillates.
    """
    size = max(abs(first), 1e-300)
    most = first + SLACK * size if state.t > PATIENCE else FAR * size
    if isfinite(f) and f <= most:
        return None
    return f"{DIVERGED}: the cost at iteration {state.t} is {f:.3g}, and was {first:.3g} at the start; {hint}"
