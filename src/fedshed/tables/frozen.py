"""A table as bytes, for the time of a study or for another process."""

from __future__ import annotations

import os
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from fedshed._utils.errors import ConfigError, DataError
from fedshed.tables.columns import declared_order


def arrow_table(site: str, table: Any) -> Any:
    """A table of any kind that `fit` takes, as Arrow."""
    import narwhals.stable.v2 as narwhals

    pa = needed("pyarrow", "data")
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, dict):
            return pa.table(table)
        native = narwhals.from_native(table, eager_only=True)
        return pa.table({name: _arrow_column(native[name]) for name in native.columns})  # without an index
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise DataError(f"site {site!r}: its table cannot be handed to a process: {error}") from error


def _arrow_column(series: Any) -> Any:
    """A column as Arrow; levels that the frame has in an order keep it."""
    pa, order = needed("pyarrow", "data"), declared_order(series)
    if order is None:
        return series.to_arrow()
    return series.to_arrow().cast(pa.dictionary(pa.int64(), pa.array(order).type, ordered=True))


def freeze(table: Any) -> bytes:
    """An Arrow table as bytes."""
    sink = needed("pyarrow", "data").BufferOutputStream()
    _write(table, sink)
    frozen: bytes = sink.getvalue().to_pybytes()
    return frozen


def freeze_to(path: Path, table: Any) -> None:
    """The same bytes in a new file that only its owner can read, batch by batch."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        _write(table, file)


def frozen_hash(table: Any) -> bytes:
    """The SHA-256 of the same bytes, batch by batch."""
    sink = _Hashed()
    _write(table, needed("pyarrow", "data").PythonFile(sink, "w"))
    return sink.hash.digest()


class _Hashed:
    """A file of which only the hash is kept."""

    closed = False

    def __init__(self) -> None:
        self.hash = sha256()

    def write(self, data: Any) -> None:
        """Some more bytes."""
        self.hash.update(data)

    def flush(self) -> None:
        """Nothing waits."""


def _write(table: Any, sink: Any) -> None:
    pa = needed("pyarrow", "data")
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def thaw(data: bytes | Path) -> Any:
    """The table again; that of a file is mapped."""
    pa = needed("pyarrow", "data")
    source = pa.memory_map(str(data)) if isinstance(data, Path) else pa.BufferReader(data)
    return pa.ipc.open_stream(source).read_all()


def needed(module: str, extra: str) -> Any:
    """A module of an extra, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"this needs {module}: pip install 'fedshed[{extra}]'") from None
