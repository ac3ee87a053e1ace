"""Coefficients of a multinomial model for each class, or against a reference class, from its contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.multinomial import contrasts


def per_class(inference: Inference, classes: Sequence[Any], columns: Sequence[str]) -> Inference:
    """The coefficients of all K classes, which sum to 0 over the classes: Theta = Q A.

    Parameters
    ----------
    inference : Inference
        The inference for the K - 1 contrasts of a multinomial model.
    classes : sequence
        The K classes.
    columns : sequence of str
        The names of the columns, with the intercept.

    Returns
    -------
    Inference
        The inference for the coefficients of each class.
    """
    return _coded(inference, contrasts(len(classes)), classes, columns)


def reference_class(
    inference: Inference, classes: Sequence[Any], columns: Sequence[str], reference: int = 0
) -> Inference:
    """The log odds of each class against a reference class, as in MNLogit of statsmodels.

    Parameters
    ----------
    inference : Inference
        The inference for the K - 1 contrasts of a multinomial model.
    classes : sequence
        The K classes.
    columns : sequence of str
        The names of the columns, with the intercept.
    reference : int, default 0
        The index of the reference class in `classes`.

    Returns
    -------
    Inference
        The inference for the coefficients of the other classes.
    """
    Q = contrasts(len(classes))
    others = [k for k in range(len(classes)) if k != reference]
    return _coded(inference, Q[others] - Q[reference], [classes[k] for k in others], columns)


def _coded(inference: Inference, C: Matrix, classes: Sequence[Any], columns: Sequence[str]) -> Inference:
    names = [f"{column} [{label}]" for label in classes for column in columns]
    A: Matrix = np.kron(C, np.eye(len(columns))).astype(np.float64)
    return inference.transformed(A, names)
