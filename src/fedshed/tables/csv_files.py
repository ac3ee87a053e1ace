"""Reads CSV files; separator, decimal mark and encoding are given, or detected and reported."""

from __future__ import annotations

import csv
import logging
import lzma
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed.tables.marks import MARKS

ENDINGS = (".gz", ".bz2", ".zst", ".xz", ".csv", ".tsv", ".txt", ".data")
SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 1 << 16  # bytes that are looked at for the separator
_NOTES = logging.getLogger("fedshed")
_WITH_COMMA = re.compile(r"[-+]?\d+(,\d+)?([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_DIGITS = re.compile(r"[-+]?\d+")
_WHOLE = r"^-?(0|[1-9]\d*)[.,]0*$"  # 3.0, as programs write a whole number beside missing values
_FIELDS = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


class CsvFormat(Struct, frozen=True):
    """The format of a CSV file; a field that is None is detected."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    na_values: tuple[str, ...] = ()  # marks for missing values, besides those of `tables.marks`
    header: tuple[str, ...] | None = None  # names of the columns, of a file that has none
    text: tuple[str, ...] = ()  # columns whose numbers are codes, read as they are written: 01 is not 1

    def __post_init__(self) -> None:
        if self.sep is not None and len(self.sep) != 1:
            raise ConfigError(f"sep must be one character, such as ';' or a tab, not {self.sep!r}")
        if self.decimal not in (None, ".", ","):
            raise ConfigError(f"decimal must be '.' or ',', not {self.decimal!r}")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ConfigError(
                    f"unknown encoding {self.encoding!r}; use for example utf-8 or latin-1"
                ) from None


FOUND_OUT = CsvFormat()


def read_csv(path: Path, form: CsvFormat = FOUND_OUT) -> Any:
    """The table in a CSV file; surprising detections are reported in the log `fedshed`."""
    try:
        with _opened(path) as file:
            start = file.read(SAMPLE)
        form = _with_encoding(path, start, form)
        form = replace(form, sep=form.sep or _separator(_text(start, form)))
        table, form = _decoded(path, form)
        _no_name_twice(path, table)
        table = _with_decimals(path, table, form)
        table = _with_codes_as_text(path, _with_long_digits_as_text(path, table, form), form)
        table = _named(path, table)
        _say_marks(path, table, form)
        return table
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def starts_with(path: Path, mark: bytes) -> bool:
    """Whether a file begins with these bytes."""
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    """The file, unpacked."""
    import pyarrow as pa

    if path.suffix == ".xz":
        return lzma.open(path)
    stream: AbstractContextManager[IO[bytes]] = pa.input_stream(str(path), compression="detect")
    return stream


def _arrow(
    path: Path, form: CsvFormat, types: Mapping[str, Any] | None = None, only: Sequence[str] = ()
) -> Any:
    """The table as Arrow reads it; with `only` some columns, in which no mark stands for a missing value."""
    from pyarrow import csv as arrow

    names = list(form.header) if form.header else None
    marks = [] if only else [*MARKS, *form.na_values]
    try:
        with _opened(path) as file:
            return arrow.read_csv(
                file,
                read_options=arrow.ReadOptions(column_names=names, encoding=form.encoding or "utf-8"),
                parse_options=arrow.ParseOptions(delimiter=form.sep or ","),
                convert_options=arrow.ConvertOptions(
                    null_values=marks, strings_can_be_null=True, include_columns=list(only),
                    decimal_point=form.decimal or ".", column_types=dict(types or {}),
                ),
            )  # fmt: skip
    except ValueError as error:  # ArrowInvalid is one
        raise DataError(f"{path}: {_sentence(str(error), form)}") from error


def _sentence(error: str, form: CsvFormat) -> str:
    """What Arrow says of a file, without its rows, and what to do."""
    if found := _FIELDS.search(error):
        row, expected, got = found.groups()
        where = f"row {row} has" if row else "a row has"
        return (
            f"{where} {got} fields where the first has {expected}; if {form.sep!r} does not separate its "
            "columns, name what does (sep), or correct the row"
        )
    if "Empty CSV" in error:
        return "the file is empty; it needs a line of column names and rows"
    return f"it cannot be read as CSV ({error.splitlines()[0][:200]})"


# --- encoding ------------------------------------------------------------------------------------


def _with_encoding(path: Path, start: bytes, form: CsvFormat) -> CsvFormat:
    """Detect UTF-16 by its first bytes; refuse other files with zero bytes, which are not text."""
    if form.encoding is not None:
        return form
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return replace(form, encoding="utf-16")
    if b"\0" in start:
        raise DataError(f"{path} is not a text file; save its table as CSV or Parquet")
    return form


def _text(start: bytes, form: CsvFormat) -> str:
    return start.decode(form.encoding or "utf-8", errors="replace").removeprefix("\ufeff")


def _decoded(path: Path, form: CsvFormat) -> tuple[Any, CsvFormat]:
    """The table; a file that is not in UTF-8 is read as Windows-1252, the most frequent other encoding."""
    table = _arrow(path, form)
    if _is_text(table):
        return table, form
    if form.encoding is not None:
        raise DataError(f"{path} is not in {form.encoding}; name its encoding (encoding, --encoding)")
    for encoding, said in (("cp1252", "Windows-1252"), ("latin-1", "Latin-1")):
        try:
            other = replace(form, encoding=encoding)
            table = _arrow(path, other)
        except (UnicodeDecodeError, DataError):
            continue
        _NOTES.warning(
            "%s is not in UTF-8 and was read as %s; name the encoding if names look wrong", path, said
        )
        return table, other
    raise DataError(f"{path} is not in UTF-8; name its encoding (encoding, --encoding), or save it in UTF-8")


def _is_text(table: Any) -> bool:
    import pyarrow.types as types

    try:
        names = list(table.column_names)
    except UnicodeDecodeError:
        return False
    return bool(names) and not any(types.is_binary(kind) for kind in table.schema.types)


# --- separator -----------------------------------------------------------------------------------


def _separator(text: str) -> str:
    """The mark that cuts every line of the sample into as many fields as the first; else the comma."""
    lines = text.splitlines()[:200]
    lines = lines[:-1] if len(text) >= SAMPLE // 4 and len(lines) > 1 else lines  # the last may be cut off
    widths = {mark: _width(lines, mark) for mark in SEPARATORS}
    return max(SEPARATORS, key=lambda mark: widths[mark])


def _width(lines: Sequence[str], mark: str) -> int:
    """The number of fields of all lines, 0 if they differ or there is one only."""
    counts = {len(row) for row in csv.reader(lines, delimiter=mark) if row}
    return counts.pop() if len(counts) == 1 and counts != {1} else 0


# --- decimal mark --------------------------------------------------------------------------------


def _with_decimals(path: Path, table: Any, form: CsvFormat) -> Any:
    """The table with decimal commas read as such, if a column has them; one with points is then text.

    Beside decimal commas, 100.000 is most likely a hundred thousand, so it is not read as 100.
    """
    if form.decimal is not None:
        _say_points(path, table, form)
        return table
    with_comma = _columns_with_commas(table)
    if not with_comma:
        return table
    if all(with_comma.values()):
        _NOTES.warning(
            "%s: column %r seems to have commas between thousands, so it is text here; before you use it, "
            "write its numbers without them, or say that commas mark decimals (decimal = ',', --decimal ,)",
            path, next(iter(with_comma)),
        )  # fmt: skip
        return table
    first, *others = with_comma
    other = _arrow(path, replace(form, decimal=","))
    more = f" and {len(others)} more" if others else ""
    _NOTES.warning("%s: commas were read as decimal marks in column %r%s", path, first, more)
    if spoilt := [name for name in table.column_names if _became_text(table, other, name)]:
        _NOTES.warning(
            "%s: column %r has decimal commas and column %r points, which may stand between thousands; it is "
            "text here, so write both alike before you use it",
            path, first, spoilt[0],
        )  # fmt: skip
    return other


def _say_points(path: Path, table: Any, form: CsvFormat) -> None:
    """Say which columns became text because the decimal mark that was named is not theirs."""
    mark = "comma" if form.decimal == "," else "point"
    if form.decimal == ",":
        plain = _arrow(path, replace(form, decimal="."))
        lost = [name for name in table.column_names if _became_text(plain, table, name)]
    else:
        lost = [*_columns_with_commas(table)]
    if lost:
        _NOTES.warning(
            "%s: column %r does not have the decimal %s that was named for all files (decimal, --decimal), "
            "so it is text here; leave the option out, and each file's mark is found",
            path, lost[0], mark,
        )  # fmt: skip


def _columns_with_commas(table: Any) -> dict[str, bool]:
    """The columns of text that are all numbers with commas, and whether these may stand between thousands."""
    import pyarrow.types as types

    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_string(column.type):
            values = column.unique().drop_null().to_pylist()
            commas = [value for value in values if "," in value]
            thousands = all(map(_THOUSANDS.fullmatch, commas))
            whole = all(map(_DIGITS.fullmatch, set(values) - set(commas)))
            if commas and ((thousands and whole) or all(map(_WITH_COMMA.fullmatch, values))):
                found[name] = thousands and whole
    return found


def _became_text(before: Any, after: Any, name: str) -> bool:
    import pyarrow.types as types

    old, new = before.column(name), after.column(name)
    return bool(types.is_floating(old.type) and old.null_count < len(old) and types.is_string(new.type))


# --- whole numbers -------------------------------------------------------------------------------


def _with_long_digits_as_text(path: Path, table: Any, form: CsvFormat) -> Any:
    """The table, in which digits that no integer type holds are text, because Arrow would round them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for j, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0.0) >= 2.0**63:
            text = _arrow(path, form, {name: pa.string()}).column(name)
            if pc.any(pc.match_substring_regex(text, r"^[-+]?\d{17,}$")).as_py():
                table = table.set_column(j, name, text)
    return table


