"""The paper's figures from recorded runs: one function for each kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedshed._utils import figure_style as looks
from fedshed.algorithms.renewal import fibonacci_set
from fedshed.experiments import spectra
from fedshed.experiments.plan import GAP_OF_A_COUNT, Panel
from fedshed.experiments.plan import Figure as Plan
from fedshed.experiments.runs import Record

Records: TypeAlias = Mapping[str, Sequence[Record]]  # by the title of the panel, in the order of its runs

AXES = {
    "rounds": "communication rounds",
    "iteration": "iterations",
    "exchanges": "exchanges",
    "uplink_vectors": "vectors in R^n sent per agent",
    "hessians": "Hessians computed per agent",
}
LABELS = {"gap": r"$f(\theta^t) - f(\theta^*)$", "error": r"$\|\theta^t - \theta^*\|$"}
WIDTH, HEIGHT = 4.6, 3.4  # inches of one panel
WIDEST = 3  # panels in a row, where rows are free


def draw(plan: Plan, records: Records) -> Figure:
    """The figure of a plan."""
    return KINDS[plan.kind](plan, records)


def curves(plan: Plan, records: Records) -> Figure:
    """Gap or error: a column for each problem, a row for each cost axis, one look for each algorithm."""
    figure, grid = _wrapped(plan) if _wraps(plan) else _grid(plan, len(plan.x), len(plan.panels))
    for column, panel in enumerate(plan.panels):
        for row, x in enumerate(plan.x):
            ax = grid.flat[column] if _wraps(plan) else grid[row, column]
            for record, look in zip(records[panel.title], _looks(panel), strict=True):
                cost, value = record.trace.column(x), values(record, plan.y)
                ax.plot(cost, value, label=record.name, markevery=0.12, **look.line_options(), **_LINE)
            _dress(ax, AXES[x], panel.title if row == 0 else "")
            ax.set_xlim(0, plan.x_max[row] if row < len(plan.x_max) else None)
    for ax in grid[:, 0]:
        ax.set_ylabel(LABELS[plan.y])
    _legend(figure, grid, plan)
    return figure


def values(record: Record, y: str) -> NDArray[np.float64]:
    """What is drawn, not below rounding."""
    column = np.array(record.errors) if y == "error" else record.trace.column(y)
    return np.maximum(column, 1e-15)


def lyapunov(plan: Plan, records: Records) -> Figure:
    """The gap of a run with periodic renewals beside the slope that Lemma 7 and Theorem 10 bound."""
    figure, grid = _grid(plan, 1, len(plan.panels))
    for ax, panel in zip(grid[0], plan.panels, strict=True):
        (record,) = records[panel.title]
        rate = spectra.lyapunov_bound(panel)
        t, gap = record.trace.column("iteration"), values(record, "gap")
        ax.plot(t, gap, label="gap", color=looks.BLUE, linewidth=1.6)
        start = min(2 * (panel.runs[0].renewal_period or 0), len(t) // 2)  # past the first renewals
        bound = gap[start] * rate ** (2 * (t[start:] - start))
        label = r"slope of $\bar a_T^{\,2}$"
        ax.plot(t[start:], np.maximum(bound, 1e-15), color=looks.VERMILLION, linestyle="--", label=label)
        _dress(ax, "iterations", f"{panel.title}: bound {rate:.4f}")
        ax.set_ylim(bottom=max(1e-14, gap.min() / 3))
    grid[0, 0].set_ylabel(LABELS["gap"])
    _legend(figure, grid, plan)
    return figure


def hessian_counts(plan: Plan, records: Records) -> Figure:
    """Bars on a log axis: Hessians until the gap is below 1e-11; open where it was not reached."""
    figure, grid = _grid(plan, 1, 1, width=2.0)
    ax, names = grid[0, 0], [run.name for run in plan.panels[0].runs]
    for k, name in enumerate(names):
        for j, panel in enumerate(plan.panels):
            record = records[panel.title][k]
            row = record.trace.first_below(GAP_OF_A_COUNT)
            count, look = (row or record.rows[-1]).hessians, looks.look(name)
            label = name if j == 0 else None
            fill = look.color if row else "white"
            ax.bar(j + 0.4 * k, count, 0.36, color=fill, edgecolor=look.color, label=label)
            text = f"{count:.0f}" if row else f">{count:.0f}"
            ax.annotate(text, (j + 0.4 * k, count), ha="center", va="bottom", fontsize=9)
    ax.set_yscale("log")
    ax.set_ylim(bottom=1)
    ax.set_ylabel("Hessians per agent")
    ticks = [panel.title.replace(", ", "\n") for panel in plan.panels]
    ax.set_xticks(np.arange(len(plan.panels)) + 0.2, ticks)
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, grid, plan)
    return figure


def pareto(plan: Plan, records: Records) -> Figure:
    """Exchanges against bytes until the gap is below 1e-11, on log axes: down and to the left is better."""
    figure, grid = _grid(plan, 2, 2)
    for ax, panel in zip(grid.flat, plan.panels, strict=True):
        missing = []
        for run, record in zip(panel.runs, records[panel.title], strict=True):
            row = record.trace.first_below(GAP_OF_A_COUNT)
            if row is None:
                missing.append(record.name)
                continue
            look = looks.look(run.algorithm)
            kb = row.uplink_bytes / record.agents / 1000
            options = {"color": look.color, "marker": look.marker, "markersize": 9, "linestyle": "none"}
            ax.plot(row.exchanges, kb, label=record.name, **options)
            ax.annotate(record.name, (row.exchanges, kb), (6, 5), textcoords="offset points", fontsize=8)
        ax.set_xscale("log")
        _dress(ax, "exchanges", panel.title)
        ax.set_ylabel("KB sent per agent")
        ax.margins(0.2)
        if missing:
            ax.annotate(
                f"not reached: {', '.join(missing)}", (0.02, 0.02), xycoords="axes fraction", fontsize=8
            )
    figure.suptitle(plan.title, fontsize=12)
    return figure


def table(plan: Plan, records: Records) -> str:
    """Exchanges and KB up and down per agent until the gap is below 1e-11, as Markdown."""
    lines = [f"# {plan.title}", "", plan.note, ""]
    lines += [
        "| |" + "|".join(panel.title for panel in plan.panels) + "|",
        "|---" * (len(plan.panels) + 1) + "|",
    ]
    for k, run in enumerate(plan.panels[0].runs):
        cells = [_cell(records[panel.title][k]) for panel in plan.panels]
        lines.append("|".join(["", run.name, *cells, ""]))
    return "\n".join(lines) + "\n"


def _cell(record: Record) -> str:
    row = record.trace.first_below(GAP_OF_A_COUNT)
    if row is None:
        return f"not in {record.rows[-1].exchanges} exchanges"
    up, down = (value / record.agents / 1000 for value in (row.uplink_bytes, row.downlink_bytes))
    return f"{row.exchanges} / {up:.0f} + {down:.0f}"


def renewal_sets(plan: Plan, records: Records) -> Figure:
    """The iterations at which Hessians are computed."""
    figure, grid = _grid(plan, 1, 1, width=1.6)
    ax, last = grid[0, 0], 60
    sets = {
        "(a) once: {1}": [1],
        "(b) periodic, T = 5": [t for t in range(1, last + 1) if t == 1 or t % 5 == 0],
        "(c) Fibonacci": sorted(t for t in fibonacci_set(300, last) if t <= last),
    }
    for height, (label, indices) in enumerate(reversed(sets.items())):
        ax.hlines(height, 0, last, color="0.8", linewidth=1)
        ax.plot(indices, [height] * len(indices), "o", color=looks.BLUE, markersize=7)
        for t in indices if "periodic" not in label else ():
            ax.annotate(str(t), (t, height), (0, 9), textcoords="offset points", ha="center", fontsize=8)
    ax.set_yticks(range(len(sets)), list(reversed(sets)))
    ax.set_ylim(-0.5, len(sets) - 0.4)
    ax.set_xlabel("iteration t")
    ax.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(f"{plan.title} ({plan.paper})", fontsize=12)
    return figure


def s_star(plan: Plan, records: Records) -> Figure:
    """The convergence factor over (rho, eta), and the set on which it is least (Theorem 1)."""
    figure, grid = _grid(plan, 1, 1, width=1.3)
    ax, q = grid[0, 0], 5
    spectrum = spectra.pooled(plan.panels[0].problem)
    top, low = spectrum[q], spectrum[-1]
    rho, eta = np.linspace(low, 1.3 * top, 240), np.linspace(0.02, 2.2, 240)
    R = np.array([[spectra.factor(spectrum, q, r, e) for r in rho] for e in eta])
    shown = ax.contourf(rho / top, eta, np.minimum(R, 1.0), levels=20, cmap="cividis", zorder=-20)
    ax.set_rasterization_zorder(-10)  # an SVG of 60,000 polygons would be large
    figure.colorbar(shown, ax=ax, label=r"factor $r(\rho, \eta)$, at least 1 in yellow")
    line = np.linspace(low, top, 50)
    ax.plot(line / top, 2 * line / (top + low), color="black", linewidth=3, label=r"$\mathcal{S}^*$")
    ax.plot((top + low) / 2 / top, 1, "o", color=looks.VERMILLION, markersize=9, label=r"LS: $(\rho^*, 1)$")
    convex = r"CVX: $(\lambda_{q+1}, 1)$"
    ax.plot(1, 1, "s", color=looks.PURPLE, markeredgecolor="white", markersize=9, label=convex)
    ax.set_xlabel(r"$\rho / \lambda_{q+1}$")
    ax.set_ylabel(r"$\eta$")
    ax.legend(loc="upper left", fontsize=9)
    figure.suptitle(f"{plan.title}\n{plan.panels[0].title} ({plan.paper})", fontsize=12)
    return figure


KINDS: dict[str, Callable[[Plan, Records], Figure]] = {
    "curves": curves,
    "lyapunov": lyapunov,
    "hessian-counts": hessian_counts,
    "pareto": pareto,
    "renewal-sets": renewal_sets,
    "s-star": s_star,
}
_LINE: dict[str, Any] = {"linewidth": 1.5, "markersize": 4.5}


def _grid(plan: Plan, rows: int, columns: int, width: float = 1.0) -> tuple[Figure, Any]:
    size = (WIDTH * columns * width, HEIGHT * rows + 1.1)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=plan.kind == "curves")


def _wraps(plan: Plan) -> bool:
    """Whether the panels need more than one row of three, which only one cost axis leaves room for."""
    return len(plan.x) == 1 and len(plan.panels) > WIDEST


def _wrapped(plan: Plan) -> tuple[Figure, Any]:
    """The panels in rows of three; what is left over of the last row stays empty."""
    figure, grid = _grid(plan, -(-len(plan.panels) // WIDEST), WIDEST)
    for ax in grid.flat[len(plan.panels) :]:
        ax.set_visible(False)
    return figure, grid


def _looks(panel: Panel) -> list[looks.Look]:
    """Each algorithm's own look; runs that only differ by a parameter differ by colour."""
    if all(run.label for run in panel.runs):
        return [looks.Look(*look) for look in _SERIES[: len(panel.runs)]]
    return [looks.look(run.algorithm + "+" * bool(run.label)) for run in panel.runs]


_SERIES = (
    (looks.BLUE, "o"), (looks.ORANGE, "s"), (looks.GREEN, "^"), (looks.PURPLE, "v"), (looks.BLACK, "D", "--"),
    (looks.VERMILLION, "P", "-."),
)  # fmt: skip


def _dress(ax: Axes, x_label: str, title: str) -> None:
    ax.set_yscale("log")
    ax.set_xlabel(x_label)
    ax.set_title(title, fontsize=10)
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, grid: Any, plan: Plan) -> None:
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, title=f"{plan.title} ({plan.paper})", title_fontsize=11, fontsize=9,
        loc="outside upper center", ncols=min(5, len(labels)), frameon=False, handlelength=3,
    )  # fmt: skip
    if plan.note:
        figure.supxlabel(plan.note, fontsize=8, color="0.35")
