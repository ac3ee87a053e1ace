"""The design of one site: numbers as they are, categories as a column of zeros and ones for each level."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import UnsetType
from numpy.typing import NDArray

from fedshed._utils.errors import DataError, QuotingError
from fedshed.linalg.tall import Tall
from fedshed.preparation import formulas
from fedshed.preparation.filling import indicator
from fedshed.preparation.numerals import fault_of_numbers, name_mark
from fedshed.preparation.transforms import completed
from fedshed.tables.columns import Column
from fedshed.tables.frames import Read
from fedshed.tables.stored import LARGEST, unusable

_NOTES = logging.getLogger("fedshed")

if TYPE_CHECKING:
    from fedshed.preparation.plan import DesignPlan


@dataclass(frozen=True, eq=False)
class Design:
    """X without an intercept, the names of its columns, and the term that each belongs to."""

    X: NDArray[np.float64] | Tall
    names: tuple[str, ...]
    terms: tuple[str, ...]


def build(plan: DesignPlan, read: Read, rows: int, *, stand_in: bool = False) -> Design:
    """The design of a site's rows, by the formula or column by column, all its numbers finite."""
    design = of_rows(plan, read, rows, stand_in)
    check_finite(design)
    return design


def of_rows(
    plan: DesignPlan, read: Read, rows: int, stand_in: bool = False, order: Literal["C", "F"] = "C"
) -> Design:
    """The design of some rows, whatever its numbers are; in order "F" its columns are written quicker."""
    if plan.study.formula is not None:
        design = _by_formula(plan, read, rows, stand_in)
    else:
        design = _by_column(plan, read, rows, order)
    design = _without_aliased(plan, _with_indicators(plan, read, design))
    if plan.names and design.names != plan.names:
        raise DataError("the columns of the design are not those that were agreed on; prepare again")
    return design


def check_finite(design: Design) -> None:
    """Refuse a design with a number that is infinite, not defined or too large to compute with."""
    lost, huge = unusable(design.X)
    for rows, what, remedy in (
        (lost, "is infinite or not defined", "correct or drop those rows"),
        (huge, f"is beyond {LARGEST:g}", "correct those rows, or change its unit"),
    ):
        if rows.any():
            raise DataError(
                f"{design.names[int(rows.argmax())]!r} {what} in {rows.max()} of {design.X.shape[0]} rows; "
                f"{remedy}"
            )


def _without_aliased(plan: DesignPlan, design: Design) -> Design:
    """The design without the columns of empty cells."""
    if isinstance(plan.aliased, UnsetType):
        return design
    kept = [j for j, name in enumerate(design.names) if name not in plan.aliased]
    unknown = design.X[:, [j for j in range(len(design.names)) if j not in kept]].any(axis=1)
    if unknown.any():  # of new rows: those of the fit have only zeros there
        _NOTES.warning(
            "%d of %d rows have a combination of levels that no row of the fit had (%s is left out); what is "
            "predicted there assumes that its coefficient is 0",
            int(unknown.sum()), design.X.shape[0], ", ".join(plan.aliased),
        )  # fmt: skip
    X = np.ascontiguousarray(design.X[:, kept])
    return Design(X, tuple(design.names[j] for j in kept), tuple(design.terms[j] for j in kept))


def _with_indicators(plan: DesignPlan, read: Read, design: Design) -> Design:
    """The design with a column for each predictor of numbers whose missing values are marked, at its end."""
    marked = () if isinstance(plan.indicators, UnsetType) else plan.indicators
    names = [name for name in marked if name not in plan.levels]
    if not names:
        return design
    X = np.column_stack([design.X, *(numbers(name, read[indicator(name)]) for name in names)])
    terms = tuple(name if name in design.terms else indicator(name) for name in names)
    return Design(X, (*design.names, *map(indicator, names)), (*design.terms, *terms))


def _by_formula(plan: DesignPlan, read: Read, rows: int, stand_in: bool) -> Design:
    parsed = formulas.formula_of(plan.study)
    states = None if stand_in else completed(parsed.transforms, plan.transforms)
    plain = {name: numbers(name, read[name]) for name in plan.columns if name not in plan.levels}
    coded = {name: (codes(name, read[name], levels), levels) for name, levels in plan.levels.items()}
    return Design(*formulas.evaluate(parsed, plain, coded, rows, states))


def names(plan: DesignPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of the design (`age`, `region[north]`), and the column of the table each comes from."""
    pairs = [
        (f"{column}[{level}]", column) if column in plan.levels else (column, column)
        for column in plan.columns
        for level in plan.levels.get(column, ("", ""))[1:]
    ]
    return tuple(name for name, _ in pairs), tuple(term for _, term in pairs)


def _by_column(plan: DesignPlan, read: Read, rows: int, order: Literal["C", "F"]) -> Design:
    columns, terms = names(plan)
    formulas.check_width(len(columns))
    X = np.zeros((rows, len(columns)), order=order)
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
    return Design(X, columns, terms)


def numbers(name: str, column: Column) -> NDArray[np.float64]:
    """A column that was agreed to hold numbers."""
    if column.kind != "number":
        if column.kind == "boolean":
            raise DataError(f"column {name!r} was agreed to hold numbers, but is boolean; convert it")
        fault = fault_of_numbers(column.levels, codes=False)
        mark = name_mark(column.levels)
        remedy = "; name a mark for missing values in na_values (--na-values), or convert it"
        text = f"text, though {fault}" if fault else f"text{mark}{remedy}"
        raise DataError(f"column {name!r} was agreed to hold numbers, but is {text}")
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
        raise QuotingError(
            f"column {name!r}: the level {unknown[0]!r} is none of the study's: {', '.join(levels[:10])}"
            f"{', ...' if len(levels) > 10 else ''}; correct it, leave out those rows, or leave their "
            "predictions empty (--on-unknown-level missing)"
        )
    agreed = np.array([place.get(level, -1) for level in mine.levels], dtype=np.intp)
    return np.asarray(agreed[mine.values])
