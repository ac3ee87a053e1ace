"""Ticks of logarithmic axes, the same in every figure: few, and with labels that can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, LogLocator, NullLocator

MOST = 6  # labels on an axis
_FEWEST = 3
_LETTERS = 4  # of a label, for which there is room if there are as many as allowed
_PLAIN = (1e-3, 1e5)  # beyond, all labels of an axis are powers of ten


def use_log_scale(ax: Axes, which: str, most: int = MOST) -> None:
    """Make the x or y axis logarithmic, with at most so many labels."""
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(_Ticks(most))
    axis.set_major_formatter(_Labels())
    axis.set_minor_locator(NullLocator())


def ticks(low: float, high: float, most: int = MOST) -> list[float]:
    """Where the labels stand between two positive numbers.

    1, 2, 5, 10, ... or 1, 3, 10, ... over short ranges, powers of ten over long ones, every second, third,
    fifth, ... power over still longer ones; round numbers at equal distances over very short ranges.
    """
    left, right = log10(low), log10(high)
    digits = [(1, 2, 5), (1, 3), (1,)]
    for some in digits if _plain((low, high)) else digits[::-1]:
        found = list(_multiples(some, low, high)) if right - left < 2 * most else []
        if _FEWEST <= len(found) <= most:
            return found
    if right - left < 1:
        return _equally_spaced(low, high, most)
    room = most - 2 * (max(-left, right) >= 100)  # exponents of three digits are wide
    step = next(each for each in _steps() if floor(right / each) - ceil(left / each) < room)
    return [10.0 ** (k * step) for k in range(ceil(left / step), floor(right / step) + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """Numbers as they stand on a logarithmic axis: all of them plain, or all of them powers of ten."""
    return [f"{value:.10g}" if _plain(values) else _as_power(value) for value in values]


def _plain(values: Sequence[float]) -> bool:
    return all(0.999 * _PLAIN[0] <= value <= 1.001 * _PLAIN[1] for value in values)


def _as_power(value: float) -> str:
    factor, _, power = f"{value:.3e}".partition("e")
    times = "" if float(factor) == 1 else rf"{float(factor):g} \times "
    return f"${times}10^{{{int(power)}}}$"


def _multiples(digits: Sequence[int], low: float, high: float) -> Iterator[float]:
    """The digits times the powers of ten, between two numbers."""
    for power in range(floor(log10(low)), floor(log10(high)) + 1):
        yield from (value for digit in digits if low <= (value := float(f"{digit}e{power}")) <= high)


def _steps() -> Iterator[int]:
    """1, 2, 3, 5, 10, ...: how many powers of ten lie between two labels."""
    scale = 1
    while True:
        yield from (scale, 2 * scale, 3 * scale, 5 * scale)
        scale *= 10


def _equally_spaced(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, fewer of them if their labels are long."""
    power = floor(log10((high - low) / most))
    for step in (float(f"{digit}e{power + k}") for k in range(3) for digit in (1, 2, 5)):
        multiples = range(ceil(low / step), floor(high / step) + 1)
        found = [float(f"{k * step:.12g}") for k in multiples]
        if len(found) <= most and _letters(found) <= _LETTERS * most:
            break
    return found


def _letters(values: Sequence[float]) -> int:
    return sum(map(len, labels(values))) if _plain(values) else 5 * len(values)


class _Ticks(LogLocator):
    """`ticks` as matplotlib asks for them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """The ticks between two ends, in either order."""
        return np.array(ticks(min(vmin, vmax), max(vmin, vmax), self._most))


class _Labels(Formatter):
    """`labels` as matplotlib asks for them."""

    def format_ticks(self, values: Any) -> list[str]:
        """The labels of all ticks."""
        return labels(values)

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of one tick alone."""
        return labels([x])[0]
