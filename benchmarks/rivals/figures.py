"""Pareto figures: exchanges against bytes, one panel a problem, the lower bound as a line."""

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

TICKS = (10, 20, 50, 100, 200, 500)
KINDS = {"up": "KB up per agent", "both": "KB both ways per agent"}


def draw(found: Mapping[tuple[str, str], Medians], bounds: Mapping[str, float], folder: Path) -> None:
    """Both figures."""
    for kind in KINDS:
        figure = pareto(found, bounds, kind)
        figure.savefig(folder / f"rivals-{kind}.svg", metadata={"Date": None})


def pareto(found: Mapping[tuple[str, str], Medians], bounds: Mapping[str, float], kind: str) -> Figure:
    """Six problems; nearer to the corner below on the left is better."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 3)
    for ax, problem in zip(axes.flat, DRAWN, strict=True):
        _panel(ax, found, problem, kind)
        ax.axhline(bounds[problem], color=looks.GREY, linestyle="--", linewidth=1, label="lower bound")
        ax.set(xscale="log", yscale="log", title=f"{problem}: {TASKS[problem].about}")
        ax.title.set_fontsize(9)
        ax.set_xticks(TICKS, [str(tick) for tick in TICKS])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(7, 800)
    for ax in axes[:, 0]:
        ax.set_ylabel(KINDS[kind])
    for ax in axes[-1]:
        ax.set_xlabel("exchanges")
    entries: dict[str, object] = {}
    for ax in axes.flat:
        entries.update(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _panel(ax: Axes, found: Mapping[tuple[str, str], Medians], problem: str, kind: str) -> None:
    """A mark for each contender that reached the gap."""
    for one in ALL:
        cost = found.get((problem, one.name))
        if cost is not None and cost.reached:
            options = {**looks.look(one.name).line_options(), "linestyle": "none"}
            ax.plot(cost.exchanges, getattr(cost, kind), label=one.name, markersize=7, **options)
