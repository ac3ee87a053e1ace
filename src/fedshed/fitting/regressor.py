"""`FederatedRegressor`: an estimator for any family of numbers, whose parameter is given or estimated."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.fitting.estimator_base import FederatedModel
from fedshed.inference.result import WeightType
from fedshed.linalg.arrays import Vector
from fedshed.objectives import Family, family_of
from fedshed.objectives.families import known_families, loss_named, parts_of


class FederatedRegressor(RegressorMixin, FederatedModel):  # type: ignore[misc]
    """Regression for any family of numbers (docs/families.md), such as "tweedie(1.6)".

    Parameters
    ----------
    family : str, default "linear"
        The family. A number in parentheses gives its parameter, if it has one. For "negative-binomial"
        without a number, the parameter alpha is estimated by maximum likelihood.
    l2, fit_intercept, algorithm, budget, tol, max_iter, seed, inference, weight_type, protected, l1
        The same as in `FederatedLogisticRegression`, as are the attributes of a fitted model.
    random_intercept : bool, default False
        Whether each site has a random intercept (docs/random.md); its standard deviation tau is estimated by
        maximum likelihood.

    Attributes
    ----------
    parameter_ : float or None
        The parameter of the family, as given or estimated: alpha, p, or tau of a random intercept.

    Examples
    --------
    >>> import numpy as np
    >>> import fedshed
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(300, 2)), np.repeat(["north", "south", "west"], 100)
    >>> y = rng.poisson(np.exp(X @ [0.5, -0.5]) * rng.gamma(2.0, 0.5, size=300))
    >>> model = fedshed.FederatedRegressor(family="negative-binomial", l2=0.0).fit(X, y, sites=sites)
    >>> model.converged_, 0.3 < model.parameter_ < 0.8
    (True, True)
    """

    def __init__(
        self,
        family: str = "linear",
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
        random_intercept: bool = False,
        l1: float | Vector = 0.0,
    ) -> None:
        super().__init__(
            l2, fit_intercept=fit_intercept, algorithm=algorithm, budget=budget, tol=tol, max_iter=max_iter,
            seed=seed, inference=inference, weight_type=weight_type, protected=protected,
            random_intercept=random_intercept, l1=l1,
        )  # fmt: skip
        self.family = family

    def _family(self) -> Family:
        """The family, with the parameter of the fit."""
        name = parts_of(self.family)[0]
        if name not in known_families():
            raise ConfigError(f"family cannot be {self.family!r}{closest(name, known_families())}")
        family = family_of(loss_named(self.family))
        if family.classified:
            raise ConfigError(
                f"the {family.name} family has classes, and FederatedRegressor needs a target of numbers; "
                "use FederatedClassifier"
            )
        return family

    def _target(self, y: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        self._family()
        return loss_named(self.family), column_or_1d(y, dtype=np.float64)

    @property
    def parameter_(self) -> float | None:
        """The parameter of the family, as given or estimated."""
        check_is_fitted(self)
        given = getattr(self._family().objective, "parameter", None)
        found = None if self.inference_ is None else self.inference_.nuisance
        return given if found is None else found.value

    def predict(self, X: Any, offset: Any = None) -> Vector:
        """Predict the mean of each row; with a random intercept, that of a site whose intercept is 0.

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
        return self._family().mean(self._linear(X, offset))

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """D^2, the share of the deviance that the model explains; R^2 for the linear family.

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
        z = self._linear(X, offset)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        model = self._family().objective(z[:, None], column_or_1d(y, dtype=np.float64), weights)
        null = model.null()
        level = type(null).null_levels(null.null_moments())
        least = null.at(level).fit.deviance
        return 1.0 - model.at(np.ones(1)).fit.deviance / least if least else 0.0
