"""scikit-learn estimators of the pooled model: `fit(X, y, sites=...)`, one site for each value of `sites`.

All minimise the mean loss plus l2 |coef|^2 / 2; the intercept is not penalised.  With W the sum of the sample
weights (the number of rows without them) that is scikit-learn's

    LogisticRegression(C = 1 / (l2 W))    Ridge(alpha = l2 W)
    PoissonRegressor(alpha = l2)          GammaRegressor(alpha = l2)
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, d2_tweedie_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from fedshed._utils.errors import ConfigError
from fedshed._utils.files import write_atomically
from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.exchange.sites import LocalSites
from fedshed.fitting import estimator_files as saved
from fedshed.fitting.conduct import Fitted, fit_problem
from fedshed.inference import Inference, Summary, per_class
from fedshed.inference.result import Distribution, WeightType
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import contrasts
from fedshed.solve import validation as checks
from fedshed.solve.engine import settled
from fedshed.solve.optimize import build_problem
from fedshed.solve.run import Result
from fedshed.tables import Federation

MOST_COEFFICIENTS = 1000  # up to here inference="auto" asks for exact curvature: n^2 / 2 numbers a site


class _FederatedModel(BaseEstimator):  # type: ignore[misc]
    """What the estimators share: the parameters, the fit, and the linear part."""

    def __init__(
        self,
        l2: float | Vector = 1e-4,
        *,
        fit_intercept: bool = True,
        algorithm: str | Algorithm[Any] = "auto",
        budget: Budget = None,
        tol: float = 1e-8,
        max_iter: int = 500,
        seed: int = 0,
        inference: bool | Literal["auto"] = "auto",
        weight_type: WeightType = "auto",
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit the model of all rows; `sites` names the site of each row (None: all in one).

        A sample weight is how often its row counts, or how precise it is, as `weight_type` says; an offset is
        added to the row's linear part, and a model fitted with one needs one to predict and to score.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=False)
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
        self.converged_ = settled(self.result_.converged, self.reason_)
        if not self.converged_:
            warnings.warn(f"{type(self).__name__}: {self.reason_}", ConvergenceWarning, stacklevel=2)
        return self

    def summary(
        self, *, robust: bool = False, level: float = 0.95, exp: bool = False,
        distribution: Distribution = "auto",
    ) -> Summary:  # fmt: skip
        """Coefficients with errors, measures of fit and the sites; see `fedshed.Model.summary`."""
        check_is_fitted(self)
        if self.inference_ is None:
            raise ConfigError("fitted without inference; set inference=True and fit again")
        notes = () if self.converged_ else (f"NOT CONVERGED: {self.reason_}",)
        return Summary(
            self.inference_, title=type(self).__name__, robust=robust, level=level, exp=exp,
            distribution=distribution, converged=self.converged_, notes=notes, about=self._about(),
        )  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator as JSON (`fedshed.estimators.load` reads it)."""
        check_is_fitted(self)
        return write_atomically(path, saved.encode(self))

    def _fitted(self, federation: Federation, loss: str) -> Fitted:
        """The run and the inference, as those of any study."""
        objectives, problem = build_problem(federation, loss, self.l2, self.fit_intercept)
        goal = checks.goal(self.tol, self.max_iter, None, None, 1, 20, len(federation.sites))
        chosen, why = checks.choose_algorithm(
            self.algorithm, self.budget, None, self.seed, problem, one_process=True
        )
        checks.unique_optimum(objectives, problem.l2, problem.columns)
        asked = problem.n <= MOST_COEFFICIENTS if self.inference == "auto" else bool(self.inference)
        return fit_problem(
            problem, chosen, LocalSites(objectives), goal, why=why, intercept=self.fit_intercept,
            weight_type=self.weight_type, inference=asked,
        )  # fmt: skip

    def _about(self) -> tuple[str, ...]:
        """What is modelled, in words."""
        return ()

    def _named(self, inference: Inference) -> Inference:
        """The coefficients as the reader knows them."""
        return inference

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        """The loss, and y checked for it."""
        raise NotImplementedError

    def _keep(self, theta: Vector) -> None:
        """Set coef_ and intercept_."""
        n = self.n_features_in_
        self.coef_: NDArray[np.float64] = theta[:n]
        self.intercept_: Any = float(theta[n]) if self.fit_intercept else 0.0

    def _linear(self, X: Any, offset: Any) -> NDArray[np.float64]:
        """x'coef + intercept + offset of each row, for each class where there are several."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        z = np.asarray(X @ self.coef_.T + self.intercept_)
        shift = self._shift(offset, len(z))
        return z if shift is None else z + shift.reshape(-1, *[1] * (z.ndim - 1))

    def _shift(self, offset: Any, rows: int) -> Vector | None:
        """The offset of each row; a model that was fitted with one must be given one."""
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
            raise ConfigError("offset must hold finite numbers only; drop or fill the rows where it does not")
        return np.broadcast_to(shift, (rows,))


class _FederatedRegressor(RegressorMixin, _FederatedModel):  # type: ignore[misc]
    """A model of numbers."""

    _loss: str

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        return self._loss, column_or_1d(y, dtype=np.float64)

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """The mean of each row."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """R^2, the share of the sum of squares explained."""
        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))


class FederatedLinearRegression(_FederatedRegressor):
    """Linear regression: minimises mean (x'coef + intercept - y)^2 / 2 + l2 |coef|^2 / 2.

    As scikit-learn's Ridge(alpha = l2 W); with l2 = 0 LinearRegression.

    Parameters
    ----------
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(60, 2)), np.repeat(["north", "south", "west"], 20)
    >>> y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=60)
    >>> model = fedshed.FederatedLinearRegression(l2=0.0).fit(X, y, sites=sites)
    >>> model.coef_.round(1).tolist()
    [1.0, -2.0]
    """

    _loss = "least-squares"

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """x'coef + intercept + offset."""
        return self._linear(X, offset)


