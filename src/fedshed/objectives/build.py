"""From the tables of a federation to its local objectives: labels coded alike at every site."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedshed.errors import ConfigError, DataError
from fedshed.names import closest
from fedshed.objectives.base import LinearModel, Rows
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic

if TYPE_CHECKING:
    from fedshed.datasets import Federation


def local_objectives(federation: Federation, loss: str, intercept: bool = False) -> dict[str, LinearModel]:
    """f^(i) of each site; an intercept is a last column of ones."""
    if loss not in LOSSES:
        raise ConfigError(f"unknown loss {loss!r}{closest(loss, LOSSES)}")
    model, code = LOSSES[loss]
    targets = code(federation)
    return {
        site: model(_with_intercept(table.X) if intercept else table.X, targets[site])
        for site, table in federation.tables.items()
    }


def _numbers(federation: Federation) -> dict[str, NDArray[np.float64]]:
    return {site: _as_float(site, table.y) for site, table in federation.tables.items()}


def _as_float(site: str, y: NDArray[Any]) -> NDArray[np.float64]:
    try:
        y = y.astype(float)
    except (TypeError, ValueError):
        raise DataError(f"site {site!r}: least squares needs a numeric target, found {y.dtype}") from None
    if not np.isfinite(y).all():
        raise DataError(f"site {site!r}: the target holds NaN or infinity; drop or fill those rows")
    return y


def _signs(federation: Federation) -> dict[str, NDArray[np.float64]]:
    """-1 and +1: exactly two values over all sites, the larger is +1; one site may hold one class."""
    classes = np.unique(np.concatenate([np.unique(table.y) for table in federation.tables.values()]))
    if len(classes) != 2:
        shown = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
        remedy = "check the target column" if len(classes) < 2 else "keep two, or code one against the rest"
        raise DataError(
            f"the logistic loss needs exactly two classes over all sites {list(federation.sites)[:5]}, "
            f"found {len(classes)} ({shown}); {remedy}"
        )
    return {site: np.where(table.y == classes[1], 1.0, -1.0) for site, table in federation.tables.items()}


def _with_intercept(X: Rows) -> Rows:
    ones = np.ones((X.shape[0], 1))
    if isinstance(X, np.ndarray):
        return np.hstack([X, ones])
    from scipy.sparse import csr_array, hstack

    return csr_array(hstack([X, ones]))


Coding = Callable[["Federation"], dict[str, NDArray[np.float64]]]
LOSSES: dict[str, tuple[type[LinearModel], Coding]] = {
    "least-squares": (LeastSquares, _numbers),
    "logistic": (Logistic, _signs),
}
