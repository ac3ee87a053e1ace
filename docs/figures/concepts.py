"""The pictures of docs/concepts.md, drawn from scikit-learn's digits; `make figures` writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedshed
from fedshed._utils.canvas import GAP, dress, legend, sheet, style
from fedshed._utils.figure_style import BLUE, GREY, ORANGE, PALETTE, look
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives

L2 = 1e-5


def spectrum(federation: fedshed.Federation) -> Any:
    """The eigenvalues of the first agent's Hessian at theta = 0, without those that are 0."""
    objective = local_objectives(federation, "logistic")[federation.sites[0]]
    values, _ = leading_eigenpairs(objective.at(np.zeros(federation.dim)).factor)
    return values[values > 1e-12 * values[0]]


def sharing(values: Any) -> Figure:
    """What the Master holds of one agent after 1, 3 and 6 rounds: the pairs sent, and rho for the rest."""
    figure, axes = sheet(3.6, 1, 3, sharey=True)
    x = np.arange(1, len(values) + 1)
    for ax, q in zip(axes[0], (1, 3, 6), strict=True):
        ax.plot(x[:q], values[:q], "o", color=BLUE, markersize=7, label="sent")
        ax.plot(x[q:], values[q:], "o", color=GREY, markerfacecolor="white", markersize=7, label="not sent")
        rest = r"$\rho$ stands for them"
        ax.hlines(values[q], q + 0.5, len(values) + 0.5, color=ORANGE, lw=3.5, label=rest)
        dress(ax, "$j$", f"{q} pair{'s' * (q > 1)} sent")
    axes[0, 0].set_ylabel(r"eigenvalue $\lambda_j$")
    legend(figure, "The eigenvalues of one agent's Hessian")
    return figure


def ratios(values: Any) -> Figure:
    """The eigenvalues of H_hat^-1 H, ridge included: 1 is Newton's step, small is slow, never above 1."""
    figure, axes = sheet(4.4)
    ax, x = axes[0, 0], np.arange(1, len(values) + 1)
    for q, color, marker in zip((1, 3, 6, 12), PALETTE, "osD^", strict=False):
        held = np.where(np.arange(len(values)) < q, values, values[min(q, len(values) - 1)])
        ratio = (values + L2) / (held + L2)
        label = f"{q} pair{'s' * (q > 1)}"
        ax.plot(x, ratio, marker + "-", markersize=7, color=color, label=label)
    dress(ax, r"direction: eigenvector $v_j$, largest $\lambda_j$ first")
    ax.set_ylabel("step / Newton's step")
    ax.set_xticks(range(1, len(values) + 1, 2))
    legend(figure, "The length of the step along each eigenvector")
    return figure


def renewals(federation: fedshed.Federation) -> Figure:
    """A run of fib-shed: the gap, and the pairs held, which start again where a Hessian is renewed."""
    _, f_star = fedshed.optimum(federation, l2=L2)
    trace = fedshed.optimize(federation, l2=L2, algorithm="fib-shed", f_star=f_star).trace
    figure, axes = sheet(5.4, 2, 1, sharex=True, height_ratios=(3, 2))
    gap, pairs = axes[:, 0]
    t, color = trace.column("iteration"), look("fib-shed").color
    gap.plot(t, np.maximum(trace.column("gap"), 1e-16), color=color, lw=2.5, label="fib-shed")
    pairs.step(t[1:], trace.column("q_max")[1:], where="mid", color=color, lw=2.5)
    dress(gap)
    gap.set_ylabel(GAP)
    dress(pairs, "iteration $t$", log=False)
    pairs.set_ylabel("pairs held")
    for row in trace:
        if row.renewed:
            for ax in (gap, pairs):
                ax.axvline(row.iteration - 0.5, color=ORANGE, lw=2, zorder=0)
    gap.plot([], [], color=ORANGE, lw=2, label="a new Hessian")
    legend(figure, "Renewals in a run of Fib-SHED")
    return figure


def drawn() -> dict[str, Figure]:
    """All three, by name."""
    federation = fedshed.datasets.load("digits", agents=20, partition="two-class")
    values = spectrum(federation)
    with style():
        return {"sharing": sharing(values), "ratios": ratios(values), "renewals": renewals(federation)}
