"""What a site says in the preparation agrees with what was asked, and with what it said before."""

from __future__ import annotations

from math import isfinite
from typing import NoReturn

import numpy as np

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Scalars
from fedshed.preparation.messages import Deviations, Ready, Schema
from fedshed.preparation.plan import DesignPlan, Label
from fedshed.preparation.study import MOST_COLUMNS, MOST_LEVELS, Study

LARGEST_LABEL = 2**53  # larger whole numbers are not all floats
MOST_BESIDE = 10  # columns that are no predictors


def of_schema(study: Study, site: str, schema: Schema) -> None:
    """Counts, columns and classes that a table can have."""
    names = [field.name for field in schema.fields]
    if schema.complete > schema.rows:
        _refuse(site, f"has {schema.complete} complete rows of {schema.rows}")
    if not names or len(set(names)) < len(names) or len(names) > MOST_COLUMNS + MOST_BESIDE:
        _refuse(site, f"describes {len(names)} columns, {len(set(names))} of them different")
    if any(len(field.levels) > MOST_LEVELS for field in schema.fields):
        _refuse(site, f"names more than {MOST_LEVELS} levels of a column")
    if not set(schema.excluded) <= set(study.exclude) or any(
        j >= len(study.positive) for j in schema.positive
    ):
        _refuse(site, "names columns or values that the study does not")
    if schema.labels and not (study.classified and _labels(schema.labels)):
        _refuse(site, "names classes that a target cannot have")


def _labels(labels: tuple[Label, ...]) -> bool:
    """Whether these are all text, all booleans, or all numbers, each once."""
    if len(labels) > MOST_LEVELS or len(set(labels)) < len(labels):
        return False
    if any(isinstance(label, str | bool) for label in labels):
        return len({type(label) for label in labels}) == 1
    return all(
        isfinite(label) and abs(label) <= LARGEST_LABEL for label in labels if not isinstance(label, str)
    )


def of_ready(plan: DesignPlan, site: str, schema: Schema, ready: Ready) -> None:
    """Rows and weight that the table has, and numbers for the columns that the design has."""
    if ready.rows != schema.complete:
        _refuse(site, f"uses {ready.rows} rows, but has said that {schema.complete} are complete")
    _check_weight(plan.study, site, ready)
    width = len(ready.names)
    if len(ready.terms) != width or any(j >= width for j in ready.constant):
        _refuse(site, f"sent {len(ready.terms)} terms of {width} columns, or constants of other columns")
    if ready.sums is not None and len(ready.sums) != width:
        _refuse(site, f"sent {len(ready.sums)} sums of {width} columns")
    _check_moments(plan, site, ready)


def _check_weight(study: Study, site: str, ready: Ready) -> None:
    """Without weights the weight is the number of rows; with trials it is whole, and one a row at least."""
    weight, rows = ready.weight, ready.rows
    if study.trials is not None:
        if weight < rows or weight != np.floor(weight):
            _refuse(site, f"has {weight:.6g} trials in {rows} rows")
    elif study.weight is None and weight != rows:
        _refuse(site, f"says that its {rows} rows weigh {weight:.6g}, but the study names no weights")


def _check_moments(plan: DesignPlan, site: str, ready: Ready) -> None:
    """Means and variances of columns that there are, each once."""
    count = len(ready.measured)
    lengths = {count if values is None else len(values) for values in (ready.means, ready.variances)}
    if (
        lengths != {count}
        or len(set(ready.measured)) < count
        or any(j >= len(plan.columns) for j in ready.measured)
        or not set(ready.different) <= set(ready.measured)
    ):
        _refuse(site, "sent means and variances of other columns, or of different lengths")
    if ready.variances is not None and ready.variances.min(initial=0.0) < 0:
        _refuse(site, "sent a variance below 0")


def of_deviations(site: str, ready: Ready, found: Deviations, width: int) -> None:
    """Sums A of x - m and B of (x - m)^2, which have A^2 <= W B (Cauchy and Schwarz)."""
    for values in (found.sums, found.squares):
        if len(values) != width:
            _refuse(site, f"sent {len(values)} sums of {width} columns")
    if not _squares(found, ready.weight):
        _refuse(site, "sent sums of squares that are too small for its sums")


def _squares(found: Deviations, weight: float) -> bool:
    with np.errstate(over="ignore"):
        roots: Scalars = np.sqrt(np.maximum(found.squares, 0.0)) * np.sqrt(weight)
    return bool((found.squares >= 0).all() and (np.abs(found.sums) <= roots * (1 + 1e-6) + 1e-150).all())


def same_table(site: str, before: Ready, now: Ready) -> None:
    """A design that is built again has the same rows, weight and columns."""
    for name in ("rows", "weight", "names", "terms", "dropped", "missing", "digest"):
        if getattr(before, name) != getattr(now, name):
            _refuse(site, f"has another table than before ({name}: {_short(getattr(now, name))})")


def _short(value: object) -> str:
    return repr(value)[:100]


def _refuse(site: str, why: str) -> NoReturn:
    raise ProtocolError(
        f"site {site!r} {why}, which is not plausible; run the same version of fedshed there, and check its "
        "table"
    )
