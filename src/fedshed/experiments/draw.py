"""The paper's figures from recorded runs: one function for each kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedshed._utils import figure_style as looks
from fedshed._utils.canvas import GAP, dress, sheet, style, wrapped
from fedshed._utils.log_axis import use_log_scale
from fedshed.experiments import draw_theory
from fedshed.experiments.curves import curve_of, plot
from fedshed.experiments.draw_theory import entitle
from fedshed.experiments.plan import Figure as Plan
from fedshed.experiments.plan import Panel
from fedshed.experiments.repeats import Amount, Records, Repeats, middle
from fedshed.experiments.runs import Record

AXES = {
    "rounds": "communication rounds",
    "iteration": "iterations",
    "exchanges": "exchanges",
    "uplink_vectors": r"vectors in $\mathbb{R}^n$ per agent",
    "uplink_bytes": "bytes sent, all agents",
    "downlink_bytes": "bytes received, all agents",
    "hessians": "Hessians per agent",
}
LABELS = {"gap": GAP, "error": r"$\Vert\theta^t - \theta^\star\Vert$"}
HEIGHT = 2.8  # inches of one panel
COLUMNS = 2  # panels in a row
MARKED = 3  # renewals


def draw(plan: Plan, records: Records) -> Figure:
    """The figure of a plan."""
    with style():
        return KINDS[plan.kind](plan, records)


def curves(plan: Plan, records: Records) -> Figure:
    """Gap or error: a row for each cost axis, or rows of two problems; one look for each algorithm."""
    places = [(panel, x, limit) for x, limit in _costs(plan) for panel in plan.panels]
    rows = -(-len(places) // COLUMNS)
    figure, grid = sheet(HEIGHT * rows + 1.6, rows, COLUMNS, sharey=True)
    for ax, (panel, x, limit) in zip(grid.flat, places, strict=False):
        for k, (runs, look) in enumerate(zip(records[panel.title], _looks(panel), strict=True)):
            plot(ax, curve_of(runs.points(x, plan.y)), runs.name, look, k)
            if runs.name == panel.renewals and x == "rounds":
                _mark_renewals(ax, runs.first)
        dress(ax, AXES[x], wrapped(panel.title, 28) if x == plan.x[0] else "")
        ax.set_xlim(0, limit)
    for ax in grid.flat[len(places) :]:
        ax.set_visible(False)
    for ax in grid[:, 0]:
        ax.set_ylabel(LABELS[plan.y])
    entitle(figure, plan)
    return figure


def _mark_renewals(ax: Axes, record: Record) -> None:
    """The last three points at which a Hessian is renewed (Figure 6 of the paper)."""
    trace = record.trace
    at = np.flatnonzero(trace.column("renewed"))[-MARKED:] - 1  # a row is written after its iteration
    ax.plot(
        trace.column("rounds")[at], trace.column("gap")[at], "o", color="none", markeredgecolor="black",
        markersize=14, markeredgewidth=1.5, label="renewals", zorder=5,
    )  # fmt: skip


def _costs(plan: Plan) -> list[tuple[str, float | None]]:
    """Each axis of cost, and where it ends."""
    return [(x, plan.x_max[k] if k < len(plan.x_max) else None) for k, x in enumerate(plan.x)]


def hessian_counts(plan: Plan, records: Records) -> Figure:
    """Dots on a log axis: Hessians until the gap is small, with the least and the most over the seeds."""
    figure, grid = sheet(0.62 * len(plan.panels) + 2.2)
    ax = grid[0, 0]
    for y, panel in enumerate(reversed(plan.panels)):
        counts = [runs.amounts("hessians") for runs in records[panel.title]]
        ends = [middle(each).least for each in counts]
        ax.plot([min(ends), max(ends)], [y, y], color="0.8", linewidth=2, zorder=0)
        for run, amounts in zip(panel.runs, counts, strict=True):
            _dot(ax, y, amounts, looks.look(run.algorithm), run.name if y == 0 else None)
    dress(ax, "Hessians per agent (logarithmic)", log=False)
    use_log_scale(ax, "x")
    ends = [end for panel in plan.panels for runs in records[panel.title] for end in _extremes(runs)]
    ax.set_xlim(0.7 * min(ends), 2 * max(ends))  # room for the numbers beside the dots
    ax.set_ylim(-0.6, len(plan.panels) - 0.3)
    ax.set_yticks(range(len(plan.panels)), [panel.title for panel in reversed(plan.panels)])
    ax.grid(False, axis="y")
    entitle(figure, plan)
    return figure


def _extremes(runs: Repeats) -> tuple[float, float]:
    """The least and the most Hessians of the repeats."""
    amounts = runs.amounts("hessians")
    return min(one.least for one in amounts), max(one.least for one in amounts)


def _dot(ax: Axes, y: int, amounts: Sequence[Amount], look: looks.Look, label: str | None) -> None:
    """The median as a dot with its number, the extremes as a line; an arrow where it is not known."""
    center, options = middle(amounts), {**look.line_options(), "linestyle": "none", "markersize": 10}
    least, most = min(one.least for one in amounts), max(one.least for one in amounts)
    ax.plot([least, most], [y, y], color=look.color, linewidth=3)
    ax.plot(center.least, y, label=label, **options)
    ahead = "" if center.known else "> "
    ax.annotate(
        f"{ahead}{center.least:.0f}", (most, y), (9, 0), textcoords="offset points", va="center", fontsize=13
    )


def table(plan: Plan, records: Records) -> str:
    """Exchanges and KB up and down per agent until the gap is small, as Markdown."""
    lines = [f"# {plan.title}", "", plan.note, ""]
    lines += [
        "| |" + "|".join(panel.title for panel in plan.panels) + "|",
        "|---" * (len(plan.panels) + 1) + "|",
    ]
    for k, run in enumerate(plan.panels[0].runs):
        cells = [_cell(records[panel.title][k]) for panel in plan.panels]
        lines.append("|".join(["", run.name, *cells, ""]))
    return "\n".join(lines) + "\n"


def _cell(runs: Repeats) -> str:
    exchanges = middle(runs.amounts("exchanges"))
    if not exchanges.known:
        return f"not in {exchanges.least:.0f} exchanges"
    up, down = (
        middle(runs.amounts(f"{link}link_bytes")).least / runs.first.agents / 1000 for link in ("up", "down")
    )
    return f"{exchanges.least:.0f} / {up:.0f} + {down:.0f}"


def _looks(panel: Panel) -> list[looks.Look]:
    """Each algorithm's own look; runs of one that differ by a parameter have colours from dark to light."""
    algorithms = [run.algorithm for run in panel.runs]
    marked = [k for k, run in enumerate(panel.runs) if run.label and algorithms.count(run.algorithm) > 1]
    if len(marked) == 1:
        own = {marked[0]: looks.variant(algorithms[marked[0]])}
    else:
        colours = [
            to_hex(colormaps["plasma"](0.15 + 0.7 * i / (len(marked) - 1))) for i in range(len(marked))
        ]
        own = {k: looks.Look(colours[i], _SERIES[i % len(_SERIES)]) for i, k in enumerate(marked)}
    return [own.get(k) or looks.look(name) for k, name in enumerate(algorithms)]


_SERIES = ("o", "s", "^", "v", "D", "P")


KINDS: dict[str, Callable[[Plan, Records], Figure]] = {
    "curves": curves,
    "lyapunov": draw_theory.lyapunov,
    "hessian-counts": hessian_counts,
    "renewal-sets": draw_theory.renewal_sets,
    "s-star": draw_theory.s_star,
}
