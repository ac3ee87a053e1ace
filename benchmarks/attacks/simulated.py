"""Simulated patients: every row that an attack recovers was drawn here."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float64]
VISITS = 10  # values of a count of visits
YES_NO = ("sex", "smoker", "diabetes", "pressure")
NEAR = 1e-4  # relative error up to which a row counts as recovered


def patients(rows: int, numbers: int = 5, seed: int = 0) -> pd.DataFrame:
    """Standardised columns x0, x1, ..., a rounded age and bmi, categories, visits, and a disease."""
    rng = np.random.default_rng((seed, rows, numbers))
    X = rng.normal(size=(rows, numbers))
    risk = X @ rng.normal(size=numbers) / np.sqrt(numbers) + 0.7 * rng.logistic(size=rows)
    age = rng.integers(24, 90, size=rows)
    age[rng.integers(rows)] = 19  # one patient is the youngest
    made: dict[str, Any] = {f"x{j}": X[:, j] for j in range(numbers)}
    made |= {"age": age.astype(float), "bmi": np.round(rng.normal(26, 4, size=rows), 1)}
    made |= {name: rng.permutation(np.arange(rows) % 2) == 1 for name in YES_NO}
    made |= {"visits": rng.integers(0, VISITS, size=rows).astype(float)}
    made |= {"disease": (risk > np.median(risk)).astype(int), "rare": np.eye(rows, dtype=int)[rows // 2]}
    return pd.DataFrame(made)


def laboratory(rows: int, numbers: int, seed: int = 0) -> pd.DataFrame:
    """Standardised columns with heavy tails, like laboratory values, and a disease that they predict."""
    rng = np.random.default_rng((seed, rows, numbers))
    X = rng.standard_t(2, size=(rows, numbers))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    effects = np.random.default_rng(numbers).normal(size=numbers) / np.sqrt(numbers)
    risk = X @ effects + 0.2 * rng.logistic(size=rows)
    made: dict[str, Any] = {f"x{j}": X[:, j] for j in range(numbers)}
    return pd.DataFrame({**made, "disease": (risk > np.median(risk)).astype(int)})


def recovered(found: Any, truth: Rows) -> int:
    """How many rows of the truth are among those found, to a relative error of 1e-4."""
    found = np.asarray(found, dtype=float).reshape(-1, truth.shape[1])
    sizes = np.linalg.norm(truth, axis=1)
    return sum(
        bool((np.linalg.norm(found - x, axis=1) <= NEAR * s).any()) for x, s in zip(truth, sizes, strict=True)
    )


def with_intercept(frame: pd.DataFrame, columns: tuple[str, ...]) -> Rows:
    """The rows of a design of these columns, the intercept last."""
    return np.column_stack([frame[list(columns)].to_numpy(float), np.ones(len(frame))])
