"""Objectives of linear models: everything is a function of the margins z = X theta, computed once a point."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.arrays import Matrix, Scalars, Vector

Rows: TypeAlias = Any  # a dense float64 matrix or a scipy CSR array, one row an observation


class Point(Protocol):
    """A cost at one point."""

    @property
    def value(self) -> float:
        """f^(i)(theta)."""
        ...

    @property
    def gradient(self) -> Vector:
        """Gradient of f^(i) at theta."""
        ...

    @property
    def factor(self) -> Rows:
        """A matrix F with Hessian = F'F."""
        ...


class Objective(Protocol):
    """Data term of a local cost f^(i)."""

    @property
    def weight(self) -> float:
        """N_i, to which p_i is proportional."""
        ...

    @property
    def dim(self) -> int:
        """Dimension n of theta."""
        ...

    def at(self, theta: Vector) -> Point:
        """The cost at theta."""
        ...

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """f^(i)(theta + eta * direction) for each eta."""
        ...

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """The derivative of f^(i)(theta + eta * direction) by eta, for each eta."""
        ...


class LinearModel:
    """f(theta) = (1/N) sum_j l(x_j'theta, y_j); subclasses give l and its derivatives by the margin."""

    def __init__(self, X: Rows, y: NDArray[np.float64]) -> None:
        self.X, self.y = X, y
        self.weight = float(X.shape[0])
        self.dim = int(X.shape[1])

    def at(self, theta: Vector) -> LinearPoint:
        """The cost at theta: one product with X, shared by value, gradient and curvature."""
        return LinearPoint(self, self.X @ theta)

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Costs along a direction: two products with X, then O(N) a step size."""
        z, u = self.X @ theta, self.X @ direction
        return np.array([self.losses(z + eta * u).mean() for eta in etas])

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars:
        """Slopes along a direction, as cheap as costs: the mean of l'(z + eta u) u."""
        z, u = self.X @ theta, self.X @ direction
        return np.array([self.slopes(z + eta * u) @ u / self.weight for eta in etas])

    def unbounded_along(self, z: Vector) -> bool:
        """Whether the cost falls for ever along a direction with these margins: never by default."""
        return False

    def losses(self, z: Vector) -> Vector:
        """l(z_j, y_j)."""
        raise NotImplementedError

    def slopes(self, z: Vector) -> Vector:
        """dl/dz."""
        raise NotImplementedError

    def curvatures(self, z: Vector) -> Vector:
        """d2l/dz2, at least 0."""
        raise NotImplementedError


class LinearPoint:
    """A linear model at one point, by its margins z."""

    def __init__(self, model: LinearModel, z: Vector) -> None:
        self._model, self._z = model, z

    @property
    def value(self) -> float:
        """Mean loss."""
        return float(self._model.losses(self._z).mean())

    @property
    def gradient(self) -> Vector:
        """X'l'/N."""
        slopes = self._model.slopes(self._z) / self._model.weight
        return np.asarray(self._model.X.T @ slopes)

    @cached_property
    def factor(self) -> Rows:
        """F = diag(l''/N)^(1/2) X, dense or CSR as X is."""
        roots = np.sqrt(self._model.curvatures(self._z) / self._model.weight)
        X = self._model.X
        return X * roots[:, None] if isinstance(X, np.ndarray) else X.multiply(roots[:, None]).tocsr()


def gram(factor: Rows) -> Matrix:
    """F'F as a dense matrix."""
    product = factor.T @ factor
    return product if isinstance(product, np.ndarray) else product.toarray()
