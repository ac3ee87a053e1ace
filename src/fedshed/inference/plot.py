"""A forest plot: coefficients with their confidence intervals, in their own units and in standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.figure_style import BLUE, GREY
from fedshed._utils.names import printable
from fedshed.inference import Inference
from fedshed.inference.result import Robust, by_site
from fedshed.linalg.arrays import Matrix

MOST = 60  # coefficients in one figure


def draw(inference: Inference, title: str, level: float = 0.95, robust: Robust = False) -> Figure:
    """One line a coefficient but the intercepts.

    On the left the units are the table's, in which the coefficient of a column of large numbers is but a
    point; on the right every interval has the same length, and the signs and the zeros can be read off.
    """
    table = inference.table(level, robust)
    shown = [j for j, name in enumerate(inference.names) if not name.startswith("intercept")][:MOST]
    shown = shown or list(range(len(inference.names)))
    estimates, errors = table[shown][:, [0, 4, 5]], table[shown, 1:2]
    scaled = np.divide(estimates, errors, out=np.full_like(estimates, np.nan), where=errors > 0)
    with mpl.rc_context({"svg.hashsalt": "fedshed", "font.size": 9}):
        figure = Figure(figsize=(9, 1.4 + 0.26 * len(shown)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        _intervals(left, estimates, [inference.names[j] for j in shown])
        _intervals(right, scaled, [inference.names[j] for j in shown])
        left.set_xlabel(
            f"coefficient and {level:.0%} confidence interval{' (clustered by site)' * by_site(robust)}"
        )
        right.set_xlabel("the same in standard errors")
        left.set_title(
            printable(title) + _left_out(len(inference.names), len(shown)), loc="left", fontsize=10
        )
    return figure


def _intervals(axes: Any, estimates: Matrix, names: Sequence[str]) -> None:
    """A point and an interval for each row (coefficient, lower end, upper end), the first on top."""
    coef, low, high = estimates.T
    y = -np.arange(len(names))
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.errorbar(
        coef, y, xerr=[coef - low, high - coef], fmt="o", color=BLUE, markersize=4, capsize=2, linewidth=1.4
    )
    axes.set_yticks(y, [printable(name) for name in names])
    axes.set_ylim(y[-1] - 0.7, 0.7)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _left_out(names: int, shown: int) -> str:
    return f" (first {shown} of {names})" if shown == MOST < names else ""
