"""From a CSV file to a design matrix with readable column names."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.datasets.files import content

Column = NDArray[np.float64]


def read_csv(relative: str, **kinds: str) -> dict[str, NDArray[Any]]:
    """The named columns of a checked CSV file with a header, each of its kind (`f8`, `U12`: text)."""
    text = content(relative)
    header = next(csv.reader([text.partition(b"\n")[0].decode()]))
    rows = np.loadtxt(
        io.BytesIO(text), dtype=list(kinds.items()), delimiter=",", comments=None, quotechar='"', skiprows=1,
        usecols=[header.index(name) for name in kinds], encoding="utf-8",
    )  # fmt: skip
    return {name: rows[name] for name in kinds}


def dummies(name: str, values: NDArray[Any], reference: Any = None) -> dict[str, Column]:
    """A column of zeros and ones `name=level` for each level but the reference, by default the first."""
    levels = sorted(np.unique(values).tolist(), key=_by_number)
    left_out = levels[0] if reference is None else reference
    return {f"{name}={v}": (values == v).astype(np.float64) for v in levels if v != left_out}


def binned(values: NDArray[Any], edges: Sequence[int]) -> NDArray[np.str_]:
    """Whole numbers as text, by the interval they are in: `18-20` for edges 18, 21; `71+` after the last."""
    inner = [f"{low}-{high - 1}" if high - 1 > low else f"{low}" for low, high in itertools.pairwise(edges)]
    return np.asarray(np.array([*inner, f"{edges[-1]}+"])[np.digitize(values, edges) - 1])


def stacked(columns: Mapping[str, Column]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The columns side by side, and their names."""
    return np.column_stack(list(columns.values())), tuple(columns)


def rescaled(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column moved and stretched to [0, 1]; a constant one becomes 0."""
    low, high = X.min(axis=0), X.max(axis=0)
    return np.asarray((X - low) / np.where(high > low, high - low, 1.0))


def named(kind: str, numbers: NDArray[Any]) -> NDArray[np.str_]:
    """`district-07`: names of sites whose order is that of their numbers."""
    width = len(str(int(numbers.max())))
    return np.array([f"{kind}-{int(number):0{width}d}" for number in numbers])


def _by_number(level: Any) -> list[Any]:
    """A key that sorts B2 before B10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(level))]
