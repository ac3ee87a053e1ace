"""Small tables of one shape in one process, evaluated together: one product, one pass over the rows of many.

What a model gets is what it would compute alone, bit for bit: each of its products is the same call on the
same rows, each of its sums runs over them in the same order.  The same classes serve a device of the array
API (linalg/batch.py), where the bits are the device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import FEW, HOST, Host, Matrix, Packed, Scalars, Vector, pack, pack_each
from fedshed.linalg.columns import Narrow
from fedshed.linalg.rows import Rows, diagonal, gram
from fedshed.objectives.base import LinearModel, LinearPoint
from fedshed.objectives.stacked_rows import Array, DenseRows, SparseRows
from fedshed.objectives.together import SharedEvaluation

Make: TypeAlias = Callable[[Any], NDArray[np.float64]]
LIGHT = 1 << 17  # entries of a table: of a larger one the products cost more than the calls
ROWS = 1 << 13  # rows of a stack: so many numbers stay in a core's cache, and need no fresh memory
FACTORS = 1 << 17  # entries of the factors that are made at a time: they stay in a core's cache
GRADIENTS = 1 << 20  # entries of all gradients of a stack


def stacked(objectives: Mapping[str, LinearModel]) -> dict[str, LinearModel]:
    """The same models, of which small ones of one shape share arrays and are evaluated together.

    Parameters
    ----------
    objectives : mapping of str to LinearModel
        The cost of each site.

    Returns
    -------
    dict of LinearModel
        Costs with the same values, to the bit.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.objectives import local_objectives, stacked
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> sorted(stacked(local_objectives(federation, "logistic"))) == list(federation.sites)
    True
    """
    groups: dict[Any, list[str]] = {}
    for name, model in objectives.items():
        groups.setdefault(_shape(model), []).append(name)
    together = dict(objectives)
    for shape, names in groups.items():
        for part in _parts(names, shape):
            stack = Stack([objectives[name] for name in part])
            together.update(zip(part, stack.models, strict=True))
    return together


def _shape(model: LinearModel) -> tuple[Any, ...] | None:
    """What models of one stack have in common; None for a model that is evaluated alone."""
    X = model.X
    size = X.size if isinstance(X, np.ndarray) else getattr(X, "nnz", LIGHT + 1)
    if not model.rowwise or size > LIGHT or 2 * X.shape[0] > ROWS or not all(X.shape):
        return None
    return type(model), type(X), X.shape, model.weights is None, model.offset is None


def _parts(names: list[str], shape: tuple[Any, ...] | None) -> Iterable[list[str]]:
    """Names in groups that make a stack each; one left over stays alone."""
    if shape is None:
        return
    rows, n = shape[2]
    most = min(ROWS // rows, GRADIENTS // n)
    for start in range(0, len(names), max(most, 1)):
        part = names[start : start + most]
        if len(part) > 1:
            yield part


class Stack:
    """Models of one shape, their rows in one array."""

    def __init__(self, models: list[LinearModel], device: Host = HOST) -> None:
        self._device, self._xp = device, device.xp
        first, tables = models[0], [m.X for m in models]
        self.rows = DenseRows(tables, device) if isinstance(first.X, np.ndarray) else SparseRows(tables)
        self._family = copy(first)  # its losses and their derivatives, with all responses
        self._family.y = device.asarray(np.stack([m.y for m in models]))
        self._weights = None if first.weights is None else self._joined([m.weights for m in models])
        self._offset = None if first.offset is None else self._joined([m.offset for m in models])
        self._weight = device.asarray(np.array([m.weight for m in models]))
        alone = device is HOST  # who asks first may compute alone where that gives the same bits
        self.at = SharedEvaluation(self.joint, alone)
        self.costs_along = SharedEvaluation(self._costs_along, alone)
        self.slopes_along = SharedEvaluation(self._slopes_along, alone)
        views = self.rows.views(tables)
        self.models = [
            self._seated(place, m, X) for place, (m, X) in enumerate(zip(models, views, strict=True))
        ]

    def _seated(self, place: int, model: LinearModel, X: Rows) -> LinearModel:
        """The model with its rows in the stack."""
        placed = type(model)(X, model.y, model.weights, model.offset)
        placed.clusters = model.clusters
        placed.slot = StackSlot(self, place)
        return placed

    def _joined(self, arrays: list[Any]) -> Array:
        return self._device.asarray(np.stack(arrays))

    def joint(self, theta: Vector) -> Joint:
        """All models at a point."""
        return Joint(self, theta)

    def margins(self, theta: Vector) -> Array:
        """z = X theta + offset, a row of margins for each model."""
        z = self.rows.times(theta)
        return z if self._offset is None else z + self._offset

    def host(self, x: Array) -> NDArray[np.float64]:
        """An array of the device as one of NumPy's that all models share, so none may change it."""
        shared = self._device.host(x)
        shared.flags.writeable = False
        return shared

    def values(self, z: Array) -> Vector:
        """Mean losses."""
        return self.host(self._mean(self._family.losses(z)))

    def gradients(self, z: Array) -> Matrix:
        """X'l'/N of each model."""
        return self.host(self.rows.transposed_times(self._shares(self._family.slopes(z))))

    def curvatures(self, z: Array) -> Array:
        """What each row adds to its model's curvature, l''/N."""
        return self._shares(self._family.curvatures(z))

    @property
    def here(self) -> bool:
        """Whether the numbers are NumPy's."""
        return self._device is HOST

    @property
    def dense_here(self) -> bool:
        """Whether the tables are dense, and here."""
        return self.here and isinstance(self.rows, DenseRows)

    @property
    def at_a_time(self) -> int:
        """Dense factors that stay in a core's cache."""
        return max(1, FACTORS // int(self.models[0].X.size))

    def whole(self, place: int, units: Vector | None) -> bool:
        """Whether a model has a dense table here, all of whose columns matter in these units."""
        model = self.models[place]
        columns = (model.columns if units is None else model.columns_in(units)) if self.dense_here else None
        return columns is not None and columns.all_kept

    def factors_of(self, roots: Matrix, places: list[int]) -> Array:
        """F = diag(l''/N)^(1/2) X of some models with a dense table, from the roots of all."""
        row = range(places[0], places[-1] + 1)
        chosen = slice(row.start, row.stop) if list(row) == places else places
        assert isinstance(self.rows, DenseRows)
        return self.rows.X[chosen] * roots[chosen][:, :, None]

    def _costs_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Matrix:
        z, u = self.at.found(theta).z, self.rows.times(direction)
        costs = [self._mean(self._family.losses(z + float(eta) * u)) for eta in etas]
        return self.host(self._xp.stack(costs, axis=1))

    def _slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Matrix:
        z, u = self.at.found(theta).z, self.rows.times(direction)
        steps = z + self._device.asarray(etas)[:, None, None] * u
        slopes = self._xp.permute_dims(self._family.slopes(steps), (1, 0, 2))
        return self.host((slopes @ self._shares(u)[:, :, None])[:, :, 0])

    def _mean(self, values: Array) -> Array:
        weighted = values if self._weights is None else values * self._weights
        return self._xp.sum(weighted, axis=-1) / self._weight

    def _shares(self, values: Array) -> Array:
        each = self._weight[:, None]
        return values / each if self._weights is None else values * (self._weights / each)


class StackSlot:
    """A model's place in a stack: what was computed for all, or None where nobody else has asked yet."""

    def __init__(self, stack: Stack, place: int) -> None:
        self.stack, self.place = stack, place

    def at(self, model: LinearModel, theta: Vector) -> LinearPoint | None:
        """The model at a point."""
        joint = self.stack.at(self.place, theta)
        return None if joint is None else joint.point(model, self.place)

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars | None:
        """Its costs along a direction."""
        costs = self.stack.costs_along(self.place, theta, direction, etas)
        return None if costs is None else costs[self.place]

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars | None:
        """Its slopes along a direction."""
        slopes = self.stack.slopes_along(self.place, theta, direction, etas)
        return None if slopes is None else slopes[self.place]


class Joint:
    """All models of a stack at one point."""

    def __init__(self, stack: Stack, theta: Vector) -> None:
        self._stack, self.z = stack, stack.margins(theta)

    def point(self, model: LinearModel, place: int) -> SeatedPoint:
        """One of the models at the point."""
        return SeatedPoint(model, self, place)

    def seated(self, place: int) -> SeatedPoint:
        """The model at a place, at the point."""
        return self.point(self._stack.models[place], place)

    def hessians(self, places: list[int]) -> Matrix:
        """The packed Hessians F'F of some models, each by the product that it would make alone."""
        alone = self._stack.models[0].dim > FEW
        return self._from_factors(places, _packed_gram, None if alone else _packed_grams)

    def diagonals(self, places: list[int]) -> Matrix:
        """The diagonals of the Hessians of some models."""
        return self._from_factors(places, diagonal, diagonal)

    def _from_factors(self, places: list[int], one: Make, all_of: Make | None) -> Matrix:
        """What is made of the factors of some models: of one, or of all together where they are dense."""
        if all_of is None or not self._stack.dense_here:
            return np.array([one(self.seated(place).factor) for place in places])
        step = self._stack.at_a_time
        starts = range(0, len(places), step)
        blocks = (self._stack.factors_of(self.roots, places[start : start + step]) for start in starts)
        return np.concatenate([all_of(F) for F in blocks])

    @cached_property
    def roots(self) -> Matrix:
        """The square roots of what each row adds to its model's curvature."""
        return np.asarray(np.sqrt(self._stack.curvatures(self.z)))

    @property
    def roots_here(self) -> Matrix | None:
        """The same, unless the stack is on a device."""
        return self.roots if self._stack.here else None

    @cached_property
    def margins(self) -> Matrix:
        """The margins as NumPy's numbers."""
        return self._stack.host(self.z)

    @cached_property
    def values(self) -> Vector:
        """The cost of each."""
        return self._stack.values(self.z)

    @cached_property
    def gradients(self) -> Matrix:
        """The gradient of each."""
        return self._stack.gradients(self.z)


class SeatedPoint(LinearPoint):
    """One model of a stack at a point; curvature is computed per model."""

    def __init__(self, model: LinearModel, joint: Joint, place: int) -> None:
        super().__init__(model, joint.margins[place])
        self._joint, self._place = joint, place

    @cached_property
    def value(self) -> float:
        """Mean loss."""
        return float(self._joint.values[self._place])

    @property
    def gradient(self) -> Vector:
        """X'l'/N."""
        return np.asarray(self._joint.gradients[self._place])

    @cached_property
    def factor(self) -> Rows:
        """F, from the roots of all models where these are here."""
        roots = self._joint.roots_here
        return super().factor if roots is None else self._model.rows_times(roots[self._place])

    def narrow_factor(self) -> Narrow:
        """The factor on the columns that matter, likewise."""
        roots = self._joint.roots_here
        narrow = None if roots is None else self._model.narrow_times(roots[self._place])
        return super().narrow_factor() if narrow is None else narrow


def _packed_gram(factor: Rows) -> Packed:
    return pack(gram(factor))


def _packed_grams(factors: Array) -> Matrix:
    return pack_each(np.matrix_transpose(factors) @ factors)
