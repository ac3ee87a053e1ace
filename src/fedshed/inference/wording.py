"""How numbers are written in summaries and in sentences about them."""

from __future__ import annotations


def plain(value: float | None) -> str:
    """A number with five digits, or eight where it is large; n/a where there is none."""
    return "n/a" if value is None else f"{value:.8g}" if abs(value) >= 100 else f"{value:.5g}"
