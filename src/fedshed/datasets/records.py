"""What is known about a named data set, and what reading it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.files import find, first_complete
from fedshed.tables.stored import Matrix2D


@dataclass(frozen=True, eq=False)
class Content:
    """All rows of a data set: predictors, class or response, column names, site and offset of each row.

    `note` is what every result on these rows must say, if anything.
    """

    X: Matrix2D
    y: NDArray[Any]
    columns: tuple[str, ...]
    sites: NDArray[np.str_] | None = None
    offset: NDArray[np.float64] | None = None
    note: str = ""


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
    # files that are read where `files` are absent, by what they hold
    substitutes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    # what `read` is with each pre-processing, the default first; empty: there is no choice
    preprocessings: Mapping[str, Callable[[], Content]] = field(default_factory=dict, repr=False)

    def find_files(self) -> list[Path]:
        """Where its files are, or the error that says how to get them."""
        return [find(name) for name in self._chosen_files()]

    def substitute(self) -> str | None:
        """What is read in place of the data set, None if that is the data set itself."""
        chosen = self._chosen_files()
        return next((what for what, names in self.substitutes.items() if names == chosen), None)

    def _chosen_files(self) -> tuple[str, ...]:
        return first_complete([self.files, *self.substitutes.values()])
