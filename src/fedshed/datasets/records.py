"""What is known about a named data set, and what reading it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.tables.stored import Matrix2D


@dataclass(frozen=True, eq=False)
class Content:
    """All rows of a data set: predictors, class or response, column names, site and offset of each row."""

    X: Matrix2D
    y: NDArray[Any]
    columns: tuple[str, ...]
    sites: NDArray[np.str_] | None = None
    offset: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Dataset:
    """What a data set is, where it comes from, and how it is dealt if nothing else is asked."""

    name: str
    description: str
    loss: str
    rows: int
    columns: int
    classes: tuple[int, ...]  # empty: y is a number to be predicted
    agents: int
    partition: str
    target: int | None
    citation: str
    licence: str
    files: tuple[str, ...]  # under $FEDSHED_DATA; empty: embedded in scikit-learn
    read: Callable[[], Content] = field(repr=False)
    per_agent: int | None = None  # rows of an agent of the i.i.d. partition, if there are enough; None: all

    @property
    def folder(self) -> str | None:
        """The folder of its files under $FEDSHED_DATA, None if it has none."""
        return self.files[0].partition("/")[0] if self.files else None
