"""Predictions of a fitted model for new rows: means, probabilities, and intervals of means."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedshed._utils.errors import ConfigError
from fedshed.inference import FewSitesWarning, Inference
from fedshed.inference.classes import class_coefficients
from fedshed.inference.result import Robust, student
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.tall import Tall, in_blocks
from fedshed.objectives import family_of
from fedshed.objectives.ordinal import class_probabilities
from fedshed.preparation import DesignPlan

NO_INTERVALS = (
    "predictions have no intervals (NaN): their degrees of freedom are those of columns that are constant "
    "at each site, and there are too few sites for any; leave such columns out"
)


class Prediction(NamedTuple):
    """The mean of each row, its standard error, and the ends of its confidence interval."""

    mean: Vector
    std_err: Vector
    low: Vector
    high: Vector


def means(plan: DesignPlan, inference: Inference, frame: Any) -> NDArray[Any]:
    """The mean of each row, or its most probable class."""
    if plan.classes is None:
        return family_of(plan.study.loss).mean(_linear(plan, inference, frame)[:, 0])
    return np.asarray(np.array(plan.classes)[probabilities(plan, inference, frame).argmax(axis=1)])


def probabilities(plan: DesignPlan, inference: Inference, frame: Any) -> Matrix:
    """The probability of each class, one column for each class."""
    if plan.classes is None:
        raise ConfigError(f"the {plan.study.family} family has no classes and no probabilities; use predict")
    if family_of(plan.study.loss).classes == "ordered":
        n, coef = len(plan.names), inference.coef
        return class_probabilities(_rows(plan, frame)[0][:, :n] @ coef[:n], coef[n:])
    z = _linear(plan, inference, frame)
    if z.shape[1] == 1:
        return family_of(plan.study.loss).of_two(z)
    p: Matrix = softmax(z, axis=1)
    return p


def intervals(plan: DesignPlan, inference: Inference, frame: Any, level: float, robust: Robust) -> Prediction:
    """The mean of each row with its standard error and confidence interval."""
    family = family_of(plan.study.loss)
    if family.classes in ("many", "ordered"):
        raise ConfigError(
            f"the {family.name} family has several classes and no interval of one mean; use predict_proba"
        )
    if not 0 < level < 1:
        raise ConfigError(f"level must be between 0 and 1, such as 0.95, not {level!r}")
    X, offset = _rows(plan, frame)
    z = X @ inference.coef + (0.0 if offset is None else offset)
    V = inference.covariance(robust)
    withheld = np.isnan(inference.std_err(robust))  # too few sites inform these coefficients
    error = np.concatenate([_errors(rows, V, withheld) for _, rows in in_blocks(X)])
    freedom = inference.freedom(robust)
    if freedom <= 0 and inference.level_freedom is not None:
        warnings.warn(NO_INTERVALS, FewSitesWarning, stacklevel=3)
    _, quantile = student(freedom, (1 - level) / 2, z)
    low, high = family.mean(z - quantile * error), family.mean(z + quantile * error)
    return Prediction(family.mean(z), family.mean_slope(z) * error, low, high)


def _linear(plan: DesignPlan, inference: Inference, frame: Any) -> Matrix:
    """x'coef (+ offset), one column, or one for each of several classes."""
    X, offset = _rows(plan, frame)
    lines = inference.coef[None, :] if inference.coding is None else class_coefficients(inference)
    z: Matrix = np.asarray(X @ lines.T)
    return z if offset is None else z + offset[:, None]


def _rows(plan: DesignPlan, frame: Any) -> tuple[Matrix | Tall, Vector | None]:
    """The design of a table with its intercept, on the scale of the coefficients, and its offset."""
    plan = msgspec.structs.replace(plan, centres=None, scales=None)
    X = plan.design(frame)
    if isinstance(X, Tall):
        return X.with_ones() if plan.intercept else X, plan.offset(frame)
    return np.column_stack([X, np.ones(len(X))]) if plan.intercept else X, plan.offset(frame)


def _errors(X: Matrix, V: Matrix, withheld: NDArray[np.bool_]) -> Vector:
    """(x'Vx)^(1/2) of each row; NaN for rows that need a standard error which is withheld."""
    error: Vector = np.sqrt(np.maximum(((X @ V) * X).sum(axis=1), 0.0))
    error[(X[:, withheld] != 0).any(axis=1)] = np.nan
    return error
