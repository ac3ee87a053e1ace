"""One column of a site, as numbers or as codes and levels, whatever frame it comes from."""

from __future__ import annotations

import logging
import numbers
import shlex
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.tables.marks import is_mark
from fedshed.tables.stored import missing as is_missing

Kind: TypeAlias = Literal["number", "category", "boolean"]
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


def level_text(value: object) -> str:
    """A level as text: that of a whole number has no decimals."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Real | Decimal):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value)


def read_column(name: str, values: Any, say: bool = True) -> Column:
    """A column of a frame; with `say` the log tells of texts that mark a missing value."""
    if isinstance(values, nw.Series):
        return _from_series(name, values, say)
    if not isinstance(values, np.ndarray):
        return _from_arrow(name, values, say)
    if values.dtype.kind in "iuf":
        _check_size(name, values)
        return Column("number", values.astype(np.float64))
    if values.dtype.kind == "b":
        return _boolean(values)
    return _from_values(name, *_coded(name, values.tolist()), say=say)


def _from_arrow(name: str, values: Any, say: bool) -> Column:
    """A column of an Arrow table; numbers without a detour, for a block of rows has few of them."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_integer(values.type):
        ends = pc.min_max(values).as_py().values()
        _check_size(name, np.array([end for end in ends if end is not None], dtype=object))
    elif not types.is_floating(values.type):
        return _from_series(name, nw.from_native(values, series_only=True), say)
    return Column("number", np.array(values.to_numpy(), dtype=np.float64))  # NaN where it is null


def _from_series(name: str, series: nw.Series[Any], say: bool) -> Column:
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
    return _from_values(name, *_coded_series(name, series), say=say)


def _declared(name: str, series: nw.Series[Any]) -> Column:
    """A column that the frame calls a category: a level NA is a level there, and an order is kept."""
    values = _from_values(name, *_coded_series(name, series), marks=False)
    column = replace(values.as_category(), declared=True)
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
    """Refuse whole numbers that float64 would round: they are identifiers, not measurements."""
    if values.dtype.kind in "iuO" and len(values) and max(int(values.max()), -int(values.min())) > LARGEST:
        raise DataError(
            f"column {name!r} holds whole numbers beyond 2^53, which would be rounded; leave the column out "
            f"if it identifies rows (--exclude {shlex.quote(name)}), or turn it into text"
        )


def _boolean(values: NDArray[Any]) -> Column:
    return Column("boolean", values.astype(np.intp), ("False", "True"))


def _coded(name: str, values: Sequence[Any]) -> tuple[dict[Any, int], NDArray[np.intp]]:
    """The different values in order of appearance, and the code of each row."""
    index: dict[Any, int] = {}
    try:
        codes = np.fromiter((index.setdefault(value, len(index)) for value in values), np.intp, len(values))
    except TypeError:  # a list or another value that is no number and no text
        kind = next(type(value).__name__ for value in values if not isinstance(value, Hashable))
        raise DataError(
            f"column {name!r} holds values of type {kind}; turn it into numbers or text, or leave it out "
            f"(exclude = [{name!r}], --exclude {shlex.quote(name)})"
        ) from None
    return index, codes


def _coded_series(name: str, series: nw.Series[Any]) -> tuple[dict[Any, int], NDArray[np.intp]]:
    """The same of a series; text in Arrow is coded there, chunk by chunk, without an object for each row."""
    if not series.implementation.is_pyarrow():
        return _coded(name, series.to_list())
    import pyarrow.types as types

    native = series.to_native()
    quick = (
        types.is_string,
        types.is_large_string,
        types.is_dictionary,
        types.is_boolean,
        types.is_decimal,
    )
    if not any(is_kind(native.type) for is_kind in quick):
        return _coded(name, series.to_list())
    index: dict[Any, int] = {}
    codes = [np.zeros(0, dtype=np.intp), *(_coded_chunk(index, chunk) for chunk in native.chunks)]
    return index, np.concatenate(codes)


def _coded_chunk(index: dict[Any, int], chunk: Any) -> NDArray[np.intp]:
    """The codes of a part of a column; values that were not there before come last in the index."""
    import pyarrow as pa

    declared = pa.types.is_dictionary(chunk.type)
    coded = (chunk.indices if declared else chunk).dictionary_encode()  # in order of appearance
    values = coded.dictionary.to_pylist()
    values = chunk.dictionary.take(coded.dictionary).to_pylist() if declared else values
    place = [index.setdefault(value, len(index)) for value in values]
    if coded.null_count:
        place.append(index.setdefault(None, len(index)))
    where = coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    codes: NDArray[np.intp] = np.array(place, dtype=np.intp)[where]
    return codes


def _from_values(
    name: str, index: dict[Any, int], codes: NDArray[np.intp], marks: bool = True, say: bool = True
) -> Column:
    """A column by the codes of its different values, of the kind that all these have in common.

    With `marks`, text that marks a missing value is one.
    """
    marked = [j for value, j in index.items() if marks and is_mark(value)]
    if marked and say:
        _say_marked(name, [value for value in index if is_mark(value)], np.isin(codes, marked))
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
    _NOTES.warning(
        "column %r: the text %s was read as a missing value in %d rows; if it is a level, rename it, or make "
        "the column a Categorical or Enum",
        name, " or ".join(map(repr, marks)), int(rows.sum()),
    )  # fmt: skip


def _common_kind(name: str, values: Iterable[Any]) -> Kind:
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1:
        found = " and ".join(sorted("text" if kind == "category" else kind for kind in kinds))
        raise DataError(f"column {name!r} mixes {found}; convert all values to one of them")
    (kind,) = kinds or {"number"}
    if kind not in ("number", "category", "boolean"):
        raise DataError(
            f"column {name!r} holds {kind}; turn it into numbers or text, or leave it out "
            f"(exclude = [{name!r}], --exclude {shlex.quote(name)})"
        )
    return kind  # type: ignore[return-value]


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | Decimal):
        return "number"
    return "category" if isinstance(value, str) else f"values of type {type(value).__name__}"
