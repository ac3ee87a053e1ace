"""Columns of any frame (pandas, polars, Arrow, a dict of arrays) as numbers, or as codes and levels."""

from __future__ import annotations

import logging
import numbers
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
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

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which rows have no value."""
        lost: NDArray[np.bool_] = np.isnan(self.values) if self.kind == "number" else self.values < 0
        return lost

    def take(self, rows: NDArray[np.bool_]) -> Column:
        """These rows only, and the levels that occur in them."""
        values = self.values[rows]
        if self.kind == "number":
            return Column(self.kind, values)
        occurring = np.unique(values[values >= 0])
        recoded = np.full(len(self.levels) + 1, -1, dtype=np.intp)  # the last entry is that of -1
        recoded[occurring] = np.arange(len(occurring))
        return Column(self.kind, recoded[values], tuple(self.levels[j] for j in occurring))

    def as_category(self) -> Column:
        """Numbers as categories: 2 and 2.0 are the level '2'."""
        if self.kind != "number":
            return Column("category", self.values, self.levels)
        found, codes = np.unique(self.values, return_inverse=True)
        known = found[~np.isnan(found)]
        codes = np.where(codes < len(known), codes, -1)
        return Column("category", codes, tuple(level_text(value) for value in known.tolist()))


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
        return _from_objects(name, series.to_list()).as_category()
    return _from_objects(name, series.to_list())


def _check_size(name: str, values: NDArray[Any]) -> None:
    """Refuse whole numbers that would be rounded: they name something, and measure nothing."""
    if values.dtype.kind in "iu" and len(values) and max(int(values.max()), -int(values.min())) > LARGEST:
        raise DataError(
            f"column {name!r} holds whole numbers beyond 2^53, which would be rounded; leave the column out "
            f"if it identifies rows (--exclude {name}), or turn it into text"
        )


def _boolean(values: NDArray[Any]) -> Column:
    return Column("boolean", values.astype(np.intp), ("False", "True"))


def _from_objects(name: str, values: Sequence[Any]) -> Column:
    """Codes in order of appearance, and the kind that all the values have in common."""
    index: dict[Any, int] = {}
    try:
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.intp, len(values))
    except TypeError:  # a list or another value that is no number and no text
        kind = next(type(value).__name__ for value in values if not isinstance(value, Hashable))
        raise DataError(
            f"column {name!r} holds values of type {kind}; turn it into numbers or text, or leave it out"
        ) from None
    known = [value for value in index if not is_missing(value)]
    kind = _common_kind(name, known)
    if kind == "number":
        numbers_ = [np.nan if is_missing(value) else float(value) for value in index]
        return Column("number", np.array(numbers_, dtype=np.float64)[codes])
    levels = ("False", "True") if kind == "boolean" else tuple(dict.fromkeys(map(level_text, known)))
    place = {level: j for j, level in enumerate(levels)}
    local = [-1 if is_missing(value) else place[level_text(value)] for value in index]
    return Column(kind, np.array(local, dtype=np.intp)[codes], levels)


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
