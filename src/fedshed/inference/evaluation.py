"""The quality of a model on rows to which it was not fitted: measures with errors and bounds, and by site."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from fedshed._utils.names import printable
from fedshed._utils.notebook import html_table
from fedshed.inference.calibration import Group, calibration_groups
from fedshed.inference.roc import (
    Counts,
    Measure,
    Roc,
    above_cut,
    area,
    auc,
    counts_of,
    roc_curve,
    share,
    together,
    within,
)
from fedshed.solve.evaluating import Evaluated, Told

NAMES = {
    "log_loss": "Log loss", "brier": "Brier score", "auc": "AUC", "auc_within": "AUC within sites",
    "accuracy": "Accuracy", "sensitivity": "Sensitivity", "specificity": "Specificity",
    "calibration_in_the_large": "Calibration in the large",
    "calibration_intercept": "Joint intercept (a + b s)", "calibration_slope": "Calibration slope (b)",
    "observed_minus_expected": "Observed less expected", "deviance": "Mean deviance", "d2": "D2 (deviance)",
    "r2": "R2", "rmse": "RMSE", "mae": "MAE", "bias": "Mean error",
}  # fmt: skip
Measures = dict[str, Measure]


class Confusion(Struct, frozen=True):
    """The weight of the rows of each actual class (a row) and predicted class (a column).

    `bound` is the largest error that an entry may have because counts were merged.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[float, ...], ...]
    bound: float = 0.0


class SiteMeasures(Struct, frozen=True):
    """One site: its rows, and the measures on them."""

    rows: int
    measures: Measures


