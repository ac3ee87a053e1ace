"""The figure of an evaluation: ROC curve and calibration curve, or a measure of each site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedshed._utils.figure_style import BLUE, GREY, SKY
from fedshed._utils.names import printable
from fedshed.inference.roc import Measure

if TYPE_CHECKING:
    from fedshed.inference.evaluation import Evaluation


def draw(it: Evaluation) -> Figure:
    """Two curves of two classes; of others the loss of each site with its interval."""
    with mpl.rc_context({"svg.hashsalt": "fedshed", "font.size": 9}):
        if it.roc is None:
            return _sites(it)
        figure = Figure(figsize=(8, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _roc(left, it)
        _calibration(right, it)
    return figure


def _roc(axes: Any, it: Evaluation) -> None:
    assert it.roc is not None
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axes.fill_between(it.roc.false_positive, it.roc.low, it.roc.high, color=SKY, alpha=0.3, linewidth=0)
    axes.plot(it.roc.false_positive, it.roc.true_positive, color=BLUE)
    area = it.pooled["auc"]
    within = f" (error at most {area.bound:.2g})" if area.bound else ""
    axes.set_title(f"ROC curve, AUC {area.value or 0:.3f}{within}", loc="left", fontsize=10)
    _square(axes, "false positive share", "true positive share, 95% band")


def _calibration(axes: Any, it: Evaluation) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    x, y, low, high = (
        np.array([getattr(group, name) for group in it.calibration])
        for name in ("predicted", "observed", "low", "high")
    )
    axes.errorbar(x, y, yerr=[y - low, high - y], fmt="o", color=BLUE, markersize=4, capsize=2)
    slope = it.pooled.get("calibration_slope", Measure(None)).value
    said = "" if slope is None else f", slope {slope:.2f}"
    axes.set_title(f"Calibration{said}", loc="left", fontsize=10)
    _square(axes, "predicted probability", "observed share, 95% interval")


def _square(axes: Any, x: str, y: str) -> None:
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)


def _sites(it: Evaluation) -> Figure:
    """The first measure of each site and pooled, with intervals."""
    name = next(iter(it.pooled), "")
    each = {"pooled": it.pooled.get(name), **{s: one.measures.get(name) for s, one in it.sites.items()}}
    shown = {site: one for site, one in each.items() if one is not None}
    figure = Figure(figsize=(6, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for k, one in enumerate(shown.values()):
        value = np.nan if one.value is None else one.value
        low, high = one.interval() or (value, value)
        axes.plot([low, high], [-k, -k], color=BLUE)
        axes.plot(value, -k, "o", color=BLUE, markersize=4)
    axes.set_yticks(-np.arange(len(shown)), [printable(site) for site in shown])
    axes.set_xlabel(f"{name.replace('_', ' ')} and 95% interval")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure
