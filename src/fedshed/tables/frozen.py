"""A table as bytes, for the time of a study or for another process."""

from __future__ import annotations

from importlib import import_module
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
    pa = needed("pyarrow", "data")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    frozen: bytes = sink.getvalue().to_pybytes()
    return frozen


def thaw(data: bytes) -> Any:
    """The table again."""
    pa = needed("pyarrow", "data")
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()


def needed(module: str, extra: str) -> Any:
    """A module of an extra, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"this needs {module}: pip install 'fedshed[{extra}]'") from None
