"""Builds the local objectives from the tables of a federation, with labels coded alike at every site."""

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
    """The local cost f^(i) of each site of a federation.

    Parameters
    ----------
    federation : Federation
        The tables of all sites.
    loss : str
        The name of the loss.
    intercept : bool, default False
        Whether a last column of ones is added.
    classes : tuple, optional
        The classes in an order of your choice. Default: sorted.

    Returns
    -------
    dict of LinearModel
        The cost of each site, by its name.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> from fedshed.objectives import local_objectives
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> costs = local_objectives(federation, "logistic")
    >>> round(costs[federation.sites[0]].at(np.zeros(federation.dim)).value, 4)
    0.6931
    """
    if classes is None:
        classes = common_classes(family_of(loss), [federation.tables[site].y for site in federation.sites])
    return {
        site: local_objective(site, table, loss, classes, intercept)
        for site, table in federation.tables.items()
    }


def local_objective(
    site: str, table: Table, loss: str, classes: tuple[Any, ...] | None, intercept: bool = False
) -> LinearModel:
    """The local cost f^(i) of one site; rows of weight 0 are left out.

    Parameters
    ----------
    site : str
        The name of the site, for error messages.
    table : Table
        Its rows.
    loss : str
        The name of the loss.
    classes : tuple or None
        The classes that all sites have agreed on; None for a loss without classes.
    intercept : bool, default False
        Whether a last column of ones is added.

    Returns
    -------
    LinearModel
        The cost.

    Raises
    ------
    DataError
        If the target or the offset does not suit the loss.
    ConfigError
        If the loss has no intercept or no offset and one is given.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.objectives import local_objective
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> site = federation.sites[0]
    >>> local_objective(site, federation.tables[site], "logistic", (-1, 1), intercept=True).dim
    65
    """
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
        raise ConfigError(
            f"the {loss} loss has a baseline hazard in place of an intercept; set intercept=False"
        )
    X = _with_intercept(X) if intercept and family.classes != "ordered" else X
    if family.classes in ("many", "ordered") and classes is not None:
        if offset is not None:
            raise ConfigError(
                f"the {loss} loss has no offset, which would shift every class alike; leave the offset out"
            )
        return family.objective(X, y, weights, classes=len(classes))  # type: ignore[call-arg]
    objective = family.objective(X, y, weights, offset)
    objective.clusters = clusters
    return objective


def held_objective(
    site: str, table: Table, loss: str, classes: tuple[Any, ...] | None, intercept: bool, least: int = 1
) -> LinearModel:
    """The rows of a site that are predicted; each cell that leaves it has at least `least` rows."""
    objective = local_objective(site, table, loss, classes, intercept)
    objective.held, objective.least = True, least
    return objective


def coefficient_names(columns: tuple[str, ...], intercept: bool, contrasts: int) -> tuple[str, ...]:
    """The names of the entries of theta.

    Parameters
    ----------
    columns : tuple of str
        The columns of the design.
    intercept : bool
        Whether the model has an intercept, which comes last.
    contrasts : int
        The number of linear predictors: K - 1 for K classes, otherwise 1.

    Returns
    -------
    tuple of str
        One name per coefficient, contrast by contrast.

    Raises
    ------
    ConfigError
        If a column is called "intercept" and the model has an intercept.

    Examples
    --------
    >>> from fedshed.objectives import coefficient_names
    >>> coefficient_names(("age", "sex"), intercept=True, contrasts=1)
    ('age', 'sex', 'intercept')
    """
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
    """Refuse a column that is called like the intercept of the model."""
    if INTERCEPT in columns:
        raise ConfigError(
            f"a column is called {INTERCEPT!r}, which is the name of the model's intercept; rename it, leave "
            "it out, or fit without an intercept (intercept = false)"
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
