"""Tables whose rows stay where they are, in a mapped file or in Arrow, until a block of them is needed."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError

COPIED = 1 << 27  # bytes as float64 up to which an Arrow table is copied: products are then quicker
WINDOW = 1 << 16  # numbers of an Arrow table read at a time where rows are chosen here and there


def is_mapped(X: Any) -> bool:
    """Whether X is an array of numbers in a file (numpy.memmap, or numpy.load with mmap_mode)."""
    if not isinstance(X, np.ndarray) or isinstance(X, np.ma.MaskedArray) or X.ndim != 2:
        return False
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap) and X.dtype.kind in "biuf" and X.dtype.itemsize <= 8


def is_arrow(X: Any) -> bool:
    """Whether X is one of pyarrow's tables or streams of rows, told without importing pyarrow."""
    return type(X).__module__.partition(".")[0] == "pyarrow" and hasattr(X, "schema")


def arrow_table(where: str, X: Any) -> Any:
    """A pyarrow.Table, or an error that says how to get one."""
    import pyarrow as pa

    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        return X
    raise DataError(
        f"{where}: X is a pyarrow {type(X).__name__}, which cannot be read repeatedly; "
        "give a pyarrow.Table (docs/large.md maps one from a file)"
    )


def is_large(table: Any) -> bool:
    """Whether a copy of an Arrow table would take more than COPIED bytes."""
    return bool(8 * table.num_rows * table.num_columns > COPIED)


class ReadRows:
    """Rows that are read from one place to another; chosen ones come from the windows they lie in."""

    shape: tuple[int, int]
    window = WINDOW

    def __getitem__(self, rows: Any) -> NDArray[np.float64]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            return self._read(start, stop)
        return self._chosen(np.arange(self.shape[0])[rows])

    def _read(self, start: int, stop: int) -> NDArray[np.float64]:
        raise NotImplementedError

    def _chosen(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Rows in any order, from the windows they lie in: Arrow's own `take` may join all chunks first."""
        size = max(1, self.window // max(self.shape[1], 1))
        order = np.argsort(rows, kind="stable")
        X, windows = np.empty((len(rows), self.shape[1])), rows[order] // size
        for here in np.split(order, np.flatnonzero(np.diff(windows)) + 1) if len(rows) else []:
            start = int(rows[here[0]]) // size * size
            X[here] = self._read(start, min(start + size, self.shape[0]))[rows[here] - start]
        return X


class ArrowRows(ReadRows):
    """The rows of an Arrow table of numbers: float64, column after column, NaN where one is null."""

    def __init__(self, where: str, table: Any) -> None:
        import pyarrow.types as types

        numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
        for field in table.schema:
            if not any(is_kind(field.type) for is_kind in numeric):
                raise DataError(
                    f"{where}, column {field.name!r}: X holds values of type {field.type}, not real numbers; "
                    "encode or drop it"
                )
        self._table, self.shape = table, table.shape

    def _read(self, start: int, stop: int) -> NDArray[np.float64]:
        X = np.empty((stop - start, self.shape[1]), order="F")  # a column of the block is a copy of Arrow's
        for j, column in enumerate(self._table.slice(start, stop - start).columns):
            X[:, j] = _floats(column)
        return X


def _floats(column: Any) -> NDArray[Any]:
    """The numbers of an Arrow column; numpy converts integers and floats itself."""
    import pyarrow as pa

    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    values = column if plain else column.cast(pa.float64(), safe=False)
    return np.asarray(values.to_numpy())
