"""From the tables of a federation to its local objectives: labels coded alike at every site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.linalg.rows import Rows
from fedshed.linalg.tall import Tall
from fedshed.objectives.base import LinearModel
from fedshed.objectives.counts import Gamma, Poisson
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial
from fedshed.objectives.targets import check_offset, coded, common_classes

if TYPE_CHECKING:
    from fedshed.tables import Federation
    from fedshed.tables.stored import Table

LOSSES: dict[str, type[LinearModel]] = {
    "least-squares": LeastSquares,
    "logistic": Logistic,
    "poisson": Poisson,
    "gamma": Gamma,
    "multinomial": Multinomial,
}


def local_objectives(federation: Federation, loss: str, intercept: bool = False) -> dict[str, LinearModel]:
    """f^(i) of each site; an intercept is a last column of ones."""
    if loss not in LOSSES:
        raise ConfigError(f"unknown loss {loss!r}{closest(loss, LOSSES)}")
    classes = common_classes(loss, [federation.tables[site].y for site in federation.sites])
    return {
        site: local_objective(site, table, loss, classes, intercept)
        for site, table in federation.tables.items()
    }


def local_objective(
    site: str, table: Table, loss: str, classes: tuple[Any, ...] | None, intercept: bool = False
) -> LinearModel:
    """f^(i) of one site, for classes that all have agreed on; rows of weight 0 are left out."""
    X, y, weights, offset = table.X, coded(loss, site, table.y, classes), table.weights, table.offset
    if weights is not None and not weights.all():
        kept = weights > 0
        X = X.take(kept) if isinstance(X, Tall) else X[kept]
        y, weights = y[kept], weights[kept]
        offset = None if offset is None else offset[kept]
    check_offset(loss, site, offset)
    X = _with_intercept(X) if intercept else X
    if loss == "multinomial" and classes is not None:
        if offset is not None:
            raise ConfigError("the multinomial loss has no offset: one number would shift every class alike")
        return Multinomial(X, y, weights, classes=len(classes))
    return LOSSES[loss](X, y, weights, offset)


def coefficient_names(columns: tuple[str, ...], intercept: bool, contrasts: int) -> tuple[str, ...]:
    """The names of theta's entries: columns, the intercept last; each contrast of the classes in turn."""
    names = (*columns, "intercept") if intercept else columns
    if contrasts == 1:
        return names
    return tuple(f"{name} [contrast {k + 1}]" for k in range(contrasts) for name in names)


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
