"""Small tables of one shape in one process, evaluated together: one product, one pass over the rows of many.

What a model gets is what it would compute alone, bit for bit: each of its products is the same call on the
same rows, each of its sums runs over them in the same order.  The same classes serve a device of the array
API (linalg/batch.py), where the bits are the device's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from threading import RLock
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import FEW, HOST, Host, Matrix, Packed, Scalars, Vector, pack_each
from fedshed.linalg.columns import Narrow
from fedshed.linalg.kernels import Kernel
from fedshed.linalg.rows import Rows, diagonal, with_units
from fedshed.linalg.spectrum import Leading, leading_together
from fedshed.objectives.base import LinearModel, LinearPoint
from fedshed.objectives.shared_evaluation import SharedEvaluation
from fedshed.objectives.stacked_rows import Array, DenseRows, SparseRows

Compute: TypeAlias = Callable[[Any], Sequence[Any] | NDArray[np.float64] | None]
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
        self.at = SharedEvaluation(self.evaluate_at, alone)
        self.costs_along = SharedEvaluation(self._costs_along, alone)
        self.slopes_along = SharedEvaluation(self._slopes_along, alone)
        views = self.rows.views(tables)
        self.models = [
            self._place_model(place, m, X) for place, (m, X) in enumerate(zip(models, views, strict=True))
        ]

    def _place_model(self, place: int, model: LinearModel, X: Rows) -> LinearModel:
        """The model with its rows in the stack."""
        placed = type(model)(X, model.y, model.weights, model.offset)
        placed.clusters = model.clusters
        placed.slot = StackSlot(self, place)
        return placed

    def _joined(self, arrays: list[Any]) -> Array:
        return self._device.asarray(np.stack(arrays))

    def evaluate_at(self, theta: Vector) -> StackAtPoint:
        """All models at a point."""
        return StackAtPoint(self, theta)

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

    def has_all_columns(self, place: int, units: Vector | None) -> bool:
        """Whether all columns of a model's table matter in these units: none is empty, no two are equal."""
        model = self.models[place]
        columns = model.columns if units is None else model.columns_in(units)
        return columns is not None and columns.all_kept

    def _costs_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Matrix:
        z, u = self.at.evaluate(theta).z, self.rows.times(direction)
        costs = [self._mean(self._family.losses(z + float(eta) * u)) for eta in etas]
        return self.host(self._xp.stack(costs, axis=1))

    def _slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Matrix:
        z, u = self.at.evaluate(theta).z, self.rows.times(direction)
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
        at_point = self.stack.at(self.place, theta)
        return None if at_point is None else at_point.point(model, self.place)

    def along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars | None:
        """Its costs along a direction."""
        costs = self.stack.costs_along(self.place, theta, direction, etas)
        return None if costs is None else costs[self.place]

    def slopes_along(self, theta: Vector, direction: Vector, etas: Scalars) -> Scalars | None:
        """Its slopes along a direction."""
        slopes = self.stack.slopes_along(self.place, theta, direction, etas)
        return None if slopes is None else slopes[self.place]


class StackAtPoint:
    """All models of a stack at one point."""

    def __init__(self, stack: Stack, theta: Vector) -> None:
        self._stack, self.z = stack, stack.margins(theta)

    def point(self, model: LinearModel, place: int) -> StackedPoint:
        """One of the models at the point."""
        return StackedPoint(model, self, place)

    @cached_property
    def factors(self) -> SharedFactors:
        """The factors of the models, a block at a time."""
        return SharedFactors(self._stack, self.roots)

    @cached_property
    def roots(self) -> Matrix:
        """The square roots of what each row adds to its model's curvature."""
        return np.asarray(np.sqrt(self._stack.curvatures(self.z)))

    @property
    def dense_here(self) -> bool:
        """Whether the tables of the stack are dense, and here."""
        return self._stack.dense_here

    @property
    def roots_here(self) -> Matrix | None:
        """The same, unless the stack is on a device."""
        return self.roots if self._stack.here else None

    @cached_property
    def margins(self) -> Matrix:
        """The margins as NumPy's numbers."""
        return self._stack.host(self.z)

    @cached_property
    def values(self) -> list[float]:
        """The cost of each."""
        costs: list[float] = self._stack.values(self.z).tolist()
        return costs

    @cached_property
    def gradients(self) -> list[Vector]:
        """The gradient of each."""
        return list(self._stack.gradients(self.z))


class FactorBlock:
    """Dense factors F of neighbouring models, from number `start` on, and what was computed from them."""

    def __init__(self, factors: Array, start: int, length: int, units: Vector | None = None) -> None:
        self.factors, self.start, self.stop, self.units = factors, start, start + length, units
        self.results: dict[Hashable, Sequence[Any] | NDArray[np.float64] | None] = {}

    def has(self, place: int, units: Vector | None) -> bool:
        """Whether a model's factor in these units is here."""
        return self.start <= place < self.stop and self.units is units


