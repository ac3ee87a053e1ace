"""A forest plot: coefficients with their confidence intervals, in their own units and in standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.canvas import dress, sheet, style, wrapped
from fedshed._utils.figure_style import BLUE, GREY
from fedshed._utils.log_axis import use_log_scale
from fedshed._utils.names import printable
from fedshed.inference import Inference
from fedshed.inference.result import Robust, by_site
from fedshed.linalg.arrays import Matrix

MOST = 60  # coefficients in one figure
MOST_LABELS = 5  # on the axis of ratios
SMALLEST, LARGEST = 1e-250, 1e250  # ratios that are drawn


def draw(
    inference: Inference, title: str, level: float = 0.95, robust: Robust = False, exp: bool = False
) -> Figure:
    """One line per coefficient, without the intercepts; with `exp` the left panel shows exponentials.

    On the left the units are those of the table, in which the interval of a column of large numbers may look
    like a point; on the right every interval has the same length, so that signs and zeros can be compared.
    """
    table = inference.table(level, robust)
    names = inference.names[: inference.ratio_count if exp else None]
    shown = [j for j, name in enumerate(names) if not name.startswith("intercept")][:MOST]
    shown = shown or list(range(len(inference.names)))
    estimates, errors = table[shown][:, [0, 4, 5]], table[shown, 1:2]
    scaled = np.divide(estimates, errors, out=np.full_like(estimates, np.nan), where=errors > 0)
    clustered = " (clustered by site)" * by_site(robust)
    with style():
        figure, axes = sheet(1.7 + 0.36 * len(shown), 1, 2, sharey=True, width_ratios=(3, 2))
        left, right = axes[0]
        _intervals(left, _ratios(estimates) if exp else estimates, [inference.names[j] for j in shown], exp)
        _intervals(right, scaled, [inference.names[j] for j in shown])
        what = inference.ratio if exp else "coefficient"
        left.set_xlabel(wrapped(f"{what} and {level:.0%} confidence interval{clustered}", 26))
        right.set_xlabel("coefficient in\nstandard errors" if exp else "the same in\nstandard errors")
        figure.suptitle(printable(title) + _left_out(len(inference.names), len(shown)))
    return figure


def _intervals(axes: Any, estimates: Matrix, names: Sequence[str], ratio: bool = False) -> None:
    """A point and an interval for each row (coefficient, lower end, upper end), the first on top."""
    coef, low, high = estimates.T
    y = -np.arange(len(names))
    axes.axvline(1 if ratio else 0, color=GREY, linewidth=0.8)
    if ratio:
        use_log_scale(axes, "x", MOST_LABELS)
    axes.plot(coef, y, "o", color=BLUE, markersize=7, zorder=3)
    axes.hlines(y, low, high, color=BLUE, linewidth=2)  # not by lengths, which lose the low end of a ratio
    for ends in (low, high):
        shown = (ends > SMALLEST) & (ends < LARGEST) if ratio else np.isfinite(ends)
        axes.plot(ends[shown], y[shown], "|", color=BLUE, markersize=7, markeredgewidth=1)
    axes.set_yticks(y, [printable(name) for name in names])
    axes.set_ylim(y[-1] - 0.7, 0.7)
    dress(axes, log=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


def _ratios(estimates: Matrix) -> Matrix:
    """Exponentials; beyond what an axis can hold, an interval has no cap."""
    return np.clip(np.exp(np.clip(estimates, -700, 700)), SMALLEST, LARGEST)


def _left_out(names: int, shown: int) -> str:
    return f" (first {shown} of {names})" if shown == MOST < names else ""
