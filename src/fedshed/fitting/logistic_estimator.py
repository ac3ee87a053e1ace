"""Logistic regression of two or more classes as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from fedshed._utils.errors import ConfigError
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.inference import Inference, reference_class
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives import contrasts, family_of


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):  # type: ignore[misc]
    """Logistic regression of two classes, or multinomial regression of more, as a scikit-learn estimator.

    It is equivalent to scikit-learn's LogisticRegression(C = 1 / (l2 W)), where W is the sum of the sample
    weights. For more than two classes, `coef_` and `intercept_` sum to 0 over the classes, as in
    scikit-learn; the summary compares each class with a reference class.

    Parameters
    ----------
    l2 : float or array, default 1e-4
        The ridge penalty on the mean loss; the intercept is not penalised.
    fit_intercept : bool, default True
        Whether to fit an intercept.
    algorithm : str or Algorithm, default "auto"
        The algorithm, as in `fedshed.optimize`. All rows are in this process, so that "auto" chooses the
        algorithm that needs the least time.
    budget : int, str or channel, optional
        Eigenpairs per round, as in `fedshed.optimize`.
    tol : float, default 1e-8
        The fit stops when the norm of the gradient is below this number.
    max_iter : int, default 500
        The largest number of iterations.
    seed : int, default 0
        The seed of an algorithm that draws random numbers.
    inference : bool or "auto", default "auto"
        Whether to compute standard errors, which need n^2 / 2 numbers per site for n coefficients; "auto"
        computes them for up to 1,000 coefficients.
    weight_type : "auto", "frequency" or "precision", default "auto"
        The meaning of sample weights. A frequency is the number of times that a row counts. A precision
        divides the variance of its row, which remains one observation, as in R's `glm(weights=)` and
        statsmodels' `var_weights`. The estimates are the same; degrees of freedom, dispersion and standard
        errors differ. "auto" means precisions if some weights are not whole numbers; with whole numbers above
        1 there are no standard errors until the type is given.
    protected : bool, default False
        Whether to simulate a protected study in this process, with masked sums that every site verifies
        (docs/protected.md). It gives the same model, needs at least three sites, and an algorithm that only
        needs sums.
    l1 : float or array, default 0.0
        The absolute penalty l1 |coef| on the mean loss (lasso; together with l2 the elastic net,
        docs/selection.md). The intercept is not penalised, and there are no standard errors.
    random_intercept : bool, default False
        Whether the intercepts of the sites come from a normal distribution, whose standard deviation is
        estimated (docs/random.md); for linear, logistic, binomial and Poisson models.
    firth : bool, default False
        Whether to use Firth's penalised likelihood for two classes in place of the ridge (docs/firth.md),
        which gives finite estimates even if the classes are separated. The default l2 then counts as 0, and
        any other l2 is refused.

    Attributes
    ----------
    coef_, intercept_ : array
        The estimates.
    classes_ : array
        The classes, in the order of the columns of `predict_proba`.
    result_ : Result
        The run, with its trace.
    converged_ : bool
        Whether the fit converged, so that the estimates are those of the pooled rows.
    reason_ : str
        Why the run ended.

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
            raise ConfigError(
                f"y contains only one class ({self.classes_[0]!r}), and a classifier needs at least two"
            )
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
        return reference_class(inference, self.classes_.tolist(), columns)

    def _shift(self, offset: Any, rows: int) -> Vector | None:
        if offset is not None and len(self.classes_) > 2:
            raise ConfigError(
                "a model of more than two classes has no offset, because it would shift all classes equally; "
                "leave out offset"
            )
        return super()._shift(offset, rows)

    def decision_function(self, X: Any, offset: Any = None) -> NDArray[np.float64]:
        """The log odds of the second of two classes, or the linear predictor of each of several classes.

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
            One number for each row, or one column for each class if there are several.
        """
        z = self._linear(X, offset)
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: Any, offset: Any = None) -> Matrix:
        """Predict the probability of each class.

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
            One row for each row of X, and one column for each class.
        """
        z = self.decision_function(X, offset)
        if z.ndim == 1:
            return family_of(self._link).of_two(z)
        p: Matrix = softmax(z, axis=1)
        return p

    def predict_log_proba(self, X: Any, offset: Any = None) -> Matrix:
        """The logarithms of `predict_proba`.

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
            One row for each row of X, and one column for each class.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, offset))

    def predict(self, X: Any, offset: Any = None) -> NDArray[Any]:
        """Predict the most probable class.

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
            One class for each row.
        """
        z = self.decision_function(X, offset)
        most = (z > 0).astype(np.intp) if z.ndim == 1 else z.argmax(axis=1)
        return np.asarray(self.classes_[most])

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """The accuracy: the share of rows whose class is predicted correctly.

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
            The share, from 0 to 1.
        """
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))