# --- codes ---------------------------------------------------------------------------------------


def _with_codes_as_text(path: Path, table: Any, form: CsvFormat) -> Any:
    """The table with the codes of the columns that `text` names as they are written; only 3.0 stays 3."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = (pa.types.is_string, pa.types.is_boolean, pa.types.is_null)
    kinds = {name: table.schema.field(name).type for name in form.text if name in table.column_names}
    codes = [name for name, kind in kinds.items() if not any(is_kept(kind) for is_kept in kept)]
    texts = _arrow(path, form, dict.fromkeys(codes, pa.string())) if codes else table
    for name in codes:
        text = pc.utf8_trim_whitespace(texts.column(name))
        if pc.all(pc.match_substring_regex(text, _WHOLE)).as_py():
            continue
        text = pc.replace_substring(text, ",", ".") if pa.types.is_floating(kinds[name]) else text
        table = table.set_column(table.column_names.index(name), name, text)
    return table


# --- marks for missing values --------------------------------------------------------------------


def _say_marks(path: Path, table: Any, form: CsvFormat) -> None:
    """Say which columns of text have the usual marks for missing values: one of them may be a level."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f.name for f in table.schema if pa.types.is_string(f.type) and table[f.name].null_count]
    if not names:
        return
    texts = _arrow(path, form, dict.fromkeys(names, pa.string()), only=names)
    usual = pa.array([mark for mark in MARKS if mark and mark not in form.na_values])
    for name in names:
        found = texts[name].filter(pc.is_in(texts[name], usual))
        if len(found):
            marks = " or ".join(map(repr, sorted(found.unique().to_pylist())))
            _NOTES.warning(
                "%s: column %r: the text %s was read as a missing value in %d rows; if it is a level, "
                "rename it",
                path, name, marks, len(found),
            )  # fmt: skip


# --- names ---------------------------------------------------------------------------------------


def _no_name_twice(path: Path, table: Any) -> None:
    names = [name for name in table.column_names if name.strip()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}: two columns are called {twice!r}; give each column a different name")


def _named(path: Path, table: Any) -> Any:
    """The table without row numbers and empty columns, which have no name; other columns must have one."""
    for j in reversed(range(table.num_columns)):
        if table.column_names[j].strip():
            continue
        empty = table.column(j).null_count == table.num_rows
        if j > 0 and not empty:
            raise DataError(f"{path}: column {j + 1} has no name; give it one in the first line")
        if not empty:
            _NOTES.warning(
                "%s: the first column has no name; it was taken for row numbers and left out", path
            )
        table = table.remove_column(j)
    return table
