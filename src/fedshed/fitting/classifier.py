"""`FederatedClassifier`: a scikit-learn estimator for any family of classes, also ordered ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.fitting.logistic_estimator import FederatedLogisticRegression
from fedshed.inference import Inference
from fedshed.inference.result import WeightType
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives.ordinal import class_probabilities, threshold_names

OF_TWO = ("probit", "cloglog")
FAMILIES_OF_CLASSES = ("logistic", "multinomial", *OF_TWO, "ordinal")


class FederatedClassifier(FederatedLogisticRegression):
    """Regression for any family of classes (docs/families.md), as a scikit-learn estimator.

    Parameters
    ----------
    family : str, default "logistic"
        "logistic" (multinomial for more than two classes), "multinomial", "probit" or "cloglog" for two
        classes, or "ordinal" for ordered classes.
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model. An ordinal
        model has thresholds in place of an intercept, and `intercept_` contains their negatives.
    firth : bool, default False
        The same as in `FederatedLogisticRegression`; for the logistic family only.
    random_intercept : bool, default False
        The same as in `FederatedRegressor`; for the logistic family only.
    order : sequence, optional
        The classes of an ordinal model, from the lowest to the highest. Default: numbers in increasing order.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(90, 2)), np.repeat(["north", "south", "west"], 30)
    >>> y = np.digitize(X @ [1.0, -1.0] + rng.logistic(size=90), [-1.0, 1.0])
    >>> model = fedshed.FederatedClassifier("ordinal", l2=0.0).fit(X, y, sites=sites)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, bool((np.diff(model.thresholds_) > 0).all())
    ([0, 1, 2], (90, 3), True)
    """

    def __init__(
        self,
        family: str = "logistic",
        l2: float | Vector = 1e-4,
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
        firth: bool = False,
        random_intercept: bool = False,
        l1: float | Vector = 0.0,
        order: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(
            l2, fit_intercept=fit_intercept, algorithm=algorithm, budget=budget, tol=tol, max_iter=max_iter,
            seed=seed, inference=inference, weight_type=weight_type, protected=protected, firth=firth,
            random_intercept=random_intercept, l1=l1,
        )  # fmt: skip
        self.family = family
        self.order = order

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.family not in OF_TWO
        return tags

    @property
    def _link(self) -> str:  # type: ignore[override]  # a class attribute in the base class
        """The loss of two classes."""
        return self.family if self.family in OF_TWO else "logistic"

    @property
    def _ordinal(self) -> bool:
        return self.family == "ordinal"

    @property
    def thresholds_(self) -> Vector:
        """The thresholds between the classes of an ordinal model."""
        if not self._ordinal:
            raise AttributeError("only an ordinal model has thresholds; use family='ordinal'")
        check_is_fitted(self)
        return np.asarray(-self.intercept_)

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        if self.family not in FAMILIES_OF_CLASSES:
            raise ConfigError(f"family cannot be {self.family!r}{closest(self.family, FAMILIES_OF_CLASSES)}")
        if self.order is not None and not self._ordinal:
            raise ConfigError("order applies to the ordinal family only; leave it out")
        loss, codes = super()._target(y)
        if self._ordinal:
            return "ordinal", self._ordered(y, codes)
        if self.family in OF_TWO and len(self.classes_) > 2:
            raise ConfigError(
                f"Only binary classification is supported. The {self.family} family has two classes, and y "
                f"has {len(self.classes_)}; use family='multinomial' or 'ordinal'"
            )
        if self.family == "multinomial" and len(self.classes_) == 2:
            return "logistic", codes
        return (self._link if len(self.classes_) == 2 else loss), codes

    def _ordered(self, y: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
        """The place of each row's class in the order."""
        check_classification_targets(y)
        if not self.fit_intercept:
            raise ConfigError(
                "an ordinal model has thresholds in place of an intercept; leave out fit_intercept"
            )
        if self.order is None:
            if self.classes_.dtype.kind in "OUS":
                raise ConfigError(
                    "classes that are text have no known order; give order=[...], with the lowest class first"
                )
            return codes
        order = column_or_1d(np.array(self.order))
        if len(order) != len(self.classes_) or set(order.tolist()) != set(self.classes_.tolist()):
            raise ConfigError(
                f"order must list each class of y exactly once; the classes are {self.classes_.tolist()}"
            )
        place = {label: k for k, label in enumerate(order.tolist())}
        again = np.array([place[label] for label in self.classes_.tolist()])
        self.classes_ = order
        return np.asarray(again[codes])

    def _keep(self, theta: Vector) -> None:
        if not self._ordinal:
            super()._keep(theta)
            return
        n = self.n_features_in_
        self.coef_, self.intercept_ = theta[None, :n], -theta[n:]

    def _about(self) -> tuple[str, ...]:
        if not self._ordinal:
            return super()._about()
        order = " < ".join(map(str, self.classes_.tolist()))
        return (f"Modelled: the odds that y is above a threshold, {order}",)

    def _named(self, inference: Inference) -> Inference:
        if not self._ordinal:
            return super()._named(inference)
        names = threshold_names(tuple(self.classes_.tolist()))
        return replace(inference, names=(*inference.names[: self.n_features_in_], *names))

    def _shift(self, offset: Any, rows: int) -> Vector | None:
        if offset is not None and self._ordinal:
            raise ConfigError("an ordinal model has no offset; leave it out")
        return super()._shift(offset, rows)

    def decision_function(self, X: Any, offset: Any = None) -> NDArray[np.float64]:
        """The log odds of the second class; for an ordinal model, x'coef minus each threshold.

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
            One number for each row, or several columns if there are more than two classes.
        """
        z = self._linear(X, offset)
        two = len(self.classes_) == 2
        return z[:, 0] if two else z

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
        if not self._ordinal:
            return super().predict_proba(X, offset)
        z = self._linear(X, offset)
        return class_probabilities(z[:, 0] - self.intercept_[0], self.thresholds_)

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
        if not self._ordinal and self.family != "cloglog":
            return super().predict(X, offset)
        p = self.predict_proba(X, offset)
        return np.asarray(self.classes_[p.argmax(axis=1)])
