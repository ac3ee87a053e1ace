"""What a logistic site tells at a point as a function of its rows, and the derivatives by their entries.

With z = theta'x, p = 1 / (1 + e^-z) and y = -1 or 1, a row adds to N f, N g and N H: l(z) = log(1 + e^-yz),
l'(z) x and l''(z) x x'.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import expit

Array: TypeAlias = NDArray[np.float64]


class Told(Struct, frozen=True):
    """What was told at a point: the cost, the gradient, and products H v with these vectors.

    `whole` stands for the upper triangle of H, `diagonal` for its diagonal.  An eigenpair (lambda, v) tells
    as much as the product H v.
    """

    theta: Any
    cost: bool = True
    gradient: bool = True
    whole: bool = False
    diagonal: bool = False
    vectors: Any = None

    @property
    def numbers(self) -> int:
        """How many numbers that is."""
        n = len(self.theta)
        pairs = 0 if self.vectors is None else self.vectors.size
        return self.cost + n * self.gradient + n * (n + 1) // 2 * self.whole + n * self.diagonal + pairs


def values(X: Array, y: Array, told: list[Told]) -> Array:
    """All numbers told by a site with these rows."""
    return np.concatenate([_values(X, y, one) for one in told])


def jacobian(X: Array, y: Array, told: list[Told], rows: int) -> Array:
    """Their derivatives by the entries of each row but the intercept: numbers x rows x columns.

    X may be some of the site's rows; `rows` are all.
    """
    return np.concatenate([_jacobian(X, y, one) for one in told]) / rows


def _values(X: Array, y: Array, told: Told) -> Array:
    N, z = len(X), X @ told.theta
    p = expit(z)
    parts = [np.array([np.logaddexp(0, -y * z).mean()])] if told.cost else []
    if told.gradient:
        parts.append((p - (y > 0)) @ X / N)
    if not (told.whole or told.diagonal or told.vectors is not None):
        return np.concatenate(parts)
    H = X.T @ ((p * (1 - p))[:, None] * X) / N
    if told.whole:
        parts.append(H[np.triu_indices(len(H))])
    if told.diagonal:
        parts.append(np.diag(H))
    if told.vectors is not None:
        parts.append((told.vectors @ H).ravel())
    return np.concatenate(parts)


def _jacobian(X: Array, y: Array, told: Told) -> Array:
    n = X.shape[1]
    p = expit(X @ told.theta)
    first, second = p - (y > 0), p * (1 - p)
    third = second * (1 - 2 * p)
    theta, unit = told.theta[:-1], np.eye(n)[:, :-1]
    parts = [(first[:, None] * theta)[None]] if told.cost else []
    if told.gradient:
        parts.append(np.einsum("i,kj->kij", first, unit) + np.einsum("i,ik,j->kij", second, X, theta))
    if told.whole:
        a, b = np.triu_indices(n)
        parts.append(_of_products(X[:, a], X[:, b], unit[a], unit[b], second, third, theta))
    if told.diagonal:
        parts.append(_of_products(X, X, unit, unit, second, third, theta))
    for v in () if told.vectors is None else told.vectors:
        along = np.broadcast_to((X @ v)[:, None], X.shape)
        parts.append(_of_products(X, along, unit, np.tile(v[:-1], (n, 1)), second, third, theta))
    return np.concatenate(parts)


def _of_products(
    A: Array, B: Array, dA: Array, dB: Array, second: Array, third: Array, theta: Array
) -> Array:
    """The derivative of l''(z) a b, a and b being linear in the row: numbers x rows x columns."""
    outer = np.einsum("i,ik,ik,j->kij", third, A, B, theta)
    left = np.einsum("i,ik,kj->kij", second, B, dA)
    return outer + left + np.einsum("i,ik,kj->kij", second, A, dB)
