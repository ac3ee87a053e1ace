"""scikit-learn estimators of the pooled model: `fit(X, y, sites=...)`, one site for each value of `sites`.

All minimise the mean loss plus l2 |coef|^2 / 2 + l1 |coef|_1; the intercept is not penalised.  With W the sum
of the sample weights (the number of rows without them) that is scikit-learn's

    LogisticRegression(C = 1 / (l2 W))    Ridge(alpha = l2 W)
    PoissonRegressor(alpha = l2)          GammaRegressor(alpha = l2)
    ElasticNet(alpha = l1 + l2, l1_ratio = l1 / (l1 + l2))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, d2_tweedie_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from fedshed._utils.errors import ConfigError
from fedshed.fitting import estimator_files as saved
from fedshed.fitting.cox_estimator import FederatedCox
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.fitting.regressor import FederatedRegressor
from fedshed.inference import Inference, per_class
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import contrasts, family_of


class _FederatedRegressor(RegressorMixin, FederatedModel):  # type: ignore[misc]
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
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.
    random_intercept : bool
        A random intercept per site, estimated by REML (docs/random.md); the default l2 then counts as 0.
    firth : bool
        Refused: Firth's penalty is for two classes.

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
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.
    random_intercept : bool
        A random intercept per site (docs/random.md).
    firth : bool
        Refused: Firth's penalty is for two classes.

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
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        As in `FederatedLogisticRegression`, and so are the attributes of a fitted model.
    random_intercept, firth : bool
        Refused for this family.

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


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):  # type: ignore[misc]
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
    protected : bool
        Fit by masked sums that every site verifies (docs/protected.md), simulated in this process: the same
        model from three sites or more, with algorithms that need no more than sums.
    l1 : float or array
        The absolute penalty on the mean loss, l1 |coef| (lasso; with l2 the elastic net, docs/selection.md);
        the intercept is not penalised, and there are no standard errors.
    random_intercept : bool
        Whether the intercepts of the sites come from a normal distribution, whose standard deviation is
        estimated (docs/random.md); for linear, logistic, binomial and Poisson models.
    firth : bool
        Firth's penalised likelihood for two classes in place of the ridge (docs/firth.md): the estimates are
        finite where the classes are separated. The default l2 then counts as 0; another is refused.

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

    _link = "logistic"  # the loss of two classes

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
        if z.ndim == 1:
            return family_of(self._link).of_two(z)
        p: Matrix = softmax(z, axis=1)
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
    FederatedCox,
    FederatedGammaRegressor,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedRegressor,
)


def load(path: str | Path) -> Any:
    """An estimator that was saved, ready to predict and to print its summary."""
    from fedshed.fitting.classifier import FederatedClassifier  # which is one of these with a family

    return saved.decode(path, {kind.__name__: kind for kind in (*KINDS, FederatedClassifier)})
