"""Pareto figures: exchanges against bytes, one panel per problem, the lower bound as a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.rivals.contenders import ALL
from benchmarks.rivals.page import Medians
from benchmarks.rivals.problems import DRAWN, TASKS
from fedshed._utils import figure_style as looks
from fedshed._utils.canvas import dress, legend, rendered, sheet, style, wrapped
from fedshed.experiments.provenance import Stamp, save, stamped

TICKS = (10, 30, 100, 300)
KINDS = {"up": "KB up per agent", "both": "KB both ways per agent"}


def draw(
    found: Mapping[tuple[str, str], Medians], bounds: Mapping[str, float], folder: Path, made: Stamp
) -> None:
    """Both figures."""
    for kind in KINDS:
        figure = stamped(rendered(pareto(found, bounds, kind), "svg"), made)
        save(folder / f"rivals-{kind}.svg", figure)


def pareto(found: Mapping[tuple[str, str], Medians], bounds: Mapping[str, float], kind: str) -> Figure:
    """Six problems; nearer to the corner below on the left is better."""
    with style():
        figure, axes = sheet(11.5, 3, 2, sharex=True, sharey=True)
        for ax, problem in zip(axes.flat, DRAWN, strict=True):
            _panel(ax, found, problem, kind)
            ax.axhline(bounds[problem], color="0.5", linestyle="--", linewidth=1.5, label="lower bound")
            dress(ax, "", wrapped(TASKS[problem].title, 30))
            ax.set_xscale("log")
            ax.set_xticks(TICKS, [str(tick) for tick in TICKS])
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlim(7, 900)
        for ax in axes[:, 0]:
            ax.set_ylabel(KINDS[kind])
        for ax in axes[-1]:
            ax.set_xlabel("exchanges")
        notes = [
            "Down and to the left is better. Who did not get there is not drawn; medians over the seeds."
        ]
        legend(figure, r"Exchanges and bytes until $f(\theta^t) - f^\star < 10^{-11}$", notes)
    return figure


def _panel(ax: Axes, found: Mapping[tuple[str, str], Medians], problem: str, kind: str) -> None:
    """A mark for each contender that reached the gap."""
    for one in ALL:
        cost = found.get((problem, one.name))
        if cost is not None and cost.reached:
            options = {**looks.look(one.name).line_options(), "linestyle": "none"}
            ax.plot(cost.exchanges, getattr(cost, kind), label=one.name, markersize=10, **options)
