"""The figure of an evaluation: ROC curve and calibration curve, or a measure of each site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.canvas import dress, sheet, style
from fedshed._utils.figure_style import BLUE, GREY, SKY
from fedshed._utils.names import printable
from fedshed.inference.roc import Measure

if TYPE_CHECKING:
    from fedshed.inference.evaluation import Evaluation


def draw(it: Evaluation) -> Figure:
    """Two curves of two classes; of others the loss of each site with its interval."""
    with style():
        if it.roc is None:
            return _sites(it)
        figure, axes = sheet(3.6 + 0.25 * bool(it.pooled["auc"].bound), 1, 2)
        _roc(axes[0, 0], it)
        _calibration(axes[0, 1], it)
    return figure


def _roc(axes: Any, it: Evaluation) -> None:
    assert it.roc is not None
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axes.fill_between(it.roc.false_positive, it.roc.low, it.roc.high, color=SKY, alpha=0.3, linewidth=0)
    axes.plot(it.roc.false_positive, it.roc.true_positive, color=BLUE, linewidth=2)
    area = it.pooled["auc"]
    within = f"\n(error at most {area.bound:.2g})" if area.bound else ""
    title = f"ROC curve, AUC {area.value or 0:.3f}{within}"
    _square(axes, title, "false positive share", "true positive share,\n95% band")


def _calibration(axes: Any, it: Evaluation) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    x, y, low, high = (
        np.array([getattr(group, name) for group in it.calibration])
        for name in ("predicted", "observed", "low", "high")
    )
    axes.errorbar(x, y, yerr=[y - low, high - y], fmt="o", color=BLUE, markersize=6, capsize=3)
    slope = it.pooled.get("calibration_slope", Measure(None)).value
    said = "" if slope is None else f", slope {slope:.2f}"
    _square(axes, f"Calibration{said}", "predicted probability", "observed share,\n95% interval")


def _square(axes: Any, title: str, x: str, y: str) -> None:
    dress(axes, x, title, log=False)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", ylabel=y)


def _sites(it: Evaluation) -> Figure:
    """The first measure of each site and pooled, with intervals."""
    name = next(iter(it.pooled), "")
    each = {"pooled": it.pooled.get(name), **{s: one.measures.get(name) for s, one in it.sites.items()}}
    shown = {site: one for site, one in each.items() if one is not None}
    figure, grid = sheet(1.4 + 0.4 * len(shown))
    axes = grid[0, 0]
    for k, one in enumerate(shown.values()):
        value = np.nan if one.value is None else one.value
        low, high = one.interval() or (value, value)
        axes.plot([low, high], [-k, -k], color=BLUE)
        axes.plot(value, -k, "o", color=BLUE, markersize=7)
    axes.set_yticks(-np.arange(len(shown)), [printable(site) for site in shown])
    dress(axes, f"{name.replace('_', ' ')} and 95% interval", log=False)
    axes.spines["left"].set_visible(False)
    return figure
