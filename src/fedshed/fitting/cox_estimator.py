"""`FederatedCox`: Cox regression, stratified by site, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, validate_data

from fedshed._utils.errors import ConfigError, DataError
from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.inference.result import WeightType
from fedshed.linalg.arrays import Vector
from fedshed.objectives.concordance import pair_counts
from fedshed.objectives.families import loss_named
from fedshed.objectives.risk_sets import RiskSets
from fedshed.preparation.study import Ties
from fedshed.tables.survival import SURVIVAL, checked


class FederatedCox(FederatedModel):
    """Cox regression: hazard ratios that all sites share, and a baseline hazard of each site.

    As lifelines' `CoxPHFitter(strata=...)` and R's `coxph(... + strata(site))`, with sites as strata.

    Parameters
    ----------
    l2 : float or array
        The ridge on the mean loss, which is minus the log partial likelihood divided by the number of rows.
    ties : "efron" or "breslow"
        How events at the same time are counted.
    algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model, of which
        `intercept_` is 0: the baseline hazard takes its place.

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
        algorithm: str | Algorithm[Any] = "auto",
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
        """Fit the model of all rows; `sites` names the site of each row (None: all in one).

        y has two columns, time and event (1 or 0), or three: entry, time and event; or it is a structured
        array with the fields event and time, and perhaps entry; or it has times alone, all of them of events.
        Rows that differ in `strata` have different baseline hazards, as rows of different sites have.
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
        """The hazard of each row as a multiple of the baseline hazard of its site, exp(x'coef + offset)."""
        risk: Vector = np.exp(self._linear(X, offset))
        return risk

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, sites: Any = None,
        strata: Any = None,
    ) -> float:  # fmt: skip
        """Harrell's C: of pairs of rows, the share in which the larger hazard has its event first.

        With `sites` or `strata` the pairs are those within them.
        """
        z, records = self._linear(X, offset), with_strata(with_strata(y, strata), sites)
        check_consistent_length(z, records)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        risk = RiskSets(records, weights, True)
        concordant, discordant, tied = pair_counts(risk, z[risk.order])
        pairs = concordant + discordant + tied
        return (concordant + tied / 2) / pairs if pairs else float("nan")


def with_strata(y: Any, strata: Any) -> NDArray[Any]:
    """Responses as records, those of different strata apart."""
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
    """Responses in any of the forms that `fit` takes."""
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
        raise DataError("y must have a time, or time and event, or entry, time and event in each row")
    if not np.isfinite(columns).all():
        raise DataError("y contains NaN or infinity (inf); drop those rows")
    entry, time, event = {
        1: (None, columns[:, 0], np.ones(len(columns))), 2: (None, *columns.T), 3: tuple(columns.T)
    }[columns.shape[1]]  # fmt: skip
    kind = [("event", np.float64), ("time", np.float64)]
    raw = np.zeros(len(columns), dtype=kind if entry is None else [*kind, ("entry", np.float64)])
    raw["event"], raw["time"] = event, time
    if entry is not None:
        raw["entry"] = entry
    return checked("y", raw)