class _LogLinear(_FederatedRegressor):
    """A model of positive responses with mean exp(x'coef + intercept)."""

    _power: int  # of the variance, mu^power

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """The mean, exp(x'coef + intercept + offset)."""
        mean: Vector = np.exp(self._linear(X, offset))
        return mean

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """D^2, the share of the deviance explained."""
        mean = self.predict(X, offset)
        return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=self._power))


class FederatedPoissonRegressor(_LogLinear):
    """Poisson regression with a logarithmic link, as scikit-learn's PoissonRegressor(alpha = l2).

    Exposure: give counts with offset = log(exposure), or rates with sample_weight = exposure.

    Parameters
    ----------
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(60, 2)), np.repeat(["north", "south", "west"], 20)
    >>> y = rng.poisson(np.exp(X @ [0.5, -0.5]))
    >>> model = fedshed.FederatedPoissonRegressor(l2=0.0).fit(X, y, sites=sites)
    >>> model.converged_, model.predict(X).shape
    (True, (60,))
    """

    _loss, _power = "poisson", 1


class FederatedGammaRegressor(_LogLinear):
    """Gamma regression with a logarithmic link, as scikit-learn's GammaRegressor(alpha = l2).

    Parameters
    ----------
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(60, 2)), np.repeat(["north", "south", "west"], 20)
    >>> y = rng.gamma(2.0, np.exp(X @ [0.5, -0.5]) / 2)
    >>> model = fedshed.FederatedGammaRegressor(l2=0.0).fit(X, y, sites=sites)
    >>> model.converged_
    True
    """

    _loss, _power = "gamma", 2