class Evaluation(Struct, frozen=True, kw_only=True):
    """The quality of a model on rows to which it was not fitted.

    `fedshed.evaluate`, a study with held-out rows and `fedshed.leave_one_site_out` return it.

    Attributes
    ----------
    about : str
        What was evaluated, in one line.
    kind : "two", "many" or "number"
        Whether the target has two classes, has several classes, or is a number.
    rows : int
        The number of rows that were predicted.
    pooled : dict
        The measures over all rows, by name. Each has a `value`, its `std_err`, and `bound`, the largest error
        that the value may have because counts were merged at a site.
    sites : dict
        The rows and measures of each site; empty if only sums over all sites are known.
    roc : Roc or None
        The ROC curve of a target with two classes.
    calibration : tuple of Group
        The groups of the calibration curve of a target with two classes.
    confusion : Confusion or None
        The confusion matrix of a target with classes.
    threshold : float
        A row is predicted to be of the modelled class if its probability is at least this.
    notes : tuple of str
        Remarks on the evaluation, in sentences.
    exchanges : int
        The number of exchanges (messages to all sites with their answers).

    Examples
    --------
    >>> import fedshed
    >>> tables = {"north": {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}}
    >>> model = fedshed.fit(tables, fedshed.Study(family="linear", target="y"))
    >>> found = fedshed.evaluate(model, {"south": {"x": [0.4, 1.2], "y": [1.2, 2.5]}})
    >>> found.rows, round(found.pooled["rmse"].value, 2)
    (2, 0.11)
    """

    about: str
    kind: Literal["two", "many", "number"]
    rows: int
    pooled: Measures
    sites: dict[str, SiteMeasures] = {}
    roc: Roc | None = None
    calibration: tuple[Group, ...] = ()
    confusion: Confusion | None = None
    threshold: float = 0.5
    notes: tuple[str, ...] = ()
    exchanges: int = 0

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return html_table(self.to_rows(), self.about, most=200)

    def summary(self) -> str:
        """The measures, the calibration, the confusion matrix and the sites as text."""
        from fedshed.inference.evaluation_text import text

        return text(self)

    def to_rows(self) -> list[dict[str, Any]]:
        """The measures as plain data: one dict per measure, over all rows and by site."""
        each = [("", self.rows, self.pooled)]
        each += [(site, one.rows, one.measures) for site, one in self.sites.items()]
        found = []
        for site, rows, measures in each:
            for name, it in measures.items():
                low, high = it.interval() or (None, None)
                found.append(
                    {"site": site, "rows": rows, "measure": name, "value": it.value, "std_err": it.std_err,
                     "low": low, "high": high, "bound": it.bound}
                )  # fmt: skip
        return found

    def to_csv(self) -> str:
        """The measures as CSV; the column `site` is empty for measures over all rows."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        rows = self.to_rows()
        writer.writerow(rows[0] if rows else ["site", "rows", "measure", "value"])
        writer.writerows(["" if x is None else x for x in row.values()] for row in rows)
        return file.getvalue()

    def plot(self) -> Any:
        """Draw the ROC curve and the calibration curve, or the first measure of each site."""
        from fedshed.inference.evaluation_plot import draw

        return draw(self)


def evaluation_of(
    told: Told, kind: Literal["two", "many", "number"], *, classes: Sequence[Any] = (), about: str = "",
    alone: bool = True, threshold: float = 0.5, exchanges: int = 0, notes: Sequence[str] = (),
) -> Evaluation:  # fmt: skip
    """Compute the measures from the answers of the sites."""
    whole = _added(told.sums)
    measures = _pooled(told, whole, kind)
    sites = {site: SiteMeasures(one.rows, _means(one, kind)) for site, one in sorted(told.sums.items())}
    roc, groups, confusion, left = None, list[Group](), None, tuple[str, ...]()
    if kind == "two":
        counts, edges = counts_of(told)
        measures |= _ranked(told, counts, edges, alone)
        sites = {site: _with_ranks(site, one, told, counts[site], edges) for site, one in sites.items()}
        roc = roc_curve(together(counts), edges)
        groups, left = calibration_groups(told)
        confusion = _two_by_two(together(counts), edges, _cut(told), classes)
    elif kind == "many":
        confusion = _of_classes(told, classes)
        hidden = [site for site, one in sorted(told.sums.items()) if one.confusion is None]
        if hidden:
            left = (
                f"Site {printable(hidden[0])!r} withholds its confusion matrix: a cell has too few rows.",
            )
    return Evaluation(
        about=about, kind=kind, rows=whole.rows, pooled=measures, sites=sites if alone else {}, roc=roc,
        calibration=tuple(groups), confusion=confusion, threshold=threshold, notes=(*notes, *left),
        exchanges=exchanges,
    )  # fmt: skip


def _added(sums: Mapping[str, Evaluated]) -> Evaluated:
    """The answers of all sites, added in the order of their names."""
    each = [sums[site] for site in sorted(sums)]

    def add(name: str) -> Any:
        return np.sum([getattr(one, name) for one in each], axis=0)

    hits = [one.hits for one in each]
    total = None if None in hits else float(sum(hit or 0.0 for hit in hits))
    rows = sum(one.rows for one in each)
    return Evaluated(rows, float(add("weight")), add("sums"), add("squares"), add("moments"), hits=total)


def _mean(it: Evaluated, k: int, factor: float = 1.0) -> Measure:
    """A mean over rows with its standard error."""
    mean = float(it.sums[k]) / it.weight
    variance = max(0.0, float(it.squares[k]) / it.weight - mean * mean)
    error = sqrt(variance / (it.rows - 1)) * factor if it.rows > 1 else None
    return Measure(mean * factor, error)


def _means(it: Evaluated, kind: str) -> Measures:
    """The measures that are means over rows."""
    if kind == "many":
        right = Measure(None) if it.hits is None else share(it.hits, it.weight, 0.0)
        return {"log_loss": _mean(it, 0), "brier": _mean(it, 1), "accuracy": right}
    if kind == "two":
        found = {"log_loss": _mean(it, 0), "brier": _mean(it, 1), "observed_minus_expected": _mean(it, 3)}
        return {**found, **_recalibration(None if it.line is None else it.line.tolist())}
    square = _mean(it, 1)
    root = sqrt(square.value or 0.0)
    error = None if square.std_err is None or root == 0 else square.std_err / (2 * root)
    return {
        "deviance": _mean(it, 0, 2.0),
        "rmse": Measure(root, error),
        "mae": _mean(it, 2),
        "bias": _mean(it, 3),
    }


def _recalibration(line: Sequence[float] | None) -> Measures:
    """Intercept and slope of the log odds on the predicted ones: 0 and 1 for a calibrated model."""
    if line is None:
        return {"calibration_intercept": Measure(None), "calibration_slope": Measure(None)}
    a, b, variance_a, _, variance_b = line
    return {
        "calibration_intercept": Measure(a, sqrt(max(0.0, variance_a))),
        "calibration_slope": Measure(b, sqrt(max(0.0, variance_b))),
    }


def _pooled(told: Told, whole: Evaluated, kind: str) -> Measures:
    """The means over all rows, with measures relative to the model without columns."""
    measures = _means(whole, kind)
    if kind == "two":
        a, variance = told.level or (None, None)
        del (
            measures["calibration_intercept"],
            measures["calibration_slope"],
        )  # they come after that in the large
        measures["calibration_in_the_large"] = Measure(a, None if variance is None else sqrt(variance))
        measures |= _recalibration(told.line)
    loss = sum(told.tables[site].loss for site in sorted(told.tables))
    squares = sum(told.tables[site].squares for site in sorted(told.tables))
    if kind == "number":
        lost = float(whole.sums[1])
        measures["r2"] = Measure(1 - lost / squares if squares > 0 else None)
    one_class = kind != "number" and (whole.moments[:2] == 0).any() if kind == "two" else False
    measures["d2"] = Measure(1 - float(whole.sums[0]) / loss if loss > 0 and not one_class else None)
    return measures


def _ranked(told: Told, counts: Mapping[str, Counts], edges: Any, alone: bool) -> Measures:
    ranked = {"auc": auc(told, counts, alone), "auc_within": within(told.tables)}
    return {**ranked, **_at_cut(together(counts), edges, _cut(told))}


def _with_ranks(site: str, one: SiteMeasures, told: Told, counts: Counts, edges: Any) -> SiteMeasures:
    """The measures of a site with its AUC, which it computed itself."""
    table = told.tables[site]
    value = table.pairs / table.products if table.products > 0 else None
    error = None if table.variance is None else sqrt(max(0.0, float(table.variance[0])))
    found = Measure(None) if value is None else area(value, error)
    ranked = {"auc": found, **_at_cut(counts, edges, _cut(told))}
    return SiteMeasures(one.rows, {**one.measures, **ranked})


def _cut(told: Told) -> float:
    assert told.grid is not None
    return told.grid[2]


def _at_cut(counts: Counts, edges: Any, cut: float) -> Measures:
    """Accuracy, sensitivity and specificity."""
    hits, alarms = above_cut(counts, edges, cut)
    ups, downs = counts.positive.total, counts.negative.total
    right = (hits.value or 0.0) + downs - (alarms.value or 0.0)
    return {
        "accuracy": share(right, ups + downs, hits.bound + alarms.bound),
        "sensitivity": share(hits.value or 0.0, ups, hits.bound),
        "specificity": share(downs - (alarms.value or 0.0), downs, alarms.bound),
    }


def _two_by_two(counts: Counts, edges: Any, cut: float, classes: Sequence[Any]) -> Confusion:
    hits, alarms = above_cut(counts, edges, cut)
    up, down = hits.value or 0.0, alarms.value or 0.0
    cells = ((counts.negative.total - down, down), (counts.positive.total - up, up))
    return Confusion(tuple(map(str, classes)), cells, max(hits.bound, alarms.bound))


def _of_classes(told: Told, classes: Sequence[Any]) -> Confusion | None:
    """The confusion matrix of several classes, if every site sends its own."""
    each = [told.sums[site].confusion for site in sorted(told.sums)]
    if any(one is None for one in each):
        return None
    cells = np.sum([one for one in each if one is not None], axis=0).reshape(len(classes), -1)
    return Confusion(tuple(map(str, classes)), tuple(map(tuple, cells.tolist())))
