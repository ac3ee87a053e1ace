"""From the contrasts of a multinomial model to coefficients a reader knows: of each class, or against one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshed.inference.result import Inference
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.multinomial import contrasts


def per_class(inference: Inference, classes: Sequence[Any], columns: Sequence[str]) -> Inference:
    """Coefficients of all K classes, which sum to 0 over the classes: Theta = Q A."""
    return _coded(inference, contrasts(len(classes)), classes, columns)


def reference_class(
    inference: Inference, classes: Sequence[Any], columns: Sequence[str], reference: int = 0
) -> Inference:
    """Log odds of each other class against one, as statsmodels' MNLogit reports them."""
    Q = contrasts(len(classes))
    others = [k for k in range(len(classes)) if k != reference]
    return _coded(inference, Q[others] - Q[reference], [classes[k] for k in others], columns)


def _coded(inference: Inference, C: Matrix, classes: Sequence[Any], columns: Sequence[str]) -> Inference:
    names = [f"{column} [{label}]" for label in classes for column in columns]
    A: Matrix = np.kron(C, np.eye(len(columns))).astype(np.float64)
    return inference.transformed(A, names)