class FederatedLogisticRegression(ClassifierMixin, _FederatedModel):  # type: ignore[misc]
    """Logistic regression, multinomial for more than two classes, as LogisticRegression(C = 1 / (l2 W)).

    The coefficients of several classes sum to 0 over the classes, the intercepts too.

    Parameters
    ----------
    l2 : float or array
        The ridge on the mean loss; the intercept is not penalised.
    fit_intercept : bool
        Whether to fit an intercept.
    algorithm, budget, tol, seed
        As in `fedshed.optimize`; "auto" takes what needs least time, as all rows are in this process.
    max_iter : int
        Stop after this many iterations.
    inference : bool or "auto"
        Whether to compute standard errors, which cost n^2 / 2 numbers per site; "auto": up to 1,000
        coefficients.
    weight_type : "auto", "frequency" or "precision"
        What sample weights are: how often a row counts, or how precise it is (its variance is divided by the
        weight, as in R's `glm(weights=)` and statsmodels' `var_weights`), which leaves it one observation.
        The estimates are the same; degrees of freedom, dispersion and errors are not. "auto": precisions if
        some are no whole numbers, else frequencies.

    Attributes
    ----------
    coef_, intercept_
        The estimates.
    result_ : Result
        The run, with its trace.
    converged_ : bool
        Whether they are those of the pooled rows; `reason_` says why the run ended.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(60, 2)), np.repeat(["north", "south", "west"], 20)
    >>> y = np.where(X @ [1.0, -1.0] + rng.logistic(size=60) > 0, "ill", "well")
    >>> model = fedshed.FederatedLogisticRegression(l2=1e-3).fit(X, y, sites=sites)
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['ill', 'well'], (60, 2))
    """

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(f"y holds one class only ({self.classes_[0]!r}); a classifier needs two")
        return ("logistic" if len(self.classes_) == 2 else "multinomial"), codes

    def _keep(self, theta: Vector) -> None:
        n, K = self.n_features_in_, len(self.classes_)
        Theta: Matrix = theta[None, :] if K == 2 else contrasts(K) @ theta.reshape(K - 1, -1)
        self.coef_ = Theta[:, :n]
        self.intercept_ = Theta[:, n] if self.fit_intercept else np.zeros(len(Theta))

    def _about(self) -> tuple[str, ...]:
        if len(self.classes_) > 2:
            return ()
        return (f"Modelled: the probability that y is {self.classes_[1]}, not {self.classes_[0]}",)

    def _named(self, inference: Inference) -> Inference:
        if len(self.classes_) == 2:
            return inference
        width = len(inference.names) // (len(self.classes_) - 1)
        columns = [name.partition(" [contrast")[0] for name in inference.names[:width]]
        return per_class(inference, self.classes_.tolist(), columns)

    def _shift(self, offset: Any, rows: int) -> Vector | None:
        if offset is not None and len(self.classes_) > 2:
            raise ConfigError("several classes have no offset: one number would shift every class alike")
        return super()._shift(offset, rows)

    def decision_function(self, X: Any, offset: Any = None) -> NDArray[np.float64]:
        """The log odds of the second class, or the linear part of each of several."""
        z = self._linear(X, offset)
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: Any, offset: Any = None) -> Matrix:
        """The probability of each class."""
        z = self.decision_function(X, offset)
        p: Matrix = np.column_stack([expit(-z), expit(z)]) if z.ndim == 1 else softmax(z, axis=1)
        return p

    def predict_log_proba(self, X: Any, offset: Any = None) -> Matrix:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, offset))

    def predict(self, X: Any, offset: Any = None) -> NDArray[Any]:
        """The most probable class."""
        z = self.decision_function(X, offset)
        most = (z > 0).astype(np.intp) if z.ndim == 1 else z.argmax(axis=1)
        return np.asarray(self.classes_[most])

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """The share of rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))


KINDS = (
    FederatedGammaRegressor,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)


def load(path: str | Path) -> Any:
    """An estimator that was saved, ready to predict and to print its summary."""
    return saved.decode(path, {kind.__name__: kind for kind in KINDS})
