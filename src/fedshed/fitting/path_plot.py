"""The figure of a path: coefficients over the penalty, and the deviance of rows that were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.figure_style import BLUE, GREY, PALETTE, VERMILLION
from fedshed._utils.names import printable

if TYPE_CHECKING:
    from fedshed.fitting.path_result import Path

NAMED = 10  # coefficients whose names are written, the largest ones


def draw(path: Path) -> Figure:
    """Coefficients on the left, from the largest penalty to the smallest; cross-validation on the right."""
    validated = path.minimum is not None
    with mpl.rc_context({"svg.hashsalt": "fedshed", "font.size": 9}):
        figure = Figure(figsize=(9.5 if validated else 5.5, 4.2), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, 1 + validated))
        _coefficients(axes[0], path)
        if validated:
            _validation(axes[1], path)
    return figure


def _coefficients(axes: Any, path: Path) -> None:
    """A line for each coefficient but the intercept, on the scale of the fit."""
    x = [step.penalty for step in path.steps]
    shown = [j for j, name in enumerate(path.names) if name != "intercept"]
    at = path.choice if path.minimum is not None else len(path.steps) - 1
    largest = sorted(shown, key=lambda j: -abs(path.scaled[at, j]))[:NAMED]
    axes.axhline(0, color=GREY, linewidth=0.8)
    for j in shown:
        named = j in largest and path.scaled[at, j] != 0
        color = PALETTE[largest.index(j) % len(PALETTE)] if named else "0.8"
        label = printable(path.names[j]) if named else None
        style = "--" if named and largest.index(j) >= len(PALETTE) else "-"
        axes.plot(x, path.scaled[:, j], style, color=color, linewidth=1.4, label=label, zorder=2 + named)
    _penalty_axis(axes, path)
    seen = path.scaled[: max(at, path.minimum or 0) + 1, shown]
    limit = 1.25 * max(float(np.abs(seen).max(initial=0.0)), 1e-12)
    axes.set_ylim(-limit, limit)  # beyond the choices coefficients may grow far
    axes.set_ylabel("coefficient" + " (standardised columns)" * path.study.standardize)
    if largest:
        axes.legend(fontsize=7, frameon=False, loc="best", title="largest, at the choice", title_fontsize=7)


def _validation(axes: Any, path: Path) -> None:
    """The mean deviance of a row that was left out, with one standard error, and both choices."""
    x = np.array([step.penalty for step in path.steps])
    mean = np.array([step.cv_mean for step in path.steps], dtype=float)
    error = np.array([step.cv_error for step in path.steps], dtype=float)
    axes.fill_between(x, mean - error, mean + error, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(x, mean, color=BLUE, linewidth=1.4)
    _penalty_axis(axes, path)
    axes.set_ylabel("deviance of a row left out, ± one standard error")


def _penalty_axis(axes: Any, path: Path) -> None:
    """The penalty, the largest on the left; lines at the choices, and how many coefficients are not 0."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("penalty (large to small)")
    for k, style in ((path.minimum, "-"), (path.one_se, "--")):
        if k is not None:
            step = path.steps[k]
            name = "smallest deviance" if style == "-" else "one standard error"
            axes.axvline(step.penalty, color=VERMILLION, linestyle=style, linewidth=1)
            axes.annotate(
                f"{name}: {step.nonzero}", (step.penalty, 1.0), xycoords=("data", "axes fraction"),
                fontsize=7, rotation=90, va="top", ha="right", color=VERMILLION,
            )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
