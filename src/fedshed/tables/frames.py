"""Columns of any frame (pandas, polars, Arrow, a dict of arrays) as numbers, or as codes and levels."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.tables.columns import Column, read_column
from fedshed.tables.lazy import is_arrow, is_large
from fedshed.tables.stored import vector

Read: TypeAlias = Mapping[str, Column]
LONGEST = 200  # characters of a level or a name
_NOTES = logging.getLogger("fedshed")


class Frame:
    """A caller's frame, read column by column when one is needed.

    The columns of a `large` one, an Arrow table that is not to be copied, are read each time, so that one or
    two of them are in memory.
    """

    def __init__(self, native: Any) -> None:
        columns = _arrays(native) if isinstance(native, Mapping) else _series(native)
        self._columns = {name: columns[name] for name in columns if not _is_row_number(name)}
        if len(self._columns) < len(columns):
            left = next(name for name in columns if name not in self._columns)
            _NOTES.warning("column %r was left out, because it holds row numbers that pandas wrote", left)
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise DataError(f"the columns have different lengths ({sorted(lengths)}); give one value per row")
        self.rows = lengths.pop() if lengths else 0
        self.large = is_arrow(native) and is_large(native)
        self._read: dict[str, Column] = {}
        self._said: set[str] = set()  # columns whose marks for missing values are on the log

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(self._columns)

    def column(self, name: str) -> Column:
        """A column, or an error that names the one perhaps meant."""
        if name not in self._columns:
            bare = {without_blanks(other): other for other in self.names}
            near = get_close_matches(name, self.names, n=1)  # a site does not tell what else it has
            hint = f"did you mean {near[0]!r}?" if near else "add it, or correct its name in the study"
            if alike := bare.get(without_blanks(name)):
                hint = f"a column differs only in case or blanks: {alike!r}; write the names alike"
            raise DataError(f"there is no column {name!r}; {hint}")
        if name not in self._read:
            self._read = {} if self.large else self._read  # the last one stays
            self._read[name] = self._made(name)
        return self._read[name]

    def columns(self, names: Iterable[str]) -> Read:
        """Several columns, those of a large frame when they are looked at."""
        given = tuple(dict.fromkeys(names))
        return Columns(given, self.column) if self.large else {name: self.column(name) for name in given}

    def take(self, rows: NDArray[np.bool_]) -> Frame:
        """These rows only: its columns are read as those of all rows, and then cut."""
        return _Part(self, rows)

    def block(self, start: int, stop: int) -> Frame:
        """Rows that follow each other, in memory once they are read."""
        return _Block(self, start, stop)

    def forget(self) -> None:
        """Lose the column of a large frame that was read last."""
        self._read = {} if self.large else self._read

    def _made(self, name: str) -> Column:
        say = name not in self._said
        self._said.add(name)
        return read_column(name, self._columns[name], say)


class _Part(Frame):
    """Some rows of a frame."""

    def __init__(self, whole: Frame, rows: NDArray[np.bool_]) -> None:
        self._whole, self._rows, self._columns = whole, rows, whole._columns
        self.rows, self.large, self._read = int(rows.sum()), whole.large, {}
        self._places: NDArray[np.intp] | None = None  # of these rows in the whole

    def forget(self) -> None:
        """Lose the column that was read last, here and in the whole."""
        super().forget()
        self._whole.forget()

    def block(self, start: int, stop: int) -> Frame:
        """The rows of the whole from the first of them to the last, cut."""
        places = np.flatnonzero(self._rows) if self._places is None else self._places
        self._places = places
        low, high = (int(places[start]), int(places[stop - 1]) + 1) if stop > start else (0, 0)
        return self._whole.block(low, high).take(self._rows[low:high])

    def _made(self, name: str) -> Column:
        return self._whole.column(name).take(self._rows)


class _Block(Frame):
    """Some rows of a frame that follow each other, read without the others."""

    def __init__(self, whole: Frame, start: int, stop: int) -> None:
        self._place, self._columns = slice(start, stop), whole._columns
        self.rows, self.large, self._read = stop - start, whole.large, {}

    def _made(self, name: str) -> Column:
        return read_column(name, self._columns[name][self._place], say=False)


class Columns(Mapping[str, Column]):
    """Columns that are made when they are looked at, and not kept."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Column]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def made(read: Read, make: Callable[[str], Column], names: Iterable[str] | None = None) -> Read:
    """Columns that are made of others, by name: at once of those in memory, else when they are looked at."""
    wanted = tuple(read if names is None else names)
    return Columns(wanted, make) if isinstance(read, Columns) else {name: make(name) for name in wanted}


def complete_rows(columns: Iterable[Column]) -> NDArray[np.bool_]:
    """Which rows miss no value."""
    return reduce(np.logical_and, (~column.missing for column in columns))


def _is_row_number(name: str) -> bool:
    """Whether a column is an index that pandas wrote: "Unnamed: 0" in CSV, __index_level_0__ in Parquet."""
    return re.fullmatch(r"Unnamed: 0(\.\d+)?|__index_level_\d+__", name) is not None


def without_blanks(name: str) -> str:
    """A name without blanks, in lower case."""
    return "".join(name.split()).casefold()


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
        columns = {str(name): frame.get_column(name) for name in frame.columns}
        arrow = frame.implementation.is_pyarrow()
        return {name: column.to_native() for name, column in columns.items()} if arrow else columns
    except TypeError as error:
        raise DataError(
            f"a table must be a DataFrame (pandas, polars, Arrow) or a dict of arrays, "
            f"not {type(native).__name__}"
        ) from error
    except nw.exceptions.NarwhalsError as error:
        raise DataError(f"the table cannot be read ({error}); give each column a different name") from error
