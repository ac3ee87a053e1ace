"""Tables from files, one for each site: CSV or Parquet, with a column of sites or a file for each."""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from fedshed.errors import ConfigError, DataError
from fedshed.preparation.frames import Frame

_ENDINGS = (".gz", ".bz2", ".zst", ".xz", ".csv", ".parquet", ".pq", ".txt", ".data")
EMPTY = ("",)  # what a CSV file writes for a missing value, unless the reader says otherwise


def read_sites(
    paths: Sequence[str | Path],
    *,
    site: str | None = None,
    na_values: Sequence[str] = EMPTY,
    header: Sequence[str] | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """A table for each site: those of the column `site`, or one file each, named by the file.

    `na_values` are the marks for missing values in CSV files; `header` names the columns of files without.
    `keep` leaves the column `site` in the tables.
    """
    tables: dict[str, Any] = {}
    for path in map(Path, paths):
        table = read_table(path, na_values=na_values, header=header)
        found = {_stem(path): table} if site is None else _located(path, table, site, keep)
        if twice := sorted(set(found) & set(tables)):
            raise DataError(f"{path}: site {twice[0]!r} is in another file too; give each site one table")
        tables |= found
    if not tables:
        raise DataError("no table was given; name at least one CSV or Parquet file")
    return tables


def read_table(
    path: str | Path, *, na_values: Sequence[str] = EMPTY, header: Sequence[str] | None = None
) -> Any:
    """An Arrow table from a CSV (also .gz, .bz2, .zst, .xz) or Parquet file."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError("reading tables needs pyarrow: install fedshed[data]") from error
    try:
        if path.suffix in (".parquet", ".pq"):
            return _parquet(path)
        table = _csv(path, na_values, header)
        _check_text(path, table)
        return table
    except (pa.ArrowException, OSError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def split(table: Any, column: str, keep: bool = False) -> dict[str, Any]:
    """The rows of each site, by a column that names it; without that column unless it is to be kept."""
    sites = Frame(table).column(column).as_category()
    if lost := int(sites.missing.sum()):
        raise DataError(f"column {column!r} names no site in {lost} rows; fill it in or drop those rows")
    frame = nw.from_native(table, eager_only=True)
    kept = frame if keep else frame.drop(column)
    return {
        level: kept.filter((sites.values == j).tolist()).to_native() for j, level in enumerate(sites.levels)
    }


def _located(path: Path, table: Any, site: str, keep: bool) -> Mapping[str, Any]:
    try:
        return split(table, site, keep)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as parquet

    return parquet.read_table(path)


def _csv(path: Path, na_values: Sequence[str], header: Sequence[str] | None) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    names = csv.ReadOptions(column_names=list(header) if header else None)
    missing = csv.ConvertOptions(null_values=list(na_values), strings_can_be_null=True)
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            return csv.read_csv(file, read_options=names, convert_options=missing)
    with pa.input_stream(str(path), compression="detect") as stream:
        return csv.read_csv(stream, read_options=names, convert_options=missing)


def _check_text(path: Path, table: Any) -> None:
    """Refuse a CSV file that was read as something it is not: in another encoding, or with another mark."""
    import pyarrow.types as types

    try:
        names = list(table.column_names)
    except UnicodeDecodeError:
        names = []
    if not names or any(types.is_binary(kind) for kind in table.schema.types):
        raise DataError(f"{path} is not in UTF-8; save it in that encoding")
    if len(names) == 1 and (mark := next((m for m in ";\t|" if m in names[0]), None)):
        raise DataError(f"{path} separates its columns by {mark!r}; save it with commas")


def _stem(path: Path) -> str:
    """The name of a file without what says how it is written."""
    while path.suffix in _ENDINGS:
        path = path.with_suffix("")
    return path.name
