"""`FederatedCox`: Cox regression, stratified by site, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, validate_data

from fedshed._utils.errors import ConfigError, DataError
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.inference.result import WeightType
from fedshed.linalg.arrays import Vector
from fedshed.objectives.concordance import pair_counts
from fedshed.objectives.families import loss_named
from fedshed.objectives.risk_sets import RiskSets
from fedshed.preparation.study import Ties
from fedshed.tables.survival import SURVIVAL, checked


class FederatedCox(FederatedModel):
    """Cox regression with common hazard ratios and a separate baseline hazard for each site.

    It is equivalent to lifelines' `CoxPHFitter(strata=...)` and R's `coxph(... + strata(site))`, with the
    sites as strata.

    Parameters
    ----------
    l2 : float or array, default 1e-4
        The ridge penalty on the mean loss, which is minus the log partial likelihood divided by the number of
        rows.
    ties : "efron" or "breslow", default "efron"
        The treatment of events at the same time.
    algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model, except
        that `intercept_` is 0, because the baseline hazard takes its place.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(90, 2)), np.repeat(["north", "south", "west"], 30)
    >>> time, event = rng.exponential(np.exp(X @ [-1.0, 0.5])), rng.random(90) < 0.8
    >>> model = fedshed.FederatedCox(l2=0.0).fit(X, np.column_stack([time, event]), sites=sites)
    >>> model.converged_, bool(model.coef_[0] > 0 > model.coef_[1])
    (True, True)
    """

    def __init__(
        self,
        l2: float | Vector = 1e-4,
        *,
        ties: Ties = "efron",
        algorithm: str | AnyAlgorithm = "auto",
        budget: Budget = None,
        tol: float = 1e-8,
        max_iter: int = 500,
        seed: int = 0,
        inference: bool | Literal["auto"] = "auto",
        weight_type: WeightType = "auto",
        protected: bool = False,
        l1: float | Vector = 0.0,
    ) -> None:
        super().__init__(
            l2, fit_intercept=False, algorithm=algorithm, budget=budget, tol=tol, max_iter=max_iter,
            seed=seed, inference=inference, weight_type=weight_type, protected=protected, l1=l1,
        )  # fmt: skip
        self.ties = ties

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags

    def fit(
        self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None, offset: Any = None,
        strata: Any = None,
    ) -> Self:  # fmt: skip
        """Fit the pooled model of all rows.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        y : array
            Two columns, time and event (1 or 0), or three columns, entry, time and event. A structured array
            with the fields event and time, and optionally entry, or an array of times, all of which are
            events, is also possible.
        sites : array, optional
            The site of each row. Default: all rows are at one site.
        sample_weight : array, optional
            The weight of each row: how often it counts, or its precision (see `weight_type`).
        offset : array, optional
            A number that is added to the linear predictor of each row. Predictions and scores then also need
            an offset.
        strata : array, optional
            Rows with different values have separate baseline hazards, like rows of different sites.

        Returns
        -------
        self
            The fitted estimator.
        """
        return super().fit(X, with_strata(y, strata), sites, sample_weight, offset)

    def _validated(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        check_consistent_length(X, y)
        return X, y

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        if self.ties not in ("efron", "breslow"):
            raise ConfigError(f"ties must be 'efron' or 'breslow', not {self.ties!r}")
        return loss_named("cox", self.ties), y

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """Predict the hazard of each row relative to the baseline hazard of its site, exp(x'coef + offset).

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        offset : array, optional
            A number that is added to the linear predictor of each row; required if the model was fitted with
            an offset.

        Returns
        -------
        array
            One relative hazard for each row.
        """
        risk: Vector = np.exp(self._linear(X, offset))
        return risk

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, sites: Any = None,
        strata: Any = None,
    ) -> float:  # fmt: skip
        """Harrell's C: the share of pairs in which the row with the larger hazard has its event first.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        y : array
            Times and events, as for `fit`.
        sample_weight : array, optional
            The weight of each row.
        offset : array, optional
            A number that is added to the linear predictor of each row; required if the model was fitted with
            an offset.
        sites, strata : array, optional
            Only rows with equal values in them are compared.

        Returns
        -------
        float
            The share, from 0 to 1, or NaN if there are no pairs.
        """
        z, records = self._linear(X, offset), with_strata(with_strata(y, strata), sites)
        check_consistent_length(z, records)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        risk = RiskSets(records, weights, True)
        concordant, discordant, tied = pair_counts(risk, z[risk.order])
        pairs = concordant + discordant + tied
        return (concordant + tied / 2) / pairs if pairs else float("nan")


def with_strata(y: Any, strata: Any) -> NDArray[Any]:
    """The responses as records, whose strata are combined with the given ones."""
    records = _records(y)
    if strata is None:
        return records
    labels = np.asarray(strata)
    check_consistent_length(records, labels)
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1)
    both = np.column_stack([records["stratum"], codes])
    records = records.copy()
    records["stratum"] = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return records


def _records(y: Any) -> NDArray[Any]:
    """The records of responses in any of the forms that `fit` takes."""
    if y is None:
        raise ValueError("FederatedCox requires y to be passed, but the target y is None")
    given = np.asarray(y)
    if given.dtype == SURVIVAL:
        return given
    if given.dtype.names is not None:
        return checked("y", given)
    if given.dtype.kind == "c":
        raise DataError("y holds complex numbers. Complex data not supported")
    try:
        numbers = given.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError("y holds times and events, which must be numbers; unknown label type") from None
    columns = numbers[:, None] if numbers.ndim == 1 else numbers
    if columns.ndim != 2 or columns.shape[1] > 3:
        raise DataError("y must have one column (time), two (time, event) or three (entry, time, event)")
    if not np.isfinite(columns).all():
        raise DataError("y contains NaN or infinity (inf); drop these rows")
    entry, time, event = {
        1: (None, columns[:, 0], np.ones(len(columns))), 2: (None, *columns.T), 3: tuple(columns.T)
    }[columns.shape[1]]  # fmt: skip
    kind = [("event", np.float64), ("time", np.float64)]
    raw = np.zeros(len(columns), dtype=kind if entry is None else [*kind, ("entry", np.float64)])
    raw["event"], raw["time"] = event, time
    if entry is not None:
        raw["entry"] = entry
    return checked("y", raw)
