"""Missing predictors are filled in with what all sites agree on: means, commonest or reference levels.

A mean is that of all observed values over the rows that are used, each counting once, from a sum and a count
of each site; the commonest level comes from counts.  Rows that miss the target, a weight or the like are
dropped, as nothing can stand for these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_values
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.tables.columns import Column
from fedshed.tables.frames import Read, complete_rows, made

if TYPE_CHECKING:
    from fedshed.preparation.plan import DesignPlan
    from fedshed.preparation.study import Study

MISSING = "missing"  # the level of categories that have none, and the mark of indicators
Fill: TypeAlias = float | str
Levels: TypeAlias = dict[str, tuple[str, ...]]


def indicator(column: str) -> str:
    """The name of the column that is 1 where another is missing, and 0 elsewhere."""
    return f"{column}[{MISSING}]"


def rows_kept(study: Study, read: Read) -> NDArray[np.bool_]:
    """Which rows have all that a fit needs: all columns, or those that are not filled in."""
    needed = (name for name in read if name in study.beside or not study.fills_in)
    return complete_rows(read[name] for name in needed)


def counts_of(study: Study, columns: tuple[str, ...], read: Read) -> dict[str, int]:
    """In how many of the rows that are used each predictor is missing."""
    kept = rows_kept(study, read)
    return {name: int((read[name].missing & kept).sum()) for name in columns}


# --- what is agreed on ---------------------------------------------------------------------------


def pending(plan: DesignPlan) -> bool:
    """Whether the sites must still be asked what to fill in."""
    return plan.study.fills_in and isinstance(plan.fills, UnsetType) and bool(plan.columns)


def tally(plan: DesignPlan, read: Read) -> NDArray[np.float64]:
    """Of each column of numbers the sum and the number of observed values; of each category its levels' rows.

    A category whose missing values are a level of their own needs none.
    """
    parts = [np.zeros(0)]
    for name in plan.columns:
        column = read[name]
        there = ~column.missing
        if name not in plan.levels:
            observed = column.values[there] if column.kind == "number" else np.zeros(0)
            parts.append(np.array([observed.sum(), len(observed)], dtype=np.float64))
        elif plan.study.missing == "impute":
            mine = column.as_category()
            rows = np.bincount(mine.values[there], minlength=len(mine.levels))
            by_level = dict(zip(mine.levels, rows.tolist(), strict=False))
            parts.append(np.array([by_level.get(level, 0) for level in plan.levels[name]], dtype=np.float64))
    sums = np.concatenate(parts)
    if not np.isfinite(sums).all():
        raise DataError("a column has numbers that are too large or infinite; correct or drop those rows")
    return sums


def with_fills(
    plan: DesignPlan, found: Mapping[str, NDArray[np.float64]], rows: Mapping[str, int]
) -> DesignPlan:
    """The plan with what is filled in, from the sums of all sites, which have at most so many rows."""
    sizes = [_size(plan, name) for name in plan.columns]
    for site in sorted(found):
        if len(found[site]) != sum(sizes):
            raise ProtocolError(
                f"site {site!r} sent {len(found[site])} sums, not {sum(sizes)}; prepare again"
            )
        for name, part in zip(plan.columns, np.split(found[site], np.cumsum(sizes)[:-1]), strict=True):
            if not _are_counts(part if name in plan.levels else part[1:], rows[site]):
                raise ProtocolError(
                    f"site {site!r} sent counts of {name!r} that its rows cannot have; run the same version "
                    "of fedshed there"
                )
    total = np.sum([found[site] for site in sorted(found)], axis=0)
    parts = np.split(total, np.cumsum(sizes)[:-1])
    fills = {name: _fill(plan, name, part) for name, part in zip(plan.columns, parts, strict=True)}
    return replace(plan, fills=fills)


def fewest_observed(plan: DesignPlan, sums: NDArray[np.float64]) -> int | None:
    """The fewest values behind a sum that is asked for, but for 0; None where none is."""
    if not pending(plan):
        return None
    parts = np.split(sums, np.cumsum([_size(plan, name) for name in plan.columns])[:-1])
    counts = [part[1] for name, part in zip(plan.columns, parts, strict=True) if name not in plan.levels]
    return min((int(count) for count in counts if count), default=None)


def _are_counts(counts: NDArray[np.float64], rows: int) -> bool:
    """Whether these are numbers of rows, but for the rounding of masked sums."""
    whole = np.abs(counts - np.round(counts)).max(initial=0.0) < 1e-3
    return bool(whole and counts.min(initial=0.0) > -0.5 and counts.sum() < rows + 0.5)


def _size(plan: DesignPlan, name: str) -> int:
    if name not in plan.levels:
        return 2
    return len(plan.levels[name]) if plan.study.missing == "impute" else 0


def _fill(plan: DesignPlan, name: str, sums: NDArray[np.float64]) -> Fill:
    """A mean, the commonest level (the first of several), or the reference."""
    if name in plan.levels:
        return plan.levels[name][int(sums.argmax()) if len(sums) else 0]
    if sums[1] < 0.5:
        raise DataError(f"column {name!r} is missing in every row of every site; leave it out")
    return float(sums[0] / round(float(sums[1])))


def possible(plan: DesignPlan, read: Read) -> bool:
    """Whether a plan fills in what its study says, and has an indicator of each column that misses some here.

    What the other sites miss, and their sums, cannot be known here.
    """
    fills, marked, study = plan.fills, plan.indicators, plan.study
    if not study.fills_in:
        return isinstance(fills, UnsetType) and isinstance(marked, UnsetType)
    lost = {name for name, rows in counts_of(study, plan.columns, read).items() if rows}
    if study.missing == "impute":
        marked_well = isinstance(marked, UnsetType)
    else:
        known = set() if isinstance(marked, UnsetType) else set(marked)
        marked_well = lost <= known <= set(plan.columns)
        marked_well &= all(plan.levels[name][-1] == MISSING for name in known if name in plan.levels)
    if isinstance(fills, UnsetType):
        return marked_well
    return marked_well and set(fills) == set(plan.columns) and all(map(_fits, *_pairs(plan, fills)))


def _pairs(plan: DesignPlan, fills: Mapping[str, Fill]) -> tuple[list[Fill], list[tuple[str, ...]]]:
    return list(fills.values()), [plan.levels.get(name, ()) for name in fills]


def _fits(fill: Fill, levels: tuple[str, ...]) -> bool:
    return fill in levels if isinstance(fill, str) else not levels and isfinite(fill)


# --- rows that are filled in ---------------------------------------------------------------------


def filled(plan: DesignPlan, read: Read) -> Read:
    """The columns without missing predictors, and beside them the indicators of columns of numbers."""
    marked = () if isinstance(plan.indicators, UnsetType) else plan.indicators
    marks = {indicator(name): name for name in marked if name not in plan.levels}

    def make(name: str) -> Column:
        if name in marks:
            return Column("number", read[marks[name]].missing.astype(np.float64))
        column = read[name]
        return _filled(plan, name, column, name in marked) if name in plan.columns else column

    return made(read, make, dict.fromkeys((*read, *marks)))


def settled(plan: DesignPlan, read: Read) -> DesignPlan:
    """The plan with what stands for missing numbers at this site until all have agreed, where they have not.

    So a few rows are filled in as all of them are.
    """
    if not plan.study.fills_in or not isinstance(plan.fills, UnsetType):
        return plan
    plain = (name for name in plan.columns if name not in plan.levels)
    return replace(plan, fills={name: _stand_in(_numbers(read[name])) for name in plain})


def _filled(plan: DesignPlan, name: str, column: Column, marked: bool) -> Column:
    lost = column.missing
    if not lost.any():
        return column
    fills = {} if isinstance(plan.fills, UnsetType) else plan.fills
    if name not in plan.levels:
        values = _numbers(column)
        fill = fills[name] if name in fills else _stand_in(values)
        return Column("number", np.where(lost, fill, values))
    level = MISSING if marked else str(fills.get(name, plan.levels[name][0]))
    mine = column.as_category()
    levels = mine.levels if level in mine.levels else (*mine.levels, level)
    return with_values(mine, values=np.where(lost, levels.index(level), mine.values), levels=levels)


def _numbers(column: Column) -> NDArray[np.float64]:
    """The values of a column of numbers; of a site that misses all of them it may have another kind."""
    return np.asarray(column.values if column.kind == "number" else np.full(len(column.values), np.nan))


def _stand_in(values: NDArray[np.float64]) -> float:
    """The site's own mean, until that of all is known; nothing computed from it leaves the site."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else 1.0


def agreed_levels(
    study: Study, levels: Mapping[str, tuple[str, ...]], lost: set[str]
) -> dict[str, tuple[str, ...]]:
    """The levels, with one more for the missing values of a category that has indicators."""
    marked = lost if study.missing == "indicator" else set[str]()
    for name in marked & set(levels):
        if MISSING in levels[name]:
            raise DataError(
                f"column {name!r} has missing values and a level {MISSING!r} too; rename that level, or mark "
                "its rows as missing"
            )
    return {name: (*given, MISSING) if name in marked else given for name, given in levels.items()}


def agreed_indicators(study: Study, columns: tuple[str, ...], lost: set[str]) -> tuple[str, ...] | UnsetType:
    """The columns that miss values anywhere, where the study has indicators."""
    return tuple(name for name in columns if name in lost) if study.missing == "indicator" else UNSET
