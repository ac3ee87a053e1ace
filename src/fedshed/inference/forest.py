"""The forest plot of a meta-analysis, as journals print it: squares by weight, diamonds for combinations."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isnan, log10
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from fedshed._utils.figure_style import BLACK, BLUE, GREY, VERMILLION
from fedshed._utils.log_axis import use_log_scale
from fedshed._utils.names import printable
from fedshed.inference.meta import Line, MetaAnalysis
from fedshed.inference.random_effects import Combined, Interval, Method
from fedshed.linalg.arrays import Matrix
from fedshed.objectives import family_of

MOST, MOST_SITES = 12, 60  # coefficients, and sites of each, in one figure
LINE = 0.24  # inches
COLOURS = {"fixed": GREY, "pooled": VERMILLION}


def draw(
    meta: MetaAnalysis, names: tuple[str, ...] | None, method: Method, interval: Interval, level: float,
    exp: bool,
) -> Figure:  # fmt: skip
    """One panel for each coefficient; numbers stand at the right, and above it how the sites differ."""
    if names is None:
        names = tuple(n for n in meta.coefficients if n != "intercept")[:MOST] or meta.coefficients
    panels = [_shown(meta.lines(name, method, interval, level)) for name in names]
    heights = [len(lines) + 2.4 for lines in panels]
    with mpl.rc_context({"svg.hashsalt": "fedshed", "font.size": 9}):
        figure = Figure(figsize=(9, 0.5 + LINE * sum(heights) + 0.45 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, name, lines in zip(axes, names, panels, strict=True):
            _panel(ax, name, lines, meta.combined(name, method, interval, level), level, exp)
        ratio = family_of(meta.inference.loss).ratio
        axes[-1].set_xlabel(f"{ratio} (logarithmic scale)" if exp else "coefficient")
        figure.suptitle(f"{printable(meta.target)}: {len(meta.sites)} sites", x=0.01, ha="left", fontsize=10)
    return figure


def _shown(lines: list[Line]) -> list[Line]:
    """All lines, or those of the sites with most weight."""
    sites = [line for line in lines if line.kind == "site"]
    heaviest = sorted(sites, key=lambda line: -line.weight)[:MOST_SITES]
    return [line for line in lines if line.kind != "site" or line in heaviest]


def _panel(ax: Any, name: str, lines: list[Line], it: Combined, level: float, exp: bool) -> None:
    value = np.exp if exp else np.asarray
    heaviest = max(line.weight for line in lines if line.kind == "site")
    for k, line in enumerate(lines):
        low, middle, high = (float(value(x)) for x in (line.low, line.estimate, line.high))
        if line.kind == "site":
            ax.plot([low, high], [-k, -k], color=BLACK, linewidth=1)
            size = 2.5 + 7 * np.sqrt(line.weight / heaviest)  # the area is proportional to the weight
            ax.plot([middle], [-k], "s", color=BLUE, markersize=size)
        elif not isnan(low):
            colour = COLOURS.get(line.kind, BLACK)
            ax.add_patch(
                Polygon([(low, -k), (middle, 0.32 - k), (high, -k), (middle, -0.32 - k)], color=colour)
            )
            ax.plot([low, high], [-k, -k], color=colour, linewidth=0.8)
    _numbers(ax, lines, value)
    sites = sum(line.kind == "site" for line in lines)
    if not isnan(it.low_new):
        ends = [float(value(it.low_new)), float(value(it.high_new))]
        ax.plot(ends, [-len(lines)] * 2, color=BLACK, linewidth=1, linestyle=":", marker="|")
    ax.axhline(0.5 - sites, color="0.8", linewidth=0.8)
    ax.axvline(1.0 if exp else 0.0, color=GREY, linewidth=0.8)
    _axes(ax, name, lines, it, level, exp)


def _axes(ax: Any, name: str, lines: list[Line], it: Combined, level: float, exp: bool) -> None:
    labels = [printable(line.name) for line in lines] + ["one more site"] * (not isnan(it.low_new))
    ax.set_yticks([-k for k in range(len(labels))], labels)
    ax.set_ylim(-len(labels) + 0.4, 0.7)
    if exp:
        use_log_scale(ax, "x", 8)
    p = "" if isnan(it.p_heterogeneity) else f", P = {it.p_heterogeneity:.2g}"
    ax.set_title(
        f"{printable(name)}   $Q$ = {it.q:.3g} ({it.df} df{p}), $I^2$ = {it.i2:.0%}, "
        f"$\\tau^2$ = {it.tau2:.3g}",
        loc="left", fontsize=9, fontweight="bold",
    )  # fmt: skip
    ax.text(1.01, 1, f"estimate [{level:.0%}], weight", transform=ax.get_yaxis_transform(), fontsize=8)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)


def _numbers(ax: Any, lines: list[Line], value: Any) -> None:
    """The estimates, their intervals and their weights, at the right of a panel, in columns."""
    table = value(np.array([(line.estimate, line.low, line.high) for line in lines]))
    columns = [_aligned(column, _format_of(table)) for column in table.T]
    for k, (line, (middle, low, high)) in enumerate(zip(lines, zip(*columns, strict=True), strict=True)):
        weight = "" if isnan(line.weight) else f"{line.weight:.1%}"
        ends = " " * (len(low) + len(high) + 4) if isnan(line.low) else f"[{low}, {high}]"
        ax.text(
            1.01, -k, f"{middle} {ends}  {weight:>6}", transform=ax.get_yaxis_transform(), va="center",
            fontsize=8, family="monospace",
        )  # fmt: skip


def _aligned(numbers: Sequence[float], kind: str) -> list[str]:
    """The numbers of a column, below each other."""
    written = ["" if isnan(x) else f"{x:{kind}}" for x in numbers]
    return [f"{text:>{max(map(len, written))}}" for text in written]


def _format_of(table: Matrix) -> str:
    """One format for a panel: three digits of its largest estimate, but two decimals at least."""
    finite = np.abs(np.where(np.isfinite(table), table, 0.0))
    power = floor(log10(finite[:, 0].max() or 1.0))
    return f".{max(2, 2 - power)}f" if power > -4 and finite.max() < 1e5 else ".2e"