NO_BLOCK = FactorBlock(None, 0, 0)


class SharedFactors:
    """Dense factors of the models of a stack at a point, in blocks that stay in a core's cache.

    Models are asked one after the other, so one that follows another has as many more computed as stay in
    cache: what is computed for nobody is at most a block.  One block is kept, and blocks of at most
    `MOST_BLOCKS` stacks.
    """

    def __init__(self, stack: Stack, roots: Matrix) -> None:
        self._stack, self._roots, self._lock, self.block = stack, roots, RLock(), NO_BLOCK

    def result(self, place: int, key: Hashable, compute: Compute, units: Vector | None = None) -> Any | None:
        """What `compute` makes of the factors of a block, for the model at a place; None: alone."""
        with self._lock:
            block = self.block
            if not block.has(place, units):
                self.block = block = self._next_block(block, place, units)
                _keep(self)
            if block.factors is None:
                return None
            if key not in block.results:
                block.results[key] = compute(block.factors)
            found = block.results[key]
            return None if found is None else found[place - block.start]

    def _next_block(self, last: FactorBlock, place: int, units: Vector | None) -> FactorBlock:
        """The block that begins at a place; without factors where it has one model."""
        length, stack = 0, self._stack
        follows = place == last.stop and last.units is units
        most = min(stack.at_a_time, len(stack.models) - place) if follows else 1
        while length < most and stack.has_all_columns(place + length, units):
            length += 1
        if length < 2:
            return FactorBlock(None, place, 1, units)
        assert isinstance(stack.rows, DenseRows)
        rows = slice(place, place + length)
        F = stack.rows.X[rows] * self._roots[rows, :, None]
        return FactorBlock(F if units is None else with_units(F, 1 / units), place, length, units)


RECENT: deque[ref[SharedFactors]] = deque()  # weak: nothing outlives its run
MOST_BLOCKS = 16  # of a megabyte each


def _keep(shared: SharedFactors) -> None:
    """Keep the block of these factors, and drop the oldest of too many."""
    if not any(other() is shared for other in RECENT):
        RECENT.append(ref(shared))
        while len(RECENT) > MOST_BLOCKS:
            if (oldest := RECENT.popleft()()) is not None:
                oldest.block = NO_BLOCK


class StackedPoint(LinearPoint):
    """One model of a stack at a point; curvature is computed for blocks of neighbouring models."""

    def __init__(self, model: LinearModel, at_point: StackAtPoint, place: int) -> None:
        self._model, self._at_point, self._place = model, at_point, place

    @cached_property
    def _z(self) -> NDArray[np.float64]:  # type: ignore[override]  # a row of all margins, where it is needed
        return np.asarray(self._at_point.margins[self._place])

    @property
    def value(self) -> float:
        """Mean loss."""
        return self._at_point.values[self._place]

    @property
    def gradient(self) -> Vector:
        """X'l'/N."""
        return self._at_point.gradients[self._place]

    @cached_property
    def factor(self) -> Rows:
        """F, from the roots of all models where these are here."""
        roots = self._at_point.roots_here
        return super().factor if roots is None else self._model.rows_times(roots[self._place])

    @property
    def hessian(self) -> Packed:
        """The Hessian F'F, packed."""
        found = self._shared("hessian", _packed_grams) if self._model.dim <= FEW else None
        return super().hessian if found is None else found

    @property
    def diagonal(self) -> Vector:
        """The diagonal of F'F."""
        found = self._shared("diagonal", diagonal)
        return super().diagonal if found is None else found

    def leading_eigenpairs(self, count: int, kernel: Kernel, units: Vector | None = None) -> Leading:
        """At least the first `count` eigenpairs of F'F, or of it in these units."""
        found = self._shared((count, kernel), lambda F: leading_together(F, count, kernel), units)
        return super().leading_eigenpairs(count, kernel, units) if found is None else found

    def trace(self, units: Vector | None = None) -> float:
        """The trace of F'F in these units."""
        found = self._shared("trace", lambda F: diagonal(F).sum(axis=1).tolist(), units)
        return super().trace(units) if found is None else found

    def _shared(self, key: Hashable, compute: Compute, units: Vector | None = None) -> Any | None:
        """A result that is computed with those of neighbours, where the tables are dense and here."""
        if not self._at_point.dense_here:
            return None
        return self._at_point.factors.result(self._place, key, compute, units)

    def narrow_factor(self) -> Narrow:
        """The factor on the columns that matter, likewise."""
        roots = self._at_point.roots_here
        narrow = None if roots is None else self._model.narrow_times(roots[self._place])
        return super().narrow_factor() if narrow is None else narrow


def _packed_grams(factors: Array) -> Matrix:
    return pack_each(np.matrix_transpose(factors) @ factors)
