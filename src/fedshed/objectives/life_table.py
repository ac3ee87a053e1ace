"""Counts of a life table: who enters, has the event or is censored in each cell of a grid of times."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Vector

Counts = NDArray[np.int64]


class LifeTable(Struct, frozen=True):
    """Counts by group (rows) and by cell (t_{k-1}, t_k] of the times t_1 < ... < t_K, with t_0 = -inf.

    A subject is at risk at t if entry < t <= time.  `entered` are those with their entry in the cell (none
    where nobody enters late), `beyond` those at risk just after t_K; who enters later is not counted.
    """

    times: Vector
    events: Counts
    censored: Counts
    entered: Counts
    beyond: Counts

    @property
    def starting(self) -> Counts:
        """At risk at the beginning of each cell: N_k = N_{k+1} + d_k + c_k - e_k."""
        change = self.events + self.censored - self.entered
        after = np.cumsum(change[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(after + self.beyond[:, None], dtype=np.int64)

    @property
    def points(self) -> NDArray[np.bool_]:
        """Which cells hold one time only (as floating-point numbers go): its events are tied there."""
        before = np.concatenate([[-np.inf], self.times[:-1]])
        return np.asarray(np.nextafter(self.times, -np.inf) == before)

    @property
    def subjects(self) -> Counts:
        """How many subjects each group has."""
        return np.asarray(self.starting[:, 0] + self.entered.sum(axis=1), dtype=np.int64)

    def __add__(self, other: LifeTable) -> LifeTable:
        pairs = ((getattr(self, name), getattr(other, name)) for name in _COUNTS)
        return LifeTable(self.times, *(a + b for a, b in pairs))

    def coarser(self, kept: NDArray[np.bool_]) -> LifeTable:
        """The same subjects, in cells that end at the kept times only; the last time must be one of them."""
        starts = np.concatenate([[0], np.flatnonzero(kept)[:-1] + 1])
        events, censored, entered = (
            np.add.reduceat(each, starts, axis=1) for each in (self.events, self.censored, self.entered)
        )
        return LifeTable(self.times[kept], events, censored, entered, self.beyond)

    def groups_together(self) -> LifeTable:
        """One group of all."""
        return LifeTable(self.times, *(getattr(self, name).sum(axis=0, keepdims=True) for name in _COUNTS))


_COUNTS = ("events", "censored", "entered", "beyond")


def life_table(
    times: Vector, entry: Vector, time: Vector, event: NDArray[np.bool_], group: NDArray[np.intp], groups: int
) -> LifeTable:
    """The counts of subjects with these entries, times and events, in groups 0, ..., groups - 1."""
    counted = entry <= times[-1]
    entry, time, event, group = entry[counted], time[counted], event[counted], group[counted]
    begin, end = np.searchsorted(times, entry), np.searchsorted(times, time)
    late = entry > -np.inf
    within = end < len(times)
    return LifeTable(
        times,
        _tally(group, end, within & event, groups, len(times)),
        _tally(group, end, within & ~event, groups, len(times)),
        _tally(group, begin, late, groups, len(times)),
        np.bincount(group[~within], minlength=groups).astype(np.int64),
    )


def _tally(group: NDArray[Any], cell: NDArray[Any], of: NDArray[np.bool_], groups: int, cells: int) -> Counts:
    """How many of these subjects each group has in each cell."""
    flat = np.bincount(group[of] * cells + cell[of], minlength=groups * cells)
    return flat.reshape(groups, cells).astype(np.int64)


def exact_grid(times: Vector) -> Vector:
    """A grid on which the counts tell all: each time is a cell by itself, between cells without events."""
    return np.asarray(np.unique(np.concatenate([np.nextafter(times, -np.inf), times])))


def merged_cells(table: LifeTable, least: int) -> NDArray[np.bool_]:
    """Which times to keep so that each count is 0 or at least `least`: halves are split while both are so.

    Halves of halves are the same at all sites, so that what two sites keep has many times in common.
    """
    K = len(table.times)
    counts = np.vstack([table.events, table.censored, table.entered])
    until = np.concatenate([np.zeros((len(counts), 1), dtype=np.int64), np.cumsum(counts, axis=1)], axis=1)
    kept = np.zeros(K, dtype=bool)
    kept[-1] = True

    def fine(i: int, j: int) -> bool:
        found = until[:, j] - until[:, i]
        return bool(((found == 0) | (found >= least)).all())

    blocks = [(0, K)]
    while blocks:
        i, j = blocks.pop()
        middle = (i + j) // 2
        if j - i > 1 and fine(i, middle) and fine(middle, j):
            kept[middle - 1] = True
            blocks += [(i, middle), (middle, j)]
    return kept


def table_of(model: Any, times: Vector, least: int) -> LifeTable:
    """The life table of a survival model's rows, in the groups that its columns indicate.

    Cells whose counts are neither 0 nor at least `least` are merged.
    """
    y = _records(model)
    X = np.asarray(model.X.toarray() if hasattr(model.X, "toarray") else model.X)
    if not np.isin(X, (0.0, 1.0)).all() or (X.sum(axis=1) > 1).any():
        raise ProtocolError("survival curves are by the levels of one column, and the design has others")
    group = (X @ np.arange(1, X.shape[1] + 1)).astype(np.intp)
    table = life_table(times, y["entry"], y["time"], y["event"], group, X.shape[1] + 1)
    table = _ended(table, least)
    return table.coarser(merged_cells(table, least))


def _ended(table: LifeTable, least: int) -> LifeTable:
    """The table in which a few subjects beyond the last time are censored in the last cell instead.

    The curve until then is the same: they are at risk throughout.
    """
    few = np.where(table.beyond < least, table.beyond, 0)
    censored = table.censored.copy()
    censored[:, -1] += few
    return replace(table, censored=censored, beyond=table.beyond - few)


def times_of(model: Any) -> tuple[Vector, float]:
    """The distinct event times of a survival model's rows, and their largest time."""
    y = _records(model)
    return np.unique(y["time"][y["event"]]), float(y["time"].max(initial=0.0))


def small_count(table: LifeTable, least: int) -> int | None:
    """The smallest count of a table that is neither 0 nor at least `least`, if there is one."""
    counts = np.concatenate([getattr(table, name).ravel() for name in _COUNTS])
    small = counts[(counts > 0) & (counts < least)]
    return int(small.min()) if len(small) else None


def _records(model: Any) -> NDArray[Any]:
    """The times and events of a model's rows."""
    if model.y.dtype.names is None:
        raise ProtocolError("survival curves are of times to an event, and this study has another response")
    if model.weights is not None:
        raise ProtocolError("survival curves count rows, and this study has weights; leave the weight out")
    return np.asarray(model.y)
