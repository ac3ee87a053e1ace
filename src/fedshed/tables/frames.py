"""Columns of any frame (pandas, polars, Arrow, a dict of arrays) as numbers, or as codes and levels."""

from __future__ import annotations

import logging
import numbers
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.tables.marks import is_mark
from fedshed.tables.stored import missing as is_missing
from fedshed.tables.stored import vector

Kind: TypeAlias = Literal["number", "category", "boolean"]
LONGEST = 200  # characters of a level or a name
LARGEST = 2**53  # beyond it, whole numbers are not told apart by float64
_NOTES = logging.getLogger("fedshed")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a site: float64 numbers (NaN is missing), or codes of its own levels (-1 is missing)."""

    kind: Kind
    values: NDArray[Any]
    levels: tuple[str, ...] = ()
    declared: bool = False  # the frame itself calls it a category
    ordered: bool = False  # and says in which order its levels are
    from_numbers: bool = False  # its levels were numbers, which have no leading zeros

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which rows have no value."""
        lost: NDArray[np.bool_] = np.isnan(self.values) if self.kind == "number" else self.values < 0
        return lost

    def take(self, rows: NDArray[np.bool_]) -> Column:
        """These rows only, and the levels that occur in them."""
        values = self.values[rows]
        if self.kind == "number":
            return replace(self, values=values)
        occurring = np.unique(values[values >= 0])
        recoded = np.full(len(self.levels) + 1, -1, dtype=np.intp)  # the last entry is that of -1
        recoded[occurring] = np.arange(len(occurring))
        return replace(self, values=recoded[values], levels=tuple(self.levels[j] for j in occurring))

    def as_category(self) -> Column:
        """Numbers as categories: 2 and 2.0 are the level '2'."""
        if self.kind != "number":
            return replace(self, kind="category")
        found, codes = np.unique(self.values, return_inverse=True)
        known = found[~np.isnan(found)]
        codes = np.where(codes < len(known), codes, -1)
        levels = tuple(level_text(value) for value in known.tolist())
        return Column("category", codes, levels, from_numbers=True)


class Frame:
    """A caller's frame, read column by column when one is needed."""

    def __init__(self, native: Any) -> None:
        columns = _arrays(native) if isinstance(native, Mapping) else _series(native)
        self._columns = {name: columns[name] for name in columns if not _is_row_number(name)}
        if len(self._columns) < len(columns):
            left = next(name for name in columns if name not in self._columns)
            _NOTES.warning("column %r was left out: it is the row number that pandas writes", left)
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise DataError(f"the columns have different lengths ({sorted(lengths)}); give one value per row")
        self.rows = lengths.pop() if lengths else 0
        self._read: dict[str, Column] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(self._columns)

    def column(self, name: str) -> Column:
        """A column, or an error that names the one perhaps meant."""
        if name not in self._columns:
            near = get_close_matches(name, self.names, n=1)  # a site does not tell what else it has
            hint = f"did you mean {near[0]!r}?" if near else "add it, or correct its name in the study"
            raise DataError(f"there is no column {name!r}; {hint}")
        if name not in self._read:
            self._read[name] = _column(name, self._columns[name])
        return self._read[name]

    def take(self, rows: NDArray[np.bool_]) -> Frame:
        """These rows only: its columns are read as those of all rows, and then cut."""
        return _Part(self, rows)


class _Part(Frame):
    """Some rows of a frame."""

    def __init__(self, whole: Frame, rows: NDArray[np.bool_]) -> None:
        self._whole, self._rows, self._columns = whole, rows, whole._columns
        self.rows, self._read = int(rows.sum()), {}

    def column(self, name: str) -> Column:
        """A column of these rows."""
        if name not in self._read:
            self._read[name] = self._whole.column(name).take(self._rows)
        return self._read[name]


def _is_row_number(name: str) -> bool:
    """Whether a column is an index that pandas wrote: "Unnamed: 0" in CSV, __index_level_0__ in Parquet."""
    return re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name) is not None


