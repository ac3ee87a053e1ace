"""An evaluation as text, in the style of a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshed._utils.names import printable
from fedshed.inference.roc import Measure

if TYPE_CHECKING:
    from fedshed.inference.evaluation import Confusion, Evaluation

SHOWN = {
    "two": ("log_loss", "brier", "auc", "calibration_slope"),
    "many": ("log_loss", "brier", "accuracy"),
    "number": ("deviance", "rmse", "mae", "bias"),
}


SHORT = {"brier": "Brier", "calibration_slope": "slope", "deviance": "deviance", "bias": "mean err"}


def text(it: Evaluation) -> str:
    """Measures, then groups of the calibration curve, the confusion matrix, sites and notes."""
    parts = [f"Evaluation: {it.about} ({it.rows} rows)", _measures(it)]
    if it.calibration:
        parts.append(_calibration(it))
    if it.confusion is not None:
        at = f" at probability {it.threshold:g}" if it.kind == "two" else ""
        parts.append(_confusion(it.confusion, at))
    if len(it.sites) > 1:
        parts.append(_sites(it))
    return "\n\n".join([*parts, *it.notes])


def _measures(it: Evaluation) -> str:
    from fedshed.inference.evaluation import NAMES

    lines = [f"{'measure':<26}{'value':>10}{'std err':>10}{'95% low':>10}{'high':>10}{'error <=':>11}"]
    for name, one in it.pooled.items():
        low, high = one.interval() or (None, None)
        cells = "".join(f"{_number(x):>10}" for x in (one.value, one.std_err, low, high))
        lines.append(f"{NAMES[name]:<26}{cells}{f'{one.bound:.2g}' if one.bound else '0':>11}")
    return "\n".join(lines)


def _calibration(it: Evaluation) -> str:
    lines = [f"{'predicted':<12}{'observed':>10}{'95% low':>10}{'high':>10}{'rows':>10}"]
    for group in it.calibration:
        cells = "".join(f"{x:>10.4f}" for x in (group.observed, group.low, group.high))
        lines.append(f"{group.predicted:<12.4f}{cells}{group.weight:>10.6g}")
    return "\n".join(lines)


def _confusion(it: Confusion, at: str) -> str:
    names = [printable(name)[:12] for name in it.classes]
    wide = max(len("actual"), *map(len, names)) + 2
    head = f"{'actual':<{wide}}" + "".join(f"{name:>13}" for name in names)
    lines = [f"Predicted class{at}" + (f", each count within {it.bound:g}" if it.bound else ""), head]
    lines += [
        f"{name:<{wide}}" + "".join(f"{count:>13.6g}" for count in row)
        for name, row in zip(names, it.counts, strict=True)
    ]
    return "\n".join(lines)


def _sites(it: Evaluation) -> str:
    from fedshed.inference.evaluation import NAMES

    shown = SHOWN[it.kind]
    wide = max(len("site"), *(len(printable(site)) for site in it.sites)) + 1
    heads = [SHORT.get(name, NAMES[name]) for name in shown]
    lines = [f"{'site':<{wide}}{'rows':>6}" + "".join(f"{head:>9}{'std err':>8}" for head in heads)]
    for site, one in it.sites.items():
        cells = [one.measures.get(name, Measure(None)) for name in shown]
        row = "".join(f"{_short(cell.value):>9}{_short(cell.std_err):>8}" for cell in cells)
        lines.append(f"{printable(site):<{wide}}{one.rows:>6}{row}")
    return "\n".join(lines)


def _short(x: float | None) -> str:
    """A number that leaves room for eight of them in a line of a terminal."""
    return "" if x is None else f"{x:.4f}" if abs(x) < 100 else f"{x:.{4 if abs(x) < 1e4 else 3}g}"


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.4f}" if abs(x) < 1e4 else f"{x:.4g}"
