"""The base of the estimators: their parameters, the fit, the summary and the linear predictor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.costs import HERE
from fedshed.exchange.sites import LocalSites, Sites
from fedshed.fitting import estimator_files as saved
from fedshed.fitting.fit_problem import Fitted, fit_problem
from fedshed.fitting.protected_study import fit_problem_protected
from fedshed.fitting.searched import fit_searched, with_linear_intercepts
from fedshed.inference import Inference, Summary
from fedshed.inference.classes import coded_as
from fedshed.inference.result import Distribution, WeightType
from fedshed.inference.wording import which_weights
from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import varying_columns
from fedshed.linalg.tall import Tall
from fedshed.objectives.base import LinearModel
from fedshed.objectives.families import at_sites, family_of, with_value
from fedshed.preparation.combinations import check_spread
from fedshed.preparation.study import Study
from fedshed.protocol.conversation import Problem
from fedshed.solve import validation as checks
from fedshed.solve.optimize import build_problem
from fedshed.solve.run import Result
from fedshed.solve.separation import WITH_FIRTH
from fedshed.tables import Federation
from fedshed.tables.lazy import ArrowRows, arrow_table, is_arrow, is_large

DEFAULT_L2 = 1e-4
MOST_COEFFICIENTS = 1000  # inference="auto" asks for exact curvature (n^2 / 2 numbers per site) up to this


class FederatedModel(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: the parameters, the fit and the linear predictor."""

    firth: bool = False  # for an estimator without this parameter
    _unclear_weights: str = ""  # the question for the type of the weights, if there is one
    random_intercept: bool = False

    def __init__(
        self,
        l2: float | Vector = DEFAULT_L2,
        *,
        fit_intercept: bool = True,
        algorithm: str | AnyAlgorithm = "auto",
        budget: Budget = None,
        tol: float = 1e-8,
        max_iter: int = 500,
        seed: int = 0,
        inference: bool | Literal["auto"] = "auto",
        weight_type: WeightType = "auto",
        protected: bool = False,
        l1: float | Vector = 0.0,
        random_intercept: bool = False,
        firth: bool = False,
    ) -> None:
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.algorithm = algorithm
        self.budget = budget
        self.tol = tol
        self.max_iter = max_iter
        self.seed = seed
        self.inference = inference
        self.weight_type = weight_type
        self.protected = protected
        self.l1 = l1
        self.random_intercept = random_intercept
        self.firth = firth

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit the pooled model of all rows.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        y : array
            The target of each row.
        sites : array, optional
            The site of each row. Default: all rows are at one site.
        sample_weight : array, optional
            The weight of each row: how often it counts, or its precision (see `weight_type`).
        offset : array, optional
            A number that is added to the linear predictor of each row. Predictions and scores then also need
            an offset.

        Returns
        -------
        self
            The fitted estimator.
        """
        X, y = self._validated(X, y)
        loss, y = self._target(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        names = getattr(self, "feature_names_in_", None)
        federation = Federation.from_arrays(
            X, y, sites, sample_weight=sample_weight, offset=offset, columns=names, name=type(self).__name__
        )
        fitted = self._fitted(federation, loss)
        self.has_offset_ = offset is not None
        self.result_: Result = fitted.result
        self.n_iter_ = len(self.result_.trace) - 1
        self._keep(self.result_.theta)
        self.inference_ = None if fitted.inference is None else self._named(fitted.inference)
        self.reason_ = self.result_.reason
        self.converged_ = self.result_.converged
        if not self.converged_:
            warnings.warn(f"{type(self).__name__}: {self.reason_}", ConvergenceWarning, stacklevel=2)
        return self

    def summary(
        self, *, robust: bool = False, level: float = 0.95, exp: bool = False,
        distribution: Distribution = "auto", reference_class: Any = None, sum_to_zero: bool = False,
    ) -> Summary:  # fmt: skip
        """The coefficients with their standard errors, the measures of fit, and the table of sites.

        Parameters
        ----------
        robust : bool, default False
            Whether standard errors are clustered by site.
        level : float, default 0.95
            The level of the confidence intervals.
        exp : bool, default False
            Whether to show exponentials of the coefficients, such as odds ratios.
        distribution : "auto" or "normal", default "auto"
            The reference distribution: "auto" is Student's t if the dispersion is estimated, otherwise the
            normal distribution; "normal" is always the normal distribution.
        reference_class : class, optional
            The class of a multinomial model with which the coefficients compare the others. Default: the
            first class.
        sum_to_zero : bool, default False
            Whether the coefficients of a multinomial model sum to 0 over the classes, as `coef_` does.

        Returns
        -------
        Summary
            The summary; `print` shows it as text.

        Raises
        ------
        ConfigError
            If the estimator was fitted without inference.
        """
        check_is_fitted(self)
        if self.inference_ is None:
            raise ConfigError(
                self._unclear_weights
                or f"this {type(self).__name__} was fitted without inference; set inference=True and fit "
                "again"
            )
        notes = () if self.converged_ else (f"NOT CONVERGED: {self.reason_}",)
        return Summary(
            coded_as(self.inference_, reference_class, sum_to_zero), title=type(self).__name__, robust=robust,
            level=level, exp=exp, distribution=distribution, converged=self.converged_, notes=notes,
            about=self._about(),
        )  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator as JSON; `fedshed.estimators.load` reads it.

        Parameters
        ----------
        path : path
            The file; an existing file is replaced.

        Returns
        -------
        Path
            The file that was written.
        """
        check_is_fitted(self)
        return write_atomically(path, saved.encode(self))

    def _fitted(self, federation: Federation, loss: str) -> Fitted:
        """The run and the inference of the fit."""
        ridge = self._ridge(loss)
        searched = self._searched(loss, ridge)
        check_spread(bool(self.random_intercept), len(federation.sites))
        loss = at_sites(loss, bool(self.random_intercept))
        first = with_value(loss, 0.0) if searched else loss
        objectives, problem = build_problem(federation, first, ridge, self.fit_intercept, l1=self.l1)
        goal = checks.goal(self.tol, self.max_iter, None, None, 1, 20, len(federation.sites))
        chosen, why = checks.choose_algorithm(
            self.algorithm, self.budget, None, self.seed, problem, network=HERE, firth=self.firth,
            protected=bool(self.protected), entries=checks.stored_entries(objectives),
        )  # fmt: skip
        checks.unique_optimum(objectives, problem.penalised, problem.columns)
        asked = problem.n <= MOST_COEFFICIENTS if self.inference == "auto" else bool(self.inference)
        asked = asked and not self._asks_for_weight_type(objectives, loss)
        settings: dict[str, Any] = {
            "why": why, "intercept": self.fit_intercept, "weight_type": self.weight_type, "inference": asked,
        }  # fmt: skip
        if self.protected:
            return fit_problem_protected(problem, objectives, chosen, goal, **settings)
        if not searched:
            fitted = fit_problem(problem, chosen, LocalSites(objectives), goal, **settings)
            if not self.random_intercept:
                return fitted
            varying = np.logical_or.reduce([varying_columns(each.X) for each in objectives.values()])
            return with_linear_intercepts(fitted, problem, LocalSites(objectives), goal, varying)

        def at(value: float) -> tuple[Problem, Sites]:
            own, there = build_problem(
                federation, with_value(loss, value), ridge, self.fit_intercept, l1=self.l1
            )
            return there, LocalSites(own)

        return fit_searched(at, loss, chosen, goal, **settings)

    def _asks_for_weight_type(self, objectives: Mapping[str, LinearModel], loss: str) -> bool:
        """Whether statistics wait for the type of whole-number weights; an error if the fit needs it."""
        kinds = {objective.weighing for objective in objectives.values()}
        self._unclear_weights = ""
        counts = "counts" in kinds and "fractions" not in kinds
        if self.weight_type == "auto" and counts and not family_of(loss).survival:
            rows = sum(len(objective.y) for objective in objectives.values())
            weight = sum(objective.weight for objective in objectives.values())
            self._unclear_weights = which_weights("sample_weight", rows, weight)
            if self.inference is True or self.random_intercept:
                raise ConfigError(self._unclear_weights)
        return bool(self._unclear_weights)

    def _searched(self, loss: str, ridge: float | Vector) -> bool:
        """Whether the family has a parameter to be estimated; ConfigError if that is not possible."""
        if not self.random_intercept and family_of(loss).parameter is None:
            return False
        study = Study(
            family=loss, target="y", l2=float(np.max(ridge, initial=0.0)), protected=bool(self.protected),
            intercept=bool(self.fit_intercept), random_intercept=bool(self.random_intercept),
            l1=float(np.any(np.asarray(self.l1) != 0)),
        )  # fmt: skip
        return study.searched

    def _ridge(self, loss: str) -> float | Vector:
        """The ridge: l2, or 0 with Firth's penalty and, by default, with REML."""
        default = not np.ndim(self.l2) and self.l2 == DEFAULT_L2
        if not self.firth:
            linear = bool(self.random_intercept) and family_of(loss).quadratic
            return 0.0 if linear and default else self.l2
        allowed = self.algorithm in ("auto", "newton") and not self.random_intercept
        if loss not in WITH_FIRTH or not allowed:
            raise ConfigError(
                "Firth's penalty needs a logistic regression of two classes, algorithm 'auto' or 'newton', "
                "and no random intercept; leave out firth"
            )
        if np.ndim(self.l2) or float(np.asarray(self.l2)) not in (0.0, DEFAULT_L2):
            raise ConfigError("give firth or l2, not both, because each is a penalty")
        if np.any(np.asarray(self.l1) != 0):
            raise ConfigError("give firth or l1, not both, because each is a penalty")
        return 0.0

    def _about(self) -> tuple[str, ...]:
        """Sentences that say what is modelled."""
        return ()

    def _named(self, inference: Inference) -> Inference:
        """The inference with the names that the reader knows."""
        return inference

    def _validated(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """X and y as scikit-learn validates them; a large Arrow table is not copied."""
        if (left := self._left_in_place(X, reset=True)) is not None:
            return left, column_or_1d(np.asarray(y))
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=False)
        return X, y

    def _left_in_place(self, X: Any, reset: bool) -> Tall | None:
        """X without a copy, if it is a large Arrow table with the columns of the fit; otherwise None."""
        table = arrow_table(type(self).__name__, X) if is_arrow(X) else None
        if table is None or not is_large(table):
            return None
        names = np.array(table.column_names, dtype=object)
        if reset:
            self.n_features_in_, self.feature_names_in_ = len(names), names
        elif names.tolist() != getattr(self, "feature_names_in_", names).tolist() or (
            len(names) != self.n_features_in_
        ):
            raise ValueError(
                "X must have the same columns as in the fit, in the same order; select them by name"
            )
        return Tall(ArrowRows(type(self).__name__, table))

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        """The loss, and y checked for it."""
        raise NotImplementedError

    def _keep(self, theta: Vector) -> None:
        """Set coef_ and intercept_."""
        n = self.n_features_in_
        self.coef_: NDArray[np.float64] = theta[:n]
        self.intercept_: Any = float(theta[n]) if self.fit_intercept else 0.0

    def _linear(self, X: Any, offset: Any) -> NDArray[np.float64]:
        """x'coef + intercept + offset of each row, for each class if there are several."""
        check_is_fitted(self)
        left = self._left_in_place(X, reset=False)
        if left is None:
            left = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        z = np.asarray(left @ self.coef_.T + self.intercept_)
        if not np.isfinite(z).all():
            raise ValueError("X has values that are missing or too large; fill them in, or drop these rows")
        shift = self._shift(offset, len(z))
        return z if shift is None else z + shift.reshape(-1, *[1] * (z.ndim - 1))

    def _shift(self, offset: Any, rows: int) -> Vector | None:
        """The offset of each row; it is required if the model was fitted with an offset."""
        if offset is None:
            if self.has_offset_:
                raise ConfigError(
                    f"this {type(self).__name__} was fitted with an offset: give offset=, one number per "
                    "row, or offset=0 for rows without one; cross-validation passes it to score after "
                    "set_score_request(offset=True) (metadata routing)"
                )
            return None
        try:
            shift = np.asarray(offset, dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigError("offset must be one number per row, or one for all rows") from None
        if shift.shape not in ((), (rows,)):
            raise ConfigError(
                f"offset has shape {shift.shape}; give one number per row, shape ({rows},), or a single one"
            )
        if not np.isfinite(shift).all():
            raise ConfigError("offset must contain finite numbers only; drop the other rows, or fill them in")
        return np.broadcast_to(shift, (rows,))
