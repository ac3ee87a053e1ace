"""What a site says about its table: columns, kinds, levels, classes and counts, and nothing else."""

from __future__ import annotations

import logging
import re

import numpy as np

from fedshed._utils.errors import DataError, QuotingError
from fedshed.objectives.families import family_of
from fedshed.preparation import formulas
from fedshed.preparation.design import Design, check_finite
from fedshed.preparation.filling import rows_kept
from fedshed.preparation.messages import Field, Schema
from fedshed.preparation.numerals import fault_of_numbers, reads_as_number
from fedshed.preparation.objections import Objections
from fedshed.preparation.plan import Label
from fedshed.preparation.responses import event, labels, other_values, positive_rows
from fedshed.preparation.row_numbers import numbers_rows
from fedshed.preparation.spellings import option, say_positive
from fedshed.preparation.study import MOST_COLUMNS, Study
from fedshed.tables.columns import Column, Kind
from fedshed.tables.frames import LONGEST, Frame, Read, in_order, made

MOST_CLASSES = 100
_NOTES = logging.getLogger("fedshed")
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")


_WORDS = {"number": "numbers", "category": "text or codes", "boolean": "booleans"}


def in_words(kind: Kind) -> str:
    """What a column of this kind holds."""
    return _WORDS[kind]


def describe(study: Study, frame: Frame, least: int = 1) -> Schema:
    """The schema of the columns a study uses; levels and classes are those of the rows that will be used.

    A positive value of the target that fewer than `least` rows have is not named.
    """
    try:
        return _schema(study, frame, least)
    except DataError:
        _raise_objections(study, frame)
        raise


def _raise_objections(study: Study, frame: Frame) -> None:
    """Raise all that is wrong with single columns, after something was."""
    objections = Objections()
    for name in (*study.beside, *predictors(study, frame)):
        column = objections.check(_typed, study, name, frame)
        if column is not None:
            objections.check(_check_values, study, name, column)
        if column is not None and name == study.target and study.classified:
            objections.check(_labels, study, column)
    objections.raise_all()


def _schema(study: Study, frame: Frame, least: int) -> Schema:
    read = read_columns(study, frame)
    used, complete = rows_to_use(study, read)
    fields = [_field(study, name, column, used[name]) for name, column in read.items()]
    classes = _labels(study, used[study.target]) if study.classified else ()
    excluded = tuple(name for name in study.exclude if name in frame.names)
    if not study.positive:
        return Schema(frame.rows, complete, tuple(fields), classes, excluded)
    target = _marked(study, frame, read)
    counts, others = positive_rows(study, target), other_values(study, target, least)
    positive = tuple(place for place, rows in counts.items() if rows >= least)
    return Schema(frame.rows, complete, tuple(fields), classes, excluded, positive, others)


def rarest(study: Study, frame: Frame, schema: Schema) -> dict[str, int]:
    """How many rows have the rarest of the values that a schema names: levels, or classes of the target.

    Those of a protected study are the study's own, and tell of no row.
    """
    if study.protected:
        return {}
    named = {field.name for field in schema.fields if field.levels} | (
        {study.target} if schema.labels else set()
    )
    read = read_columns(study, frame)
    used, _ = rows_to_use(study, read)
    fewest = {name: _fewest(used[name]) for name in used if name in named}
    if schema.positive:
        counts = positive_rows(study, _marked(study, frame, read))
        rows = [counts.get(j, 0) for j in schema.positive]
        fewest[study.marked] = min([*rows, fewest.get(study.marked, rows[0])])
    return fewest


def _marked(study: Study, frame: Frame, read: Read) -> Column:
    """The target or event as it is in the table, in the rows that will be used."""
    target = frame.column(study.marked)
    return target if study.missing == "refuse" else target.take(rows_kept(study, read))


def _fewest(column: Column) -> int:
    there = column.values[~column.missing]
    return int(np.unique(there, return_counts=True)[1].min(initial=len(there)))


