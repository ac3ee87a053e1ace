"""The design of one site: numbers as they are, categories as a column of zeros and ones for each level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedshed.errors import DataError
from fedshed.preparation.frames import Column
from fedshed.preparation.study import Study

if TYPE_CHECKING:
    from fedshed.preparation.plan import Plan


def allows_intercept(study: Study) -> bool:
    """Whether nothing in the study speaks against an intercept."""
    return True


def names(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of the design (`age`, `region[north]`), and the column of the table each comes from."""
    pairs = [
        (f"{column}[{level}]", column) if column in plan.levels else (column, column)
        for column in plan.columns
        for level in plan.levels.get(column, ("", ""))[1:]
    ]
    return tuple(name for name, _ in pairs), tuple(term for _, term in pairs)


def build(plan: Plan, read: Mapping[str, Column], rows: int) -> NDArray[np.float64]:
    """X without an intercept, its columns in the order of `names`."""
    X = np.zeros((rows, len(names(plan)[0])))
    j = 0
    for name in plan.columns:
        if name in plan.levels:
            agreed = codes(name, read[name], plan.levels[name])
            shown = agreed > 0  # the reference, 0, has no column
            X[np.flatnonzero(shown), j + agreed[shown] - 1] = 1.0
            j += len(plan.levels[name]) - 1
        else:
            X[:, j] = numbers(name, read[name])
            j += 1
    return X


def numbers(name: str, column: Column) -> NDArray[np.float64]:
    """A column that was agreed to hold numbers."""
    if column.kind != "number":
        raise DataError(f"column {name!r} is {column.kind}, but was agreed to hold numbers; convert it")
    return np.asarray(column.values, dtype=np.float64)


def codes(name: str, column: Column, levels: tuple[str, ...]) -> NDArray[np.intp]:
    """The index of each row's level among those agreed on."""
    mine = column.as_category()
    place = {level: k for k, level in enumerate(levels)}
    occurring = np.zeros(len(mine.levels), bool)
    occurring[mine.values] = True
    unknown = [
        level for level, there in zip(mine.levels, occurring, strict=True) if there and level not in place
    ]
    if unknown:
        raise DataError(
            f"column {name!r}: level {unknown[0]!r} does not occur in the fit; known: "
            f"{', '.join(levels[:10])}{', ...' if len(levels) > 10 else ''}; correct it or drop those rows"
        )
    agreed = np.array([place.get(level, -1) for level in mine.levels], dtype=np.intp)
    return np.asarray(agreed[mine.values])
