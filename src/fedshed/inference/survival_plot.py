"""The figure of survival curves: steps with confidence bands, and the numbers at risk below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from fedshed._utils.canvas import dress, sheet, style
from fedshed._utils.figure_style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from fedshed._utils.names import printable
from fedshed.inference.life_curves import Curve
from fedshed.objectives.life_table import round_times

if TYPE_CHECKING:
    from fedshed.inference.survival_result import SurvivalCurves

COLOURS = (VERMILLION, BLUE, GREEN, ORANGE, PURPLE, SKY, GREY)
LINES = ("-", "--", "-.", ":")


def draw(found: SurvivalCurves, level: float = 0.95, title: str = "") -> Figure:
    """The curve of each group, with its band, marks where subjects are censored, and who is at risk."""
    heights = (8, 0.9 + 0.7 * len(found.groups))
    with style():
        figure, grid = sheet(5.0 + 0.3 * len(found.groups), 2, 1, sharex=True, height_ratios=heights)
        axes, below = grid[:, 0]
        for k, (group, curve) in enumerate(found.curves.items()):
            _curve(
                axes, printable(group), curve, COLOURS[k % len(COLOURS)], LINES[k // len(COLOURS) % 4], level
            )
        _finish(axes, found, level, title)
        _at_risk(below, found)
    return figure


def _curve(axes: Any, name: str, curve: Curve, colour: str, line: str, level: float) -> None:
    """Until nobody is at risk, or the last time."""
    last = int(np.flatnonzero(curve.at_risk > 0)[-1]) + 1 if (curve.at_risk > 0).any() else 0
    low, high = curve.band(level)
    times, S, low, high = (
        np.concatenate([[first], values])[: last + 1]
        for first, values in ((0.0, curve.times), (1.0, curve.survival), (1.0, low), (1.0, high))
    )
    band = {"step": "post", "color": colour, "alpha": 0.15, "linewidth": 0}
    axes.fill_between(times, low, high, **band)
    axes.step(times, S, where="post", color=colour, linestyle=line, label=name, linewidth=2.2)
    lost = np.flatnonzero(curve.censored[:last] > 0)
    axes.plot(curve.times[lost], curve.survival[lost], "|", color=colour, markersize=8, markeredgewidth=1)


def _finish(axes: Any, found: SurvivalCurves, level: float, title: str) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, float(found.table.times[-1]) * 1.02 or 1.0)
    axes.set_ylabel(f"survival, {level:.0%} bands")
    dress(axes, "", printable(title or f"{found.time} to {found.event}"), log=False)
    if len(found.groups) > 1:
        test = found.logrank()
        head = printable(found.by or "")
        p = f"log-rank p = {test.p:.2g}" if test.df else "log-rank: nothing to compare"
        axes.legend(title=f"{head}\n{p}", loc="upper right")
    axes.xaxis.set_major_locator(FixedLocator(round_times(float(found.table.times[-1])).tolist()))


def _at_risk(axes: Any, found: SurvivalCurves) -> None:
    """The numbers at risk at the ticks of the time, one line a group."""
    low, high = axes.get_xlim()
    ticks = [t for t in axes.get_xticks() if low <= t <= high]
    for k, (group, curve) in enumerate(found.curves.items()):
        for t in ticks:
            axes.text(t, -k, f"{at_risk(found, curve, k, t):,}", ha="center", va="center", fontsize=12)
        axes.text(
            -0.06, -k, printable(group)[:18], ha="right", va="center", fontsize=12,
            color=COLOURS[k % len(COLOURS)], transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_ylim(-len(found.groups) + 0.4, 1.3)
    axes.text(low, 0.95, "number at risk", fontsize=12, color=GREY, va="center")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelsize=13)
    axes.set_xlabel(printable(found.time))


def at_risk(found: SurvivalCurves, curve: Curve, group: int, t: float) -> int:
    """How many are at risk at a time: of a cell that it lies within, at its beginning."""
    k = int(np.searchsorted(curve.times, t))
    return round(float(curve.at_risk[k])) if k < len(curve.times) else round(float(found.table.beyond[group]))
