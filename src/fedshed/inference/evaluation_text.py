"""An evaluation as text, in the style of a summary."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from fedshed._utils.names import printable
from fedshed._utils.text_table import TERMINAL, table_lines
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
    parts = [fill(f"Evaluation: {it.about} ({it.rows} rows)", TERMINAL), _measures(it)]
    if it.calibration:
        parts.append(_calibration(it))
    if it.confusion is not None:
        at = f" at probability {it.threshold:g}" if it.kind == "two" else ""
        parts.append(_confusion(it.confusion, at))
    if len(it.sites) > 1:
        parts.append(_sites(it))
    return "\n\n".join([*parts, *(fill(printable(note), TERMINAL) for note in it.notes)])


def _measures(it: Evaluation) -> str:
    from fedshed.inference.evaluation import NAMES

    rows = [["measure", "value", "std err", "95% low", "high", "error <="]]
    for name, one in it.pooled.items():
        low, high = one.interval() or (None, None)
        numbers = [_number(x) for x in (one.value, one.std_err, low, high)]
        rows.append([NAMES[name], *numbers, f"{one.bound:.2g}" if one.bound else "0"])
    return "\n".join(table_lines(rows, 26, [10, 10, 10, 10, 11]))


def _calibration(it: Evaluation) -> str:
    lines = [f"{'predicted':<12}{'observed':>10}{'95% low':>10}{'high':>10}{'rows':>10}"]
    for group in it.calibration:
        cells = "".join(f"{x:>10.4f}" for x in (group.observed, group.low, group.high))
        lines.append(f"{group.predicted:<12.4f}{cells}{group.weight:>10.6g}")
    return "\n".join(lines)


def _confusion(it: Confusion, at: str) -> str:
    names = [printable(name)[:12] for name in it.classes]
    first = f"Predicted class{at}" + (f", each count within {it.bound:g}" if it.bound else "")
    counts = [[f"{count:.6g}" for count in row] for row in it.counts]
    rows = [["actual", *names], *([name, *row] for name, row in zip(names, counts, strict=True))]
    return "\n".join([first, *table_lines(rows, max(map(len, ("actual", *names))) + 2, [13] * len(names))])


def _sites(it: Evaluation) -> str:
    from fedshed.inference.evaluation import NAMES

    shown = SHOWN[it.kind]
    heads = [head for name in shown for head in (SHORT.get(name, NAMES[name]), "std err")]
    rows = [["site", "rows", *heads]]
    for site, one in it.sites.items():
        found = [one.measures.get(name, Measure(None)) for name in shown]
        cells = [_short(number) for each in found for number in (each.value, each.std_err)]
        rows.append([printable(site), str(one.rows), *cells])
    return "\n".join(table_lines(rows, 5, [7, *[9, 8] * len(shown)]))


def _short(x: float | None) -> str:
    """A number that leaves room for eight of them in a line of a terminal."""
    return "" if x is None else _decimals(x) if abs(x) < 100 else f"{x:.{4 if abs(x) < 1e4 else 3}g}"


def _number(x: float | None) -> str:
    return "" if x is None else _decimals(x) if abs(x) < 1e4 else f"{x:.4g}"


def _decimals(x: float) -> str:
    """Four decimals, and 0.0000 also for what is negative and rounds to 0."""
    return f"{x:z.4f}"