def level_text(value: object) -> str:
    """A level as text: that of a whole number has no decimals."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Real | Decimal):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value)


def in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """Levels in the order a reader expects: numbers by size, B2 before B10."""
    found = list(levels)
    try:
        return tuple(sorted(found, key=lambda level: (float(level), level)))
    except ValueError:
        return tuple(sorted(found, key=lambda level: (_parts(level), level)))


def common_order(orders: Iterable[Sequence[str]]) -> tuple[str, ...] | None:
    """One order of all levels that agrees with each of several; None if two contradict each other."""
    before: TopologicalSorter[str] = TopologicalSorter()
    for levels in orders:
        for j, level in enumerate(levels):
            before.add(level, *levels[max(j - 1, 0) : j])
    try:
        before.prepare()
    except CycleError:
        return None
    found: list[str] = []
    while before.is_active():
        ready = in_order(before.get_ready())
        found += ready
        before.done(*ready)
    return tuple(found)


def _parts(level: str) -> list[Any]:
    """Text and numbers in turn, so that two levels can always be compared."""
    return [int(part) if j % 2 else part for j, part in enumerate(re.split(r"(\d+)", level))]


def _arrays(native: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): vector("the table", f"column {str(name)!r}", values) for name, values in native.items()
    }


def _series(native: Any) -> dict[str, Any]:
    try:
        frame = nw.from_native(native, eager_only=True)
        return {str(name): frame.get_column(name) for name in frame.columns}
    except TypeError as error:
        raise DataError(
            f"a table must be a DataFrame (pandas, polars, Arrow) or a dict of arrays, "
            f"not {type(native).__name__}"
        ) from error
    except nw.exceptions.NarwhalsError as error:
        raise DataError(f"the table cannot be read ({error}); give each column a name of its own") from error


def _column(name: str, values: Any) -> Column:
    if isinstance(values, nw.Series):
        return _from_series(name, values)
    if values.dtype.kind in "iuf":
        _check_size(name, values)
        return Column("number", values.astype(np.float64))
    if values.dtype.kind == "b":
        return _boolean(values)
    return _from_objects(name, values.tolist())


def _from_series(name: str, series: nw.Series[Any]) -> Column:
    if series.dtype.is_numeric() and not isinstance(series.dtype, nw.Decimal):
        lost = series.is_null().to_numpy()
        if series.dtype.is_integer():
            _check_size(name, series.drop_nulls().to_numpy())
        values = np.array(series.cast(nw.Float64).fill_null(0.0).to_numpy(), dtype=np.float64)
        values[lost] = np.nan
        return Column("number", values)
    if series.dtype == nw.Boolean and not series.is_null().any():
        return _boolean(series.to_numpy())
    if isinstance(series.dtype, nw.Categorical | nw.Enum):
        return _declared(name, series)
    return _from_objects(name, series.to_list())


def _declared(name: str, series: nw.Series[Any]) -> Column:
    """A column that the frame calls a category: a level NA is a level there, and an order is kept."""
    column = replace(_from_objects(name, series.to_list(), marks=False).as_category(), declared=True)
    order = declared_order(series)
    if order is None:
        return column
    rank = {level_text(value): j for j, value in enumerate(order)}
    levels = sorted(column.levels, key=rank.__getitem__)
    new = {level: j for j, level in enumerate(levels)}
    place = np.array([*(new[level] for level in column.levels), -1], dtype=np.intp)  # the last is that of -1
    return replace(column, values=place[column.values], levels=tuple(levels), ordered=True)


def declared_order(series: nw.Series[Any]) -> tuple[Any, ...] | None:
    """The categories of a Categorical or Enum, if someone has put them in an order; else None.

    An Enum and an ordered Categorical have one.  pandas sorts the categories of `astype("category")`, so
    others were given by hand.
    """
    if isinstance(series.dtype, nw.Enum):
        return tuple(series.cat.get_categories().to_list())
    if series.implementation.is_pyarrow():
        return tuple(series.cat.get_categories().to_list()) if series.to_native().type.ordered else None
    if not isinstance(series.dtype, nw.Categorical) or not series.implementation.is_pandas():
        return None
    categories = tuple(series.cat.get_categories().to_list())
    try:
        return None if list(categories) == sorted(categories) else categories
    except TypeError:  # of several types, which have no order
        return None


def _check_size(name: str, values: NDArray[Any]) -> None:
    """Refuse whole numbers that would be rounded: they name something, and measure nothing."""
    if values.dtype.kind in "iu" and len(values) and max(int(values.max()), -int(values.min())) > LARGEST:
        raise DataError(
            f"column {name!r} holds whole numbers beyond 2^53, which would be rounded; leave the column out "
            f"if it identifies rows (--exclude {name}), or turn it into text"
        )


def _boolean(values: NDArray[Any]) -> Column:
    return Column("boolean", values.astype(np.intp), ("False", "True"))


def _from_objects(name: str, values: Sequence[Any], marks: bool = True) -> Column:
    """Codes in order of appearance, and the kind that all the values have in common.

    With `marks`, text that marks a missing value is one.
    """
    index: dict[Any, int] = {}
    try:
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.intp, len(values))
    except TypeError:  # a list or another value that is no number and no text
        kind = next(type(value).__name__ for value in values if not isinstance(value, Hashable))
        raise DataError(
            f"column {name!r} holds values of type {kind}; turn it into numbers or text, or leave it out"
        ) from None
    marked = [j for value, j in index.items() if marks and is_mark(value)]
    _say_marked(name, [value for value in index if marks and is_mark(value)], np.isin(codes, marked))
    found = {value: j not in marked and not is_missing(value) for value, j in index.items()}
    known = [value for value in index if found[value]]
    kind = _common_kind(name, known)
    if kind == "number":
        numbers_ = [float(value) if found[value] else np.nan for value in index]
        return Column("number", np.array(numbers_, dtype=np.float64)[codes])
    levels = ("False", "True") if kind == "boolean" else tuple(dict.fromkeys(map(level_text, known)))
    place = {level: j for j, level in enumerate(levels)}
    local = [place[level_text(value)] if found[value] else -1 for value in index]
    return Column(kind, np.array(local, dtype=np.intp)[codes], levels)


def _say_marked(name: str, marks: Sequence[str], rows: NDArray[np.bool_]) -> None:
    """Say how many rows have a mark: one of them may be a level."""
    if marks:
        _NOTES.warning(
            "column %r: the text %s marks a missing value, in %d rows; if it is a level, rename it, or make "
            "the column a Categorical or Enum",
            name, " or ".join(map(repr, marks)), int(rows.sum()),
        )  # fmt: skip


def _common_kind(name: str, values: Iterable[Any]) -> Kind:
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1:
        found = " and ".join(sorted("text" if kind == "category" else kind for kind in kinds))
        raise DataError(f"column {name!r} mixes {found}; make it one or the other")
    (kind,) = kinds or {"number"}
    if kind not in ("number", "category", "boolean"):
        raise DataError(f"column {name!r} holds {kind}; turn it into numbers or text, or leave it out")
    return kind  # type: ignore[return-value]


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | Decimal):
        return "number"
    return "category" if isinstance(value, str) else f"values of type {type(value).__name__}"
