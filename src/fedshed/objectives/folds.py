"""Folds of a site's rows for cross-validation: what all but one say, and how that one is predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import gram

if TYPE_CHECKING:
    from fedshed.objectives.base import LinearModel


class WithoutRows(Struct, frozen=True):
    """Sums over the rows that stay, and the deviance of those that are left out, at one point."""

    weight: float
    loss: float
    gradient: Vector
    hessian: Matrix
    held: float
    held_weight: float


def fold_of_each(model: LinearModel, site: str, folds: int, seed: int) -> NDArray[np.intp]:
    """The fold, from 1 on, of each row, drawn from (seed, site): of almost equal size, clusters undivided."""
    if folds == 0:
        return np.zeros(len(model.y), dtype=np.intp)
    clusters = np.arange(len(model.y)) if model.clusters is None else model.clusters
    _, unit = np.unique(clusters, return_inverse=True)
    count = int(unit.max(initial=-1)) + 1
    rng = np.random.default_rng([seed, *site.encode()])
    fold = np.empty(count, dtype=np.intp)
    fold[rng.permutation(count)] = (np.arange(count) + rng.integers(folds)) % folds + 1
    return fold[unit]


def without(model: LinearModel, theta: Vector, left_out: NDArray[np.bool_] | None) -> WithoutRows:
    """Loss, gradient and Hessian of the rows that stay, as sums; the deviance of the others.

    Where no fold is left out all rows stay, and the deviance is theirs.
    """
    z = model.margins(theta)
    w = np.ones(len(model.y)) if model.weights is None else model.weights
    kept = w if left_out is None else np.where(left_out, 0.0, w)
    held = w if left_out is None else np.where(left_out, w, 0.0)
    return WithoutRows(
        weight=float(kept.sum()),
        loss=float(kept @ model.losses(z)),
        gradient=model.slope_product(kept * model.slopes(z)),
        hessian=gram(model.curvature_factor(kept * model.curvatures(z))),
        held=float(2 * held @ model.excess(z)),
        held_weight=float(held.sum()),
    )
