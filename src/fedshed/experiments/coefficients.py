"""A forest plot: coefficients with their confidence intervals."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedshed.experiments.style import BLUE, GREY
from fedshed.inference import Inference

MOST = 60  # coefficients in one figure


def draw(inference: Inference, title: str, level: float = 0.95, robust: bool = False) -> Figure:
    """One line a coefficient but the intercepts, in the table's own units."""
    table = inference.table(level, robust)
    shown = [j for j, name in enumerate(inference.names) if not name.startswith("intercept")][:MOST]
    shown = shown or list(range(len(inference.names)))
    coef, low, high = table[shown, 0], table[shown, 4], table[shown, 5]
    y = -np.arange(len(shown))
    with mpl.rc_context({"svg.hashsalt": "fedshed", "font.size": 9}):
        figure = Figure(figsize=(7, 1.2 + 0.26 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.errorbar(
            coef,
            y,
            xerr=[coef - low, high - coef],
            fmt="o",
            color=BLUE,
            markersize=4,
            capsize=2,
            linewidth=1.4,
        )
        axes.set_yticks(y, [inference.names[j] for j in shown])
        axes.set_ylim(y[-1] - 0.7, 0.7)
        axes.set_xlabel(f"coefficient and {level:.0%} confidence interval{' (clustered by site)' * robust}")
        axes.set_title(title + _left_out(len(inference.names), len(shown)), loc="left", fontsize=10)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
    return figure


def _left_out(names: int, shown: int) -> str:
    return f" (first {shown} of {names})" if shown == MOST < names else ""
