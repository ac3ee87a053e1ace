"""A value against a cost, of one run or over several: the median, and a band from the least to the most."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fedshed._utils.figure_style import Look

Numbers = NDArray[np.float64]
Points = tuple[Numbers, Numbers]  # costs, and a value at each
LINE: dict[str, Any] = {"linewidth": 1.8, "markersize": 6.5}


class Curve(NamedTuple):
    """Costs and values; over several runs also the least and the largest value at each cost."""

    x: Numbers
    y: Numbers
    least: Numbers | None = None
    most: Numbers | None = None
    end: float = np.inf  # where half of the runs have ended, and the line of medians ends too


def curve_of(runs: Sequence[Points]) -> Curve:
    """The curve of one run, or the median and the extremes of several."""
    if len(runs) == 1:
        return Curve(*runs[0])
    x = np.unique(np.concatenate([cost for cost, _ in runs]))
    values = np.array([_at(x, *run) for run in runs])
    end = median(float(cost[-1]) for cost, _ in runs)
    return Curve(x, np.median(values, axis=0), values.min(axis=0), values.max(axis=0), end)


def _at(x: Numbers, cost: Numbers, value: Numbers) -> Numbers:
    """The value of a run that has spent x: that of its last iterate until then, and the first before it."""
    place = np.searchsorted(cost, x, side="right") - 1
    return value[np.maximum(place, 0)]


def plot(ax: Axes, curve: Curve, label: str, look: Look, place: int = 0) -> None:
    """Draw a curve; `place` staggers the markers, so that equal curves are seen to be two."""
    shown = curve.x <= curve.end
    marks = (0.02 * (place % 7), 0.14) if shown.sum() > 1 else None  # in screen distance
    ax.plot(curve.x[shown], curve.y[shown], label=label, markevery=marks, **LINE, **look.line_options())
    if curve.least is not None and curve.most is not None:
        ax.fill_between(curve.x, curve.least, curve.most, color=look.color, alpha=0.2, linewidth=0)