def read_columns(study: Study, frame: Frame) -> Read:
    """The columns that a study uses, each as the kind that the study makes of it."""
    read = frame.columns((*study.beside, *predictors(study, frame)))
    return made(read, lambda name: _typed(study, name, frame))


def rows_to_use(study: Study, read: Read) -> tuple[Read, int]:
    """The columns in the rows that will be used, and how many rows are complete."""
    kept = rows_kept(study, read)
    drop = study.missing != "refuse"
    return made(read, lambda name: read[name].take(kept)) if drop else read, int(kept.sum())


def predictors(study: Study, frame: Frame) -> tuple[str, ...]:
    """The columns of the table that the model's terms are made of."""
    if study.columns is not None:
        return study.columns
    if study.formula is not None:
        return formulas.formula_of(study).columns
    special = {*study.beside, study.site, study.holdout, *study.exclude}
    found = tuple(name for name in frame.names if name not in special)
    if len(found) > MOST_COLUMNS:
        raise DataError(f"the table has {len(found)} columns; name at most {MOST_COLUMNS} in columns")
    return found


def categories(study: Study, frame: Frame, columns: tuple[str, ...]) -> set[str]:
    """The columns that are categories in this table."""
    return {name for name in columns if _typed(study, name, frame).kind != "number"}


def _typed(study: Study, name: str, frame: Frame) -> Column:
    column = frame.column(name)
    if name == study.marked:
        return event(study, column)
    if is_category(study, name):
        return column.as_category()
    if name not in study.beside:
        _check_text(name, column)
    return column


def is_category(study: Study, name: str) -> bool:
    """Whether the study itself calls a column a category."""
    in_formula = formulas.formula_of(study).categories if study.formula else ()
    return name in study.categories or name in in_formula or name == study.site or name in study.levels


def text_columns(study: Study) -> tuple[str, ...]:
    """The columns whose numbers are codes: where a file is read, as they are written."""
    in_formula = formulas.formula_of(study).categories if study.formula is not None else frozenset[str]()
    named = {*study.categories, *study.levels, *in_formula, *([study.site] if study.site else [])}
    return tuple(sorted(named))


def _check_text(name: str, column: Column) -> None:
    """Refuse a column of numbers that are text: by its type, its marks, or a slip."""
    if column.kind != "category" or column.declared or not column.levels:
        return
    wrong = [level for level in column.levels if not reads_as_number(level)]
    if wrong and all(map(_DECIMAL_COMMA.fullmatch, wrong)):
        raise DataError(
            f"column {name!r} is text, because its numbers have a comma ({len(wrong)} of its "
            f"{len(column.levels)} different values); write a decimal point, or read the file with its "
            "decimal mark (decimal = ',', --decimal ,)"
        )
    codes = looks_like_identifier(len(column.levels), int((~column.missing).sum()))
    if fault := fault_of_numbers(column.levels, codes):
        raise DataError(
            f"column {name!r} is text, though {fault}, or list the column under categories (--categories; in "
            "a formula: C()) if they are codes"
        )


def _field(study: Study, name: str, column: Column, used: Column) -> Field:
    filled = study.fills_in and name not in study.beside
    missing = int((used if filled else column).missing.sum())
    try:
        levels = _check_values(study, name, used)
        return Field(name, column.kind, missing, levels, "", column.ordered, column.from_numbers)
    except QuotingError:
        raise
    except DataError as error:
        return Field(name, column.kind, missing, problem=str(error))


def _check_values(study: Study, name: str, column: Column) -> tuple[str, ...]:
    """The levels of a column; refuse values of a predictor that no model can use, or that identify rows."""
    levels = _levels(study, name, column)
    _no_row_numbers(study, name, column)
    if column.kind == "number" and name not in study.beside and study.formula is None:
        known = column.values[~np.isnan(column.values)]
        check_finite(Design(known[:, None], (name,), (name,)))
    return levels


