"""The pictures of docs/concepts.md, drawn from scikit-learn's digits: python docs/figures/concepts.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedshed
from fedshed._utils.figure_style import BLUE, GREY, ORANGE, PALETTE
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives

HERE, L2 = Path(__file__).parent, 1e-5
STYLE: dict[str, Any] = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "svg.hashsalt": "concepts", "svg.fonttype": "none", "font.family": "sans-serif",
}  # fmt: skip


def spectrum(federation: fedshed.Federation) -> Any:
    """The eigenvalues of the first agent's Hessian at theta = 0, without those that are 0."""
    objective = local_objectives(federation, "logistic")[federation.sites[0]]
    values, _ = leading_eigenpairs(objective.at(np.zeros(federation.dim)).factor)
    return values[values > 1e-12 * values[0]]


def sharing(values: Any) -> Figure:
    """What the Master holds of one agent after 1, 3 and 6 rounds: the pairs sent, and rho for the rest."""
    figure = Figure(figsize=(9, 2.7), layout="constrained")
    for ax, q in zip(figure.subplots(1, 3, sharey=True), (1, 3, 6), strict=True):
        x = np.arange(1, len(values) + 1)
        ax.bar(x[:q], values[:q], color=BLUE, label="sent")
        ax.bar(x[q:], values[q:], color="white", edgecolor=GREY, label="not sent")
        ax.hlines(values[q], q + 0.5, len(values) + 0.5, color=ORANGE, lw=2.5, label="rho stands for them")
        ax.set(yscale="log", xlabel="number, the largest first", title=f"{q} pair{'s' * (q > 1)} sent")
    figure.axes[-1].legend(frameon=False, fontsize=9, loc="upper right")
    figure.axes[0].set_ylabel("eigenvalue")
    return figure


def ratios(values: Any) -> Figure:
    """The eigenvalues of H_hat^-1 H, ridge included: 1 is Newton's step, small is slow, never above 1."""
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    ax: Axes = figure.subplots()
    for q, color in zip((1, 3, 6, 12), PALETTE, strict=False):
        held = np.where(np.arange(len(values)) < q, values, values[min(q, len(values) - 1)])
        ratio = (values + L2) / (held + L2)
        ax.plot(
            np.arange(1, len(values) + 1), ratio, "o-", ms=4, color=color, label=f"{q} pair{'s' * (q > 1)}"
        )
    ax.set(yscale="log", xlabel="direction: eigenvector of H, largest first", ylabel="step / Newton's step")
    ax.set_xticks(range(1, len(values) + 1, 2))
    ax.legend(frameon=False, ncols=4, loc="lower left")
    return figure


def renewals(federation: fedshed.Federation) -> Figure:
    """A run of fib-shed: the gap, and the pairs held, which start again where a Hessian is renewed."""
    _, f_star = fedshed.optimum(federation, l2=L2)
    trace = fedshed.optimize(federation, l2=L2, algorithm="fib-shed", f_star=f_star).trace
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    gap, pairs = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    t = trace.column("iteration")
    gap.semilogy(t, np.maximum(trace.column("gap"), 1e-16), color=BLUE)
    gap.set(ylabel="f - f*")
    pairs.step(t[1:], trace.column("q_max")[1:], where="mid", color=BLUE)
    pairs.set(xlabel="iteration", ylabel="pairs held")
    for row in trace:
        if row.renewed:
            for ax in (gap, pairs):
                ax.axvline(row.iteration - 0.5, color=ORANGE, lw=1.2, zorder=0)
    gap.plot([], [], color=ORANGE, label="a new Hessian")
    gap.legend(frameon=False)
    return figure


def main() -> None:
    """Draw all three."""
    federation = fedshed.datasets.load("digits", agents=20, partition="two-class")
    values = spectrum(federation)
    drawn = {"sharing": sharing(values), "ratios": ratios(values), "renewals": renewals(federation)}
    for name, figure in drawn.items():
        figure.savefig(HERE / f"concept-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        main()
