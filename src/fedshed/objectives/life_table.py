"""Counts of a life table: who enters, has the event or is censored in each cell of a grid of times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Matrix, Vector

Kind: TypeAlias = Literal["events", "censored", "entered"]
KINDS: tuple[Kind, ...] = ("events", "censored", "entered")
WITH_THE_NEXT = -1.0  # in place of a count that is told with that of the next cell


class Block(Struct, frozen=True):
    """Cells of one group whose count is known together only: from the first up to and with the last."""

    kind: Kind
    group: int
    first: int
    last: int
    count: float


class LifeTable(Struct, frozen=True):
    """Counts by group (rows) and by cell (t_{k-1}, t_k] of the times t_1 < ... < t_K, with t_0 = -inf.

    A subject is at risk at t if entry < t <= time.  `entered` are those with their entry in the cell (none
    where nobody enters late), `beyond` those at risk just after t_K; who enters later is not counted.  The
    counts of `blocks` are spread over their cells evenly.
    """

    times: Vector
    events: Matrix
    censored: Matrix
    entered: Matrix
    beyond: Vector
    blocks: tuple[Block, ...] = ()

    @property
    def starting(self) -> Matrix:
        """At risk at the beginning of each cell: N_k = N_{k+1} + d_k + c_k - e_k."""
        change = self.events + self.censored - self.entered
        after = np.cumsum(change[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(after + self.beyond[:, None])

    @property
    def points(self) -> NDArray[np.bool_]:
        """Which cells hold one time only (as floating-point numbers go): its events are tied there."""
        before = np.concatenate([[-np.inf], self.times[:-1]])
        return np.asarray(np.nextafter(self.times, -np.inf) == before)

    @property
    def subjects(self) -> Vector:
        """How many subjects each group has."""
        return np.asarray(np.rint(self.starting[:, 0] + self.entered.sum(axis=1)))

    def __add__(self, other: LifeTable) -> LifeTable:
        return LifeTable(
            self.times, self.events + other.events, self.censored + other.censored,
            self.entered + other.entered, self.beyond + other.beyond, (*self.blocks, *other.blocks),
        )  # fmt: skip

    def bounds(self, kind: Kind, group: int) -> tuple[Vector, Vector]:
        """The least and the largest count until the end of each cell."""
        single = self.single(kind, group)
        least, most = single.copy(), single
        for block in self.of(kind, group):
            least[block.last] += block.count
            most[block.first] += block.count
        return np.cumsum(least), np.cumsum(most)

    def single(self, kind: Kind, group: int) -> Vector:
        """The counts that are known cell by cell."""
        counts = getattr(self, kind)[group].copy()
        for block in self.of(kind, group):
            counts[block.first : block.last + 1] -= block.count / (block.last - block.first + 1)
        return np.asarray(np.rint(counts))

    def of(self, kind: Kind, group: int) -> Iterator[Block]:
        """The blocks of one kind of one group."""
        return (block for block in self.blocks if (block.kind, block.group) == (kind, group))


def life_table(
    times: Vector, entry: Vector, time: Vector, event: NDArray[np.bool_], group: NDArray[np.intp], groups: int
) -> LifeTable:
    """The counts of subjects with these entries, times and events, in groups 0, ..., groups - 1."""
    counted = entry <= times[-1]
    entry, time, event, group = entry[counted], time[counted], event[counted], group[counted]
    begin, end = np.searchsorted(times, entry), np.searchsorted(times, time)
    within = end < len(times)
    return LifeTable(
        times,
        _tally(group, end, within & event, groups, len(times)),
        _tally(group, end, within & ~event, groups, len(times)),
        _tally(group, begin, entry > -np.inf, groups, len(times)),
        np.bincount(group[~within], minlength=groups).astype(np.float64),
    )


def _tally(group: NDArray[Any], cell: NDArray[Any], of: NDArray[np.bool_], groups: int, cells: int) -> Matrix:
    """How many of these subjects each group has in each cell."""
    flat = np.bincount(group[of] * cells + cell[of], minlength=groups * cells)
    return flat.reshape(groups, cells).astype(np.float64)


def round_times(last: float) -> Vector:
    """About six round times until the last, beside which a figure has the numbers at risk."""
    if not last > 0:
        return np.zeros(1)
    scale = 10.0 ** np.floor(np.log10(last / 7))
    step = scale * next(size for size in (1, 2, 2.5, 5, 10, 20) if last / (size * scale) <= 7)
    return np.array([float(f"{step * k:.12g}") for k in range(int(last / step) + 1)])


def exact_grid(times: Vector) -> Vector:
    """A grid on which the counts tell all: each time is a cell by itself, between cells without events."""
    return np.asarray(np.unique(np.concatenate([np.nextafter(times, -np.inf), times])))


def merged(counts: Vector, least: int) -> Vector:
    """Counts of cells as a site tells them: each is 0 or at least `least`, or told with the next.

    A few that are left at the end are told with the count before them.
    """
    told, waiting, last = counts.copy(), 0.0, -1
    for k, count in enumerate(counts.tolist()):
        waiting += count
        if 0 < waiting < least:
            told[k] = WITH_THE_NEXT
        else:
            told[k] = waiting
            last, waiting = (k if waiting else last), 0.0
    if waiting:
        told[-1] = waiting + (told[last] if last >= 0 else 0.0)
        told[last if last >= 0 else 0 : -1] = WITH_THE_NEXT
    return told


def spread(kind: Kind, group: int, told: Vector) -> tuple[Vector, tuple[Block, ...]]:
    """The counts that a site has told, those of several cells spread over them, and these blocks."""
    ends = np.flatnonzero(told != WITH_THE_NEXT)
    begins = np.concatenate([[0], ends[:-1] + 1])
    found = tuple(
        Block(kind, group, int(i), int(j), float(told[j]))
        for i, j in zip(begins, ends, strict=True)
        if i < j and told[j]
    )
    counts = np.where(told == WITH_THE_NEXT, 0.0, told)
    for block in found:
        counts[block.first : block.last + 1] = block.count / (block.last - block.first + 1)
    return counts, found


def table_of(model: Any, times: Vector, columns: tuple[int, ...]) -> LifeTable:
    """The life table of a survival model's rows, in the groups that these columns of it indicate."""
    y = _records(model)
    if max(columns, default=-1) >= model.X.shape[1]:
        raise ProtocolError(
            "survival curves are asked for by columns that the design does not have; prepare again"
        )
    X = np.column_stack([np.zeros(len(y)), *(_dense(model.X[:, [j]]) for j in columns)])[:, 1:]
    if not np.isin(X, (0.0, 1.0)).all() or (X.sum(axis=1) > 1).any():
        raise ProtocolError(
            "survival curves are by the levels of one category, but these columns are not its levels"
        )
    group = (X @ np.arange(1, X.shape[1] + 1)).astype(np.intp)
    return life_table(times, y["entry"], y["time"], y["event"], group, X.shape[1] + 1)


