"""Tables of one shape in one array, for the products of all of them at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from fedshed.linalg.arrays import HOST, Host, Matrix, Vector
from fedshed.linalg.rows import Rows

Array: TypeAlias = Any  # of NumPy, or of a device


class DenseRows:
    """The rows of equally many observations each, models x rows x columns."""

    def __init__(self, tables: list[Matrix], device: Host = HOST) -> None:
        self._device, self.X = device, device.asarray(np.stack(tables))

    def views(self, tables: list[Matrix]) -> list[Rows]:
        """Each table, in the stack; as it was where the stack is on a device."""
        return list(self.X) if self._device is HOST else list(tables)

    def times(self, theta: Vector) -> Array:
        """X_i theta, a row for each model."""
        return self.X @ self._device.asarray(theta)

    def transposed_times(self, slopes: Array) -> Array:
        """X_i's_i, a row for each model."""
        return (self._device.xp.matrix_transpose(self.X) @ slopes[:, :, None])[:, :, 0]


class SparseRows:
    """The same of CSR tables: one below the other, and along a diagonal for the transposed product."""

    def __init__(self, tables: list[Any]) -> None:
        from scipy.sparse import csr_array, vstack

        self._X = X = csr_array(vstack(tables, format="csr"))
        (rows, n), count = tables[0].shape, len(tables)
        self._shape = count, rows
        kind = X.indices.dtype  # wide enough: the gradients of a stack are few
        shift = np.repeat(np.arange(count, dtype=kind) * n, [table.nnz for table in tables])
        blocks = csr_array((X.data, X.indices + shift, X.indptr), shape=(count * rows, count * n))
        self._transposed = blocks.T

    def views(self, tables: list[Any]) -> list[Rows]:
        """Each table as it was, its numbers in the stack."""
        ends = np.cumsum([table.nnz for table in tables])
        parts = [slice(end - table.nnz, end) for table, end in zip(tables, ends, strict=True)]
        data, indices = self._X.data, self._X.indices
        return [
            type(t)((data[part], indices[part], t.indptr), shape=t.shape)
            for t, part in zip(tables, parts, strict=True)
        ]

    def times(self, theta: Vector) -> Matrix:
        """X_i theta, a row for each model."""
        return np.asarray(self._X @ theta).reshape(self._shape)

    def transposed_times(self, slopes: Matrix) -> Matrix:
        """X_i's_i, a row for each model."""
        return np.asarray(self._transposed @ slopes.ravel()).reshape(self._shape[0], -1)
