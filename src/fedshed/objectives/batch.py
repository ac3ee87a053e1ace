"""Many agents on a device: all costs, gradients and eigenpairs of models of one shape in one pass each.

Only the models' rows live there.  What an agent is asked for is computed for all of its stack when the first
one asks, and comes back as NumPy's numbers; messages, the Master and everything else stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from threading import RLock
from typing import Any

import numpy as np

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.columns import Batched, Narrow
from fedshed.linalg.device import Device
from fedshed.objectives import LinearModel, stacked
from fedshed.objectives.stack import Stack, StackAtPoint, StackedPoint
from fedshed.objectives.stacked_rows import Array, DenseRows

BYTES = 1 << 28  # of a stack, and of a table that is moved at all; an eigensolver may need 30 times as much
STEPS = 32  # step sizes of a search, each with a number for every row


def on_device(objectives: Mapping[str, LinearModel], device: Device) -> dict[str, LinearModel]:
    """The same models, those of dense tables on the device; sparse, multinomial and huge ones stay here."""
    groups: dict[Any, list[str]] = {}
    for name, model in objectives.items():
        groups.setdefault(_shape(model), []).append(name)
    left = groups.pop(None, [])
    together = stacked({name: objectives[name] for name in left})
    for shape, names in groups.items():
        most = BYTES // _bytes(*shape[1])
        for start in range(0, len(names), most):
            part = names[start : start + most]
            stack = DeviceStack([objectives[name] for name in part], device)
            together.update(zip(part, stack.models, strict=True))
    return {name: together[name] for name in objectives}


def _shape(model: LinearModel) -> tuple[Any, ...] | None:
    """What models of one stack have in common; None for one that stays where it is."""
    X = model.X
    if not (model.rowwise and isinstance(X, np.ndarray) and all(X.shape) and _bytes(*X.shape) <= BYTES):
        return None
    return type(model), X.shape, model.weights is None, model.offset is None


def _bytes(rows: int, columns: int) -> int:
    """What an agent takes of a stack's bound: its rows, its margins in a search, its Gram matrices."""
    return 8 * max(rows * max(columns, STEPS), 2 * min(rows, columns) ** 2)


class DeviceStack(Stack):
    """Models of one shape, their rows in one array of a device."""

    rows: DenseRows
    _device: Device

    def evaluate_at(self, theta: Vector) -> DeviceAtPoint:
        """All models at a point."""
        return DeviceAtPoint(self, theta)

    def factors(self, z: Array) -> Array:
        """F of each model, with Hessian = F'F."""
        return self.rows.X * self._xp.sqrt(self.curvatures(z))[:, :, None]

    def eigenpairs(self, z: Array) -> tuple[Array, Array]:
        """Falling eigenvalues of F'F, NaN where it is not finite, eigenvectors as rows; min(N, n) of each.

        By the shorter side: where N < n they are U'F, made unit, with the eigenvectors U of FF'.
        """
        xp, F = self._xp, self.factors(z)
        wide = F.shape[1] < F.shape[2]
        G = F if wide else xp.matrix_transpose(F)
        S = G @ xp.matrix_transpose(G)
        finite = xp.all(xp.isfinite(S), axis=(1, 2))[:, None]
        values, rows = self._device.eigenpairs(xp.where(finite[:, :, None], S, 0.0))
        return xp.where(finite, values, xp.nan), self._unit(rows @ F) if wide else rows

    def _unit(self, rows: Array) -> Array:
        norms = self._xp.linalg.vector_norm(rows, axis=2, keepdims=True)
        return rows / self._xp.where(norms > 0, norms, 1.0)


class DeviceAtPoint(StackAtPoint):
    """All models of a device's stack at one point, with their eigenpairs."""

    _stack: DeviceStack

    def __init__(self, stack: DeviceStack, theta: Vector) -> None:
        super().__init__(stack, theta)
        self._lock, self._here = RLock(), np.zeros((0, 0, 0))  # eigenvectors that were brought here

    def point(self, model: LinearModel, place: int) -> DevicePoint:
        """One of the models at the point."""
        return DevicePoint(model, self, place)

    def pairs(self, place: int, count: int) -> tuple[Scalars, Matrix]:
        """The leading eigenpairs of one model; those of all come here at once."""
        with self._lock:
            values, rows = self._spectra
            if (have := self._here.shape[1]) < count:
                self._here = self._stack.host(rows[:, : min(max(count, 2 * have), rows.shape[1]), :])
            here = self._here[place, :count].copy()  # not all of them, as long as one is kept
        if not np.isfinite(values[place, 0]):
            raise FloatingPointError("the curvature is not finite here")
        return values[place, :count], here

    @cached_property
    def _spectra(self) -> tuple[Matrix, Array]:
        """All eigenvalues, here, and eigenvectors, still there."""
        values, rows = self._stack.eigenpairs(self.z)
        return self._stack.host(values), rows


class DevicePoint(StackedPoint):
    """One of the models at a point; a factor is made here, for an algorithm that wants one."""

    _at_point: DeviceAtPoint

    @cached_property
    def narrow(self) -> Narrow | Batched:
        """The eigenpairs, drawn for all."""
        N, columns = self._model.X.shape[0], self._model.columns
        pairs = partial(self._at_point.pairs, self._place)
        return Batched(min(N, len(columns.chosen)), len(columns.place), pairs, self.narrow_factor)
