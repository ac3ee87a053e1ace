"""From the tables of a federation to its local objectives: labels coded alike at every site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import Rows
from fedshed.linalg.tall import Tall
from fedshed.objectives.base import LinearModel
from fedshed.objectives.families import family_of
from fedshed.objectives.targets import check_offset, coded, common_classes

if TYPE_CHECKING:
    from fedshed.tables import Federation
    from fedshed.tables.stored import Table


INTERCEPT = "intercept"


def local_objectives(
    federation: Federation, loss: str, intercept: bool = False, classes: tuple[Any, ...] | None = None
) -> dict[str, LinearModel]:
    """f^(i) of each site; an intercept is a last column of ones.  Classes in another order may be given."""
    if classes is None:
        classes = common_classes(family_of(loss), [federation.tables[site].y for site in federation.sites])
    return {
        site: local_objective(site, table, loss, classes, intercept)
        for site, table in federation.tables.items()
    }


def local_objective(
    site: str, table: Table, loss: str, classes: tuple[Any, ...] | None, intercept: bool = False
) -> LinearModel:
    """f^(i) of one site, for classes that all have agreed on; rows of weight 0 are left out."""
    family = family_of(loss)
    X, y, weights, offset = table.X, coded(family, site, table.y, classes), table.weights, table.offset
    clusters = table.clusters
    if weights is not None and not weights.all():
        kept = weights > 0
        X = X.take(kept) if isinstance(X, Tall) else X[kept]
        y, weights = y[kept], weights[kept]
        offset = None if offset is None else offset[kept]
        clusters = None if clusters is None else clusters[kept]
    check_offset(family, site, offset)
    if intercept and not family.intercept:
        raise ConfigError(f"the {loss} loss has no intercept but a baseline hazard; set intercept=False")
    X = _with_intercept(X) if intercept and family.classes != "ordered" else X
    if family.classes in ("many", "ordered") and classes is not None:
        if offset is not None:
            raise ConfigError(f"the {loss} loss has no offset: one number would shift every class alike")
        return family.objective(X, y, weights, classes=len(classes))  # type: ignore[call-arg]
    objective = family.objective(X, y, weights, offset)
    objective.clusters = clusters
    return objective


def held_objective(
    site: str, table: Table, loss: str, classes: tuple[Any, ...] | None, intercept: bool, least: int = 1
) -> LinearModel:
    """The rows of a site that are predicted; each cell that leaves it has at least so many."""
    objective = local_objective(site, table, loss, classes, intercept)
    objective.held, objective.least = True, least
    return objective


def coefficient_names(columns: tuple[str, ...], intercept: bool, contrasts: int) -> tuple[str, ...]:
    """The names of theta's entries: columns, the intercept last; each contrast of the classes in turn."""
    if intercept:
        check_no_intercept(columns)
    names = (*columns, INTERCEPT) if intercept else columns
    if contrasts == 1:
        return names
    return tuple(f"{name} [contrast {k + 1}]" for k in range(contrasts) for name in names)


def threshold_count(columns: Iterable[str]) -> int:
    """How many of the coefficients are thresholds between ordered classes, which come last."""
    return sum(name.startswith("threshold [") for name in columns)


def origin(loss: str, columns: tuple[str, ...], n: int) -> Vector:
    """Where the cost is finite: 0, and for ordered classes thresholds in their order."""
    theta = np.zeros(n)
    if family_of(loss).classes == "ordered":
        count = threshold_count(columns)
        theta[n - count :] = family_of(loss).objective.null_levels(np.ones(count + 1))
    return theta


def check_no_intercept(columns: Iterable[str]) -> None:
    """Refuse a column that has the name of the model's own intercept."""
    if INTERCEPT in columns:
        raise ConfigError(
            f"a column is called {INTERCEPT!r}, as the model's own intercept is; rename the column, leave it "
            "out, or fit without an intercept (intercept = false)"
        )


def _with_intercept(X: Rows) -> Rows:
    """X with a last column of ones."""
    if isinstance(X, Tall):
        return X.with_ones()
    rows, n = X.shape
    if isinstance(X, np.ndarray):
        return np.hstack([X, np.ones((rows, 1))])
    ends = X.indptr[1:]
    data, indices = np.insert(X.data, ends, 1.0), np.insert(X.indices, ends, n)
    return type(X)((data, indices, X.indptr + np.arange(rows + 1, dtype=X.indptr.dtype)), shape=(rows, n + 1))
