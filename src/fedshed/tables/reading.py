"""Tables from files, one for each site: CSV, Parquet or Arrow, with a column of sites or a file for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed._utils.files import in_words
from fedshed.tables import lazy
from fedshed.tables.columns import Column
from fedshed.tables.csv_files import ENDINGS as CSV_ENDINGS
from fedshed.tables.csv_files import FOUND_OUT, CsvFormat, read_csv, starts_with
from fedshed.tables.frames import Frame

_ENDINGS = (*CSV_ENDINGS, ".parquet", ".pq", ".arrow", ".feather")
# what other programs write, by the end of the name or by the first bytes
_OTHERS = {
    ".xlsx": "an Excel workbook", ".xls": "an Excel workbook", ".xlsm": "an Excel workbook",
    ".ods": "a spreadsheet", ".dta": "a Stata file", ".sav": "an SPSS file", ".sas7bdat": "a SAS file",
    ".rds": "an R file", ".rdata": "an R file", ".json": "a JSON file",
    ".pdf": "a PDF document",
}  # fmt: skip
_ARROW = b"ARROW1"  # an Arrow IPC file, of which Feather is a name
_MAGIC = {
    b"PK\x03\x04": "an Excel workbook or a zip archive", b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"FEA1": "a Feather file of version 1",
}  # fmt: skip


def read_sites(
    paths: Sequence[str | Path], *, site: str | None = None, keep: bool = False, csv: CsvFormat = FOUND_OUT
) -> dict[str, Any]:
    """The table of each site, from one file with a column `site` or from one file per site.

    A site of the second kind has the name of its file. `csv` gives the format of CSV files; what it leaves
    open is detected. `keep` leaves the column `site` in the tables.
    """
    tables: dict[str, Any] = {}
    csv = csv if site is None else replace(csv, text=(*csv.text, site))
    for path in map(Path, paths):
        table = read_table(path, csv)
        found = {_stem(path): table} if site is None else _located(path, table, site, keep)
        if twice := sorted(set(found) & set(tables)):
            raise DataError(f"{path}: site {twice[0]!r} is in another file too; give each site one table")
        tables |= found
    if not tables:
        raise DataError("no table was given; name at least one CSV, Parquet or Arrow file")
    return tables


def read_table(path: str | Path, csv: CsvFormat = FOUND_OUT) -> Any:
    """An Arrow table from a CSV (also .gz, .bz2, .zst, .xz), Parquet or Arrow file, which is mapped."""
    path = Path(path)
    _check_file(path)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError("reading tables needs pyarrow: pip install 'fedshed[data]'") from error
    try:
        if path.suffix in (".arrow", ".feather") or starts_with(path, _ARROW):
            return mapped(path)
        is_parquet = path.suffix in (".parquet", ".pq") or starts_with(path, b"PAR1")
        return _parquet(path) if is_parquet else read_csv(path, csv)
    except OSError as error:
        raise DataError(in_words(error)) from error
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def mapped(path: Path) -> Any:
    """The table of an Arrow IPC file, whose rows stay there until they are needed."""
    import pyarrow as pa

    if not starts_with(path, _ARROW):
        raise DataError(f"{path} is not an Arrow IPC file; write it with pyarrow.ipc.new_file")
    file = pa.memory_map(str(path))
    whole, reader = file.read_buffer(), pa.ipc.open_file(file)
    large = reader.num_record_batches and whole.size > lazy.COPIED
    if large and not _within(whole, reader.get_batch(0)):
        raise DataError(
            f"{path} is a large compressed Arrow file, whose rows cannot stay in the file; "
            "write it without compression (pyarrow.ipc.new_file does)"
        )
    return reader.read_all()


def _within(whole: Any, batch: Any) -> bool:
    """Whether the rows of a batch are those of the mapped file, not copies of them."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer and buffer.size]
    return all(0 <= buffer.address - whole.address < whole.size for buffer in buffers)


def _check_file(path: Path) -> None:
    """Refuse what is no file, and what is no table, by its name."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the files in it, such as {path / '*.csv'}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    kind = _OTHERS.get(path.suffix.lower()) or next(
        (kind for mark, kind in _MAGIC.items() if starts_with(path, mark)), None
    )
    if kind is not None:
        raise DataError(f"{path} is {kind}; save its table as CSV or Parquet")


def split(table: Any, column: str, keep: bool = False) -> dict[str, Any]:
    """The rows of each site, by a column that names it; without that column unless it is to be kept."""
    sites = Frame(table).column(column).as_category()
    if lost := int(sites.missing.sum()):
        raise DataError(
            f"column {column!r} names no site in {lost} rows; fill in the column or drop those rows"
        )
    frame = nw.from_native(table, eager_only=True)
    kept = frame if keep else frame.drop(column)
    if lazy.is_arrow(table) and lazy.is_large(table):
        return _slices(kept.to_native(), column, sites)
    return {
        level: kept.filter((sites.values == j).tolist()).to_native() for j, level in enumerate(sites.levels)
    }


def _slices(table: Any, column: str, sites: Column) -> dict[str, Any]:
    """The rows of each site of a table that is not to be copied, where they follow each other."""
    begins = np.flatnonzero(np.diff(sites.values, prepend=-1))
    if len(begins) > len(sites.levels):
        raise DataError(
            f"the rows of a site (column {column!r}) are not next to each other, so they cannot stay in "
            "their file; sort the table by that column, or write a file for each site"
        )
    ends = [*begins[1:].tolist(), len(sites.values)]
    places = zip(begins.tolist(), ends, strict=True)
    return {sites.levels[sites.values[start]]: table.slice(start, end - start) for start, end in places}


def _located(path: Path, table: Any, site: str, keep: bool) -> Mapping[str, Any]:
    try:
        return split(table, site, keep)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as parquet

    return parquet.read_table(path)


def _stem(path: Path) -> str:
    """The name of a file without what says how it is written."""
    while path.suffix in _ENDINGS:
        path = path.with_suffix("")
    return path.name
