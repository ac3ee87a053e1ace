"""g(t), the function of time in a test of proportional hazards: one for all sites, as in R's cox.zph.

The time itself and its logarithm need nothing of the sites.  The rank of a time among the times of all rows,
and 1 - S(t-) with S the Kaplan-Meier curve of all rows, are step functions that follow from the counts of
all sites together (`life_table`): exactly on the grid of all event times, otherwise by the cells of a grid.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.objectives.life_table import LifeTable

Transform: TypeAlias = Literal["identity", "log", "rank", "km"]
POOLED = ("rank", "km")  # those that need the counts of all sites


class TimeScale(Struct, frozen=True):
    """A function of time: by its name or, if it is one of `POOLED`, by its value in each cell of a grid.

    The last value is that of times after the grid.
    """

    transform: Transform = "identity"
    times: Scalars | None = None
    values: Scalars | None = None

    def of(self, moments: Vector) -> Vector:
        """g of these times."""
        if self.transform == "identity":
            return moments
        if self.transform == "log":
            if not (moments > 0).all():
                raise DataError(
                    "an event at time 0 has no logarithm; use another ph_transform, such as identity"
                )
            return np.asarray(np.log(moments))
        assert self.values is not None
        return np.asarray(self.values[self.cells(moments)])

    def cells(self, moments: Vector) -> NDArray[np.intp]:
        """The cell (t_{k-1}, t_k] of each of these times."""
        assert self.times is not None
        return np.searchsorted(self.times, moments)


def pooled_scale(transform: Transform, table: LifeTable) -> TimeScale:
    """The scale that follows from the counts of all sites, with values from 0 to 1."""
    values = _kaplan_meier(table) if transform == "km" else _ranks(table)
    return TimeScale(transform, table.times, values)


def _kaplan_meier(table: LifeTable) -> Vector:
    """1 - S before the events of each cell."""
    at_risk, events = table.starting.sum(axis=0), table.events.sum(axis=0)
    left = 1.0 - np.minimum(events / np.maximum(at_risk, 1.0), 1.0)
    return np.asarray(1.0 - np.cumprod([1.0, *left]))


def _ranks(table: LifeTable) -> Vector:
    """The mean rank of the times of each cell among those of all rows, over the number of rows."""
    ended = np.append((table.events + table.censored).sum(axis=0), table.beyond.sum())
    return np.asarray((np.cumsum(ended) - ended / 2 + 0.5) / max(ended.sum(), 1.0))
