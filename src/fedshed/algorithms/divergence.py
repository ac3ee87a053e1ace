"""When a method without a line search has left its problem for good."""

from __future__ import annotations

from math import isfinite

FAR = 100.0  # times the cost at the start: no convex method that converges passes through there


def diverged(f: float, first: float, hint: str) -> str | None:
    """Why to stop at a cost of f, if it is far above the first one; the hint says what may help."""
    if isfinite(f) and f <= FAR * max(abs(first), 1e-300):
        return None
    return f"the method diverges: the cost is {f:.3g}, and was {first:.3g} at the start; {hint}"
