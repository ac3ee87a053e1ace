"""The paper's figures of the theory: S*, the sets of renewals, and the bound on the slope."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from fedshed._utils import figure_style as looks
from fedshed._utils.canvas import GAP, dress, legend, sheet, wrapped
from fedshed.algorithms.renewal import fibonacci_set
from fedshed.experiments import spectra
from fedshed.experiments.curves import LINE
from fedshed.experiments.plan import Figure as Plan
from fedshed.experiments.repeats import FLOOR, Records, values


def entitle(figure: Figure, plan: Plan) -> None:
    """The title above the legend, and the notes below the panels."""
    mark = {"curves": "band", "hessian-counts": "bar"}.get(plan.kind)
    several = f"Medians over {plan.seeds} seeds, with a {mark} from the least to the most."
    notes = [several if mark and plan.seeds > 1 else "", plan.note]
    legend(figure, plan.heading, notes)


def lyapunov(plan: Plan, records: Records) -> Figure:
    """The gap of a run with periodic renewals beside the slope that Lemma 7 and Theorem 10 bound."""
    figure, grid = sheet(4.6, 1, len(plan.panels))
    for ax, panel in zip(grid[0], plan.panels, strict=True):
        (runs,) = records[panel.title]
        rate, look = spectra.lyapunov_bound(panel), looks.look(panel.runs[0].algorithm)
        t, gap = runs.first.trace.column("iteration"), values(runs.first, "gap")
        ax.plot(t, gap, markevery=0.2, label=panel.runs[0].name, **LINE, **look.line_options())
        start = min(2 * (panel.runs[0].renewal_period or 0), len(t) // 2)  # past the first renewals
        bound = gap[start] * rate ** (2 * (t[start:] - start))
        ax.plot(
            t[start:], np.maximum(bound, FLOOR), color=looks.BLACK, linestyle="--",
            linewidth=LINE["linewidth"], label=r"slope of $\bar{a}_T^{\,2}$",
        )  # fmt: skip
        dress(ax, "iterations", f"{wrapped(panel.title, 28)}\n$\\bar{{a}}_T = {rate:.4f}$")
        ax.set_ylim(bottom=max(1e-14, gap.min() / 3))
    grid[0, 0].set_ylabel(GAP)
    entitle(figure, plan)
    return figure


def renewal_sets(plan: Plan, records: Records) -> Figure:
    """The iterations at which Hessians are computed."""
    figure, grid = sheet(3.4)
    ax, last = grid[0, 0], 60
    sets = {
        "once": [1],
        "periodic,\n$T = 5$": [t for t in range(1, last + 1) if t == 1 or t % 5 == 0],
        "Fibonacci": sorted(t for t in fibonacci_set(300, last) if t <= last),
    }
    for height, (label, indices) in enumerate(reversed(sets.items())):
        ax.hlines(height, 0, last, color="0.8", linewidth=1.5)
        ax.plot(indices, [height] * len(indices), "o", color=looks.BLUE, markersize=9)
        for before, t in pairwise([0, *indices]) if "periodic" not in label else ():
            lift = -21 if before and t - before < 2 else 9  # the label of a neighbour is above
            ax.annotate(str(t), (t, height), (0, lift), textcoords="offset points", ha="center", fontsize=12)
    dress(ax, "iteration $t$", plan.heading, log=False)
    ax.grid(False)
    ax.set_yticks(range(len(sets)), list(reversed(sets)))
    ax.set_ylim(-0.5, len(sets) - 0.4)
    ax.spines["left"].set_visible(False)
    return figure


def s_star(plan: Plan, records: Records) -> Figure:
    """The convergence factor over (rho, eta), and the set on which it is least (Theorem 1)."""
    figure, grid = sheet(6.0)
    ax, q = grid[0, 0], 5
    spectrum = spectra.pooled(plan.panels[0].problem)
    top, low = spectrum[q], spectrum[-1]
    rho, eta = np.linspace(low, 1.3 * top, 240), np.linspace(0.02, 2.2, 240)
    R = np.array([[spectra.factor(spectrum, q, r, e) for r in rho] for e in eta])
    shown = ax.contourf(rho / top, eta, np.minimum(R, 1.0), levels=20, cmap="cividis", zorder=-20)
    ax.set_rasterization_zorder(-10)  # an SVG of 60,000 polygons would be large
    bar = figure.colorbar(shown, ax=ax, label=r"factor $r(\rho, \eta)$, at least 1 in yellow")
    bar.ax.tick_params(labelsize=13)
    line = np.linspace(low, top, 50)
    ax.plot(line / top, 2 * line / (top + low), color="black", linewidth=4, label=r"$\mathcal{S}^\star$")
    ax.plot(
        (top + low) / 2 / top, 1, "o", color=looks.VERMILLION, markeredgecolor="white", markersize=12,
        linestyle="none", label=r"least squares: $(\rho^\star, 1)$",
    )  # fmt: skip
    ax.plot(
        1, 1, "s", color=looks.PURPLE, markeredgecolor="white", markersize=12, linestyle="none",
        label=r"convex: $(\lambda_{q+1}, 1)$",
    )  # fmt: skip
    dress(ax, r"$\rho / \lambda_{q+1}$", log=False)
    ax.grid(False)
    ax.set_ylabel(r"$\eta$")
    entitle(figure, plan)
    return figure