def _levels(study: Study, name: str, column: Column) -> tuple[str, ...]:
    """The levels of a predictor that is a category, in their order; few and short."""
    if column.kind == "number" or name in study.beside:
        return ()
    if name in study.levels:
        refuse_unlisted(study, name, column)
    there = int((~column.missing).sum())
    if looks_like_identifier(len(column.levels), there) and not is_category(study, name):
        raise DataError(identifier(study, name, len(column.levels), there))
    if len(column.levels) > study.max_levels:
        raise DataError(
            f"column {name!r} has {len(column.levels)} levels, more than max_levels = {study.max_levels}; "
            "leave it out if it identifies rows, turn it into numbers, or group its levels"
        )
    if any(len(level) > LONGEST for level in column.levels):
        raise DataError(f"column {name!r} has levels of more than {LONGEST} characters; shorten them")
    occurring = set(column.values[~column.missing].tolist())
    levels = tuple(level for j, level in enumerate(column.levels) if j in occurring)
    return levels if column.ordered else in_order(levels)


def _no_row_numbers(study: Study, name: str, column: Column) -> None:
    """Refuse whole numbers that number the rows, unless the study names the column."""
    named = study.columns is not None or study.formula is not None
    if named or column.kind != "number" or name in study.beside or not numbers_rows(column.values):
        return
    raise DataError(
        f"column {name!r} has a different whole number in each of {len(column.values)} rows and looks like "
        f"an identifier; leave it out (exclude = [{name!r}], {option('exclude', name)}), or name it in "
        "columns or a formula to use it all the same"
    )


def refuse_unlisted(study: Study, name: str, column: Column) -> None:
    """Refuse a level that the study does not list; only the site itself is told which."""
    mine, listed = column.as_category(), set(study.levels_of(name))
    occurring = np.unique(mine.values[~mine.missing]).tolist()
    for level in (mine.levels[j] for j in occurring):
        if level not in listed:
            told = f"column {name!r} has a level that the study does not list; the site's own log names it"
            raise QuotingError(
                f"column {name!r} has the level {level!r}, which the study does not list; correct those "
                "rows, or list it in the study (levels = ...)", told,
            )  # fmt: skip


def refuse_other_classes(study: Study, found: tuple[Label, ...]) -> None:
    """Refuse a class of the target that the study does not list, where it lists them."""
    if study.classes and any(label not in study.classes for label in found):
        raise DataError(
            f"the target {study.target!r} has a class that the study does not list; correct those rows, or "
            "list it in the study (classes = ...)"
        )


def looks_like_identifier(levels: int, rows: int) -> bool:
    """Whether a column of text has nearly as many values as rows, as names and numbers of people have."""
    return levels >= 20 and levels > 0.8 * rows


def identifier(study: Study, name: str, levels: int, rows: int) -> str:
    """Why such a column is refused, and what to do."""
    named = study.columns is not None or study.formula is not None
    how = "of the columns or the formula" if named else f"(exclude = [{name!r}], {option('exclude', name)})"
    return (
        f"column {name!r} has {levels} different values in {rows} rows and looks like an identifier; leave "
        f"it out {how}, or list it under categories to use it all the same"
    )


def _labels(study: Study, column: Column) -> tuple[bool | int | float | str, ...]:
    """The classes of the target, if they are few: the values of one that measures something never leave."""
    found, numbers = labels(column), "choose a family for numbers (linear, poisson, gamma)"
    refuse_other_classes(study, found)
    if family_of(study.loss).classes == "two" and len(found) > 2:
        raise DataError(
            f"the target {study.target!r} has {len(found)} different values, but the {study.family} family "
            f"needs exactly two classes; {numbers} or multinomial, or {say_positive(found)}; a site "
            "that has none of the values named counts as all no"
        )
    if len(found) > min(study.max_levels, MOST_CLASSES):
        raise DataError(
            f"the target {study.target!r} has {len(found)} different values, too many for classes; "
            f"{numbers}, or group them"
        )
    if any(isinstance(label, float) for label in found):
        raise DataError(
            f"the target {study.target!r} holds numbers that are not whole, which are no classes; {numbers}, "
            "or write the classes as text"
        )
    if any(isinstance(label, str) and len(label) > LONGEST for label in found):
        raise DataError(f"the target {study.target!r} has classes of over {LONGEST} characters; shorten them")
    return found
