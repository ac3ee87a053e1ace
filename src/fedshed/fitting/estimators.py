"""scikit-learn estimators of the pooled model: `fit(X, y, sites=...)`, one site for each value of `sites`.

All of them minimise the mean loss plus l2 |coef|^2 / 2 + l1 |coef|_1; the intercept is not penalised. Let W
be the sum of the sample weights, or the number of rows if there are no weights. The equivalent estimators of
scikit-learn are

    LogisticRegression(C = 1 / (l2 W))    Ridge(alpha = l2 W)
    PoissonRegressor(alpha = l2)          GammaRegressor(alpha = l2)
    ElasticNet(alpha = l1 + l2, l1_ratio = l1 / (l1 + l2))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.utils.validation import column_or_1d

from fedshed.fitting import estimator_files as saved
from fedshed.fitting.cox_estimator import FederatedCox
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.fitting.logistic_estimator import FederatedLogisticRegression
from fedshed.fitting.regressor import FederatedRegressor
from fedshed.linalg.arrays import Vector


class _FederatedRegressor(RegressorMixin, FederatedModel):  # type: ignore[misc]
    """A model whose target is a number."""

    _loss: str

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        return self._loss, column_or_1d(y, dtype=np.float64)

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """Predict the mean of each row."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """R^2, the share of the sum of squares that the model explains.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        y : array
            The target of each row.
        sample_weight : array, optional
            The weight of each row.
        offset : array, optional
            A number that is added to the linear predictor of each row; required if the model was fitted with
            an offset.

        Returns
        -------
        float
            R^2, at most 1.
        """
        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))


class FederatedLinearRegression(_FederatedRegressor):
    """Linear regression, as a scikit-learn estimator.

    It minimises mean (x'coef + intercept - y)^2 / 2 + l2 |coef|^2 / 2, as scikit-learn's Ridge(alpha = l2 W)
    does, where W is the sum of the sample weights; l2 = 0 gives LinearRegression.

    Parameters
    ----------
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model.
    random_intercept : bool, default False
        Whether each site has a random intercept, whose variance is estimated by REML (docs/random.md). The
        default l2 then counts as 0.
    firth : bool, default False
        Must be False, because Firth's penalty needs two classes.

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
        """Predict the mean of each row, x'coef + intercept + offset.

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
            One mean for each row.
        """
        return self._linear(X, offset)


class _LogLinear(_FederatedRegressor):
    """A model of positive responses with mean exp(x'coef + intercept)."""

    _power: int  # of the variance, mu^power

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """Predict the mean of each row, exp(x'coef + intercept + offset).

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
            One mean for each row.
        """
        mean: Vector = np.exp(self._linear(X, offset))
        return mean

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """D^2, the share of the deviance that the model explains.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame
            The predictors, one row for each observation.
        y : array
            The target of each row.
        sample_weight : array, optional
            The weight of each row.
        offset : array, optional
            A number that is added to the linear predictor of each row; required if the model was fitted with
            an offset.

        Returns
        -------
        float
            D^2, at most 1.
        """
        mean = self.predict(X, offset)
        return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=self._power))


class FederatedPoissonRegressor(_LogLinear):
    """Poisson regression with a logarithmic link, as scikit-learn's PoissonRegressor(alpha = l2).

    If rows have an exposure, give counts with offset = log(exposure), or rates with sample_weight = exposure.

    Parameters
    ----------
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model.
    random_intercept : bool, default False
        Whether each site has a random intercept (docs/random.md).
    firth : bool, default False
        Must be False, because Firth's penalty needs two classes.

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
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model.
    random_intercept, firth : bool, default False
        Must be False for this family.

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


KINDS = (
    FederatedCox,
    FederatedGammaRegressor,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedRegressor,
)


def load(path: str | Path) -> Any:
    """Load an estimator that was saved; it can predict and print its summary.

    Parameters
    ----------
    path : path
        The file that the method `save` of an estimator wrote.

    Returns
    -------
    estimator
        The fitted estimator, without the trace of its run.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not an estimator that fedshed wrote.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import fedshed
    >>> model = fedshed.FederatedLinearRegression(l2=0.0).fit([[0.0], [1.0], [3.0]], [1.0, 3.0, 7.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = fedshed.estimators.load(model.save(pathlib.Path(folder) / "model.json"))
    >>> again.predict([[2.0]]).round(6).tolist()
    [5.0]
    """
    from fedshed.fitting.classifier import (
        FederatedClassifier,
    )  # imported here because it is a subclass of one of these

    return saved.decode(path, {kind.__name__: kind for kind in (*KINDS, FederatedClassifier)})
