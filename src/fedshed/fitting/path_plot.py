"""The figure of a path: coefficients over the penalty, and the deviance of rows that were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.canvas import dress, sheet, style
from fedshed._utils.figure_style import BLUE, GREY, PALETTE, VERMILLION
from fedshed._utils.log_axis import use_log_scale
from fedshed._utils.names import printable

if TYPE_CHECKING:
    from fedshed.fitting.path_result import Path

NAMED = 10  # coefficients whose names are written, the largest ones


def draw(path: Path) -> Figure:
    """Coefficients above, from the largest penalty to the smallest; cross-validation below."""
    validated = path.minimum is not None
    with style():
        figure, axes = sheet(5.6 + 3.4 * validated, 1 + validated, 1, sharex=True)
        _coefficients(axes[0, 0], path)
        if validated:
            _validation(axes[1, 0], path)
        axes[-1, 0].set_xlabel("penalty (large to small)")
        if axes[0, 0].get_legend_handles_labels()[1]:
            figure.legend(
                title="largest coefficients, at the choice",
                loc="outside upper center",
                ncols=3,
                fontsize=11.5,
            )
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
        line = "--" if named and largest.index(j) >= len(PALETTE) else "-"
        axes.plot(x, path.scaled[:, j], line, color=color, linewidth=2, label=label, zorder=2 + named)
    _penalty_axis(axes, path)
    seen = path.scaled[: max(at, path.minimum or 0) + 1, shown]
    limit = 1.25 * max(float(np.abs(seen).max(initial=0.0)), 1e-12)
    axes.set_ylim(-limit, limit)  # beyond the choices coefficients may grow far
    axes.set_ylabel("coefficient" + "\n(standardised columns)" * path.study.standardize)


def _validation(axes: Any, path: Path) -> None:
    """The mean deviance of a row that was left out, with one standard error, and both choices."""
    x = np.array([step.penalty for step in path.steps])
    mean = np.array([step.cv_mean for step in path.steps], dtype=float)
    error = np.array([step.cv_error for step in path.steps], dtype=float)
    axes.fill_between(x, mean - error, mean + error, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(x, mean, color=BLUE, linewidth=2)
    _penalty_axis(axes, path, named=True)  # here, where no line lies below the names
    axes.set_ylabel("deviance of a row left out,\n± one standard error")


def _penalty_axis(axes: Any, path: Path, named: bool = False) -> None:
    """The penalty, the largest on the left; lines at the choices, named with their coefficients not 0."""
    dress(axes, log=False)
    use_log_scale(axes, "x")
    axes.xaxis.set_inverted(True)
    for k, line in ((path.minimum, "-"), (path.one_se, "--")):
        if k is not None:
            step = path.steps[k]
            axes.axvline(step.penalty, color=VERMILLION, linestyle=line, linewidth=1.5)
            if named:
                name = "smallest deviance" if line == "-" else "one standard error"
                axes.annotate(
                    f"{name}: {step.nonzero}", (step.penalty, 1.0), (-4, -2), fontsize=11, color=VERMILLION,
                    xycoords=("data", "axes fraction"), textcoords="offset points",
                    rotation=90, va="top", ha="right",
                )  # fmt: skip
    axes.set_axisbelow(True)