def told_by(table: LifeTable, least: int) -> LifeTable:
    """The table of a site as it is told: `WITH_THE_NEXT` in place of counts that are too small.

    A few subjects beyond the last time are censored in the last cell instead: the curve until then is the
    same, for they are at risk throughout.
    """
    few = np.where(table.beyond < least, table.beyond, 0.0)
    censored = table.censored.copy()
    censored[:, -1] += few
    return replace(
        table, events=_merged(table.events, least), censored=_merged(censored, least),
        entered=_merged(table.entered, least), beyond=table.beyond - few,
    )  # fmt: skip


def _merged(counts: Matrix, least: int) -> Matrix:
    return counts if least <= 1 else np.array([merged(row, least) for row in counts])


def small_count(told: LifeTable, least: int) -> int | None:
    """The smallest count that is neither 0 nor at least `least`, if there is one."""
    counts = np.concatenate([getattr(told, name).ravel() for name in (*KINDS, "beyond")])
    small = counts[(counts > 0) & (counts < least)]
    return int(small.min()) if len(small) else None


def _dense(column: Any) -> Matrix:
    return np.asarray(column.toarray() if hasattr(column, "toarray") else column)


def times_of(model: Any) -> tuple[Vector, float]:
    """The distinct event times of a survival model's rows, and their largest time."""
    y = _records(model)
    return np.unique(y["time"][y["event"]]), float(y["time"].max(initial=0.0))


def _records(model: Any) -> NDArray[Any]:
    """The times and events of a model's rows."""
    if model.y.dtype.names is None:
        raise ProtocolError("survival curves need times to an event, but this study has another response")
    if model.weights is not None:
        raise ProtocolError("survival curves count rows, but this study has weights; leave the weight out")
    return np.asarray(model.y)
