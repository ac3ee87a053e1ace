"""Target, weights and offset of one site, checked; the errors hold counts and never a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import DataError
from fedshed.objectives import family_of
from fedshed.preparation.spellings import Others, look_of_others
from fedshed.preparation.study import Study
from fedshed.tables import survival
from fedshed.tables.columns import Column, level_text
from fedshed.tables.frames import Read, made
from fedshed.tables.stored import LARGEST

Numbers = NDArray[np.float64]


def event(study: Study, column: Column) -> Column:
    """The target; where the study says which of its values are `positive`, whether it is one of them."""
    if not study.positive:
        return column
    positive = {_as_level(value, column) for value in study.positive}
    mine = column.as_category()
    hits = np.array([level in positive for level in (*mine.levels, "")], dtype=np.intp)
    return Column("boolean", np.where(mine.missing, -1, hits[mine.values]), ("False", "True"))


def _as_level(value: object, column: Column) -> str:
    """A value as the column has it: 1 and True are the same class, whichever of them a table has."""
    if column.kind == "boolean" and value in (0, 1):
        return level_text(bool(value))
    return level_text(int(value) if column.kind == "number" and isinstance(value, bool) else value)


def positive_rows(study: Study, column: Column) -> dict[int, int]:
    """How many rows have each of the study's positive values, by its place; without those that none has."""
    mine = column.as_category()
    found = np.bincount(mine.values[~mine.missing], minlength=len(mine.levels))
    rows = dict(zip(mine.levels, found.tolist(), strict=True))
    counts = {j: rows.get(_as_level(value, column), 0) for j, value in enumerate(study.positive)}
    return {j: count for j, count in counts.items() if count}


def other_values(study: Study, column: Column, least: int) -> Others:
    """What the values that are not positive look like, without those that fewer than `least` rows have."""
    mine = column.as_category()
    found = np.bincount(mine.values[~mine.missing], minlength=len(mine.levels)).tolist()
    positive = {_as_level(value, column) for value in study.positive}
    often = {level for level, rows in zip(mine.levels, found, strict=True) if rows >= max(least, 1)}
    return look_of_others(positive, often - positive, has_positive=bool(often & positive))


def labels(column: Column) -> tuple[Any, ...]:
    """The classes that occur in a target, in their order: numbers, text, or False and True."""
    if column.kind == "number":
        found = np.unique(column.values[~column.missing]).tolist()
        return tuple(int(value) if value.is_integer() else value for value in found)
    occurring = np.unique(column.values[column.values >= 0])
    if column.kind == "boolean":
        return tuple(bool(value) for value in occurring)
    return tuple(sorted(column.levels[j] for j in occurring))


def response(study: Study, read: Mapping[str, Column], classes: Sequence[Any] | None) -> NDArray[Any]:
    """y: the target, or records of times and events."""
    if study.event is None or study.time is None:
        return target(study, read[study.target], classes)
    y = survival.survival(
        _numbers(study.time, read[study.time]),
        _events(study.event, read[study.event]),
        None if study.entry is None else _numbers(study.entry, read[study.entry]),
        _strata([read[name] for name in study.strata]),
    )
    for (bad, _, rule), name in zip(survival.broken(y), (study.time, study.entry or study.time), strict=True):
        found = "is negative" if name == study.time else f"is not below {study.time!r}"
        _refuse(name, bad, rule, found)
    return y


def _events(name: str, column: Column) -> NDArray[np.bool_]:
    """Whether each row has its event: 0 and 1, or booleans."""
    if column.kind == "category":
        raise DataError(
            f"column {name!r} holds text; say which of its values are events (positive = [...], --positive)"
        )
    bad = ~np.isin(column.values, (0, 1))
    if bad.any():
        two = np.isin(column.values, (1, 2)).all()
        remedy = (
            "if 2 is the event and 1 is not at every site, say so (positive = [2], --positive 2); a site "
            "with 0 and 1 must be recoded first"
            if two
            else "say which of its values are events (positive = [...], --positive), or correct those rows"
        )
        raise DataError(
            f"column {name!r} is neither 0 nor 1 in {int(bad.sum())} of {len(bad)} rows, but an event is 1 "
            f"and a censored row 0; {remedy}"
        )
    return np.asarray(column.values == 1)


def _strata(columns: Sequence[Column]) -> NDArray[np.intp] | None:
    """A number for each row, the same for rows that agree in all these columns."""
    if not columns:
        return None
    codes = np.column_stack([np.unique(column.values, return_inverse=True)[1] for column in columns])
    return np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1).astype(np.intp)


def target(study: Study, column: Column, classes: Sequence[Any] | None) -> NDArray[Any]:
    """y: classes as they are, or numbers that suit the family."""
    if classes is None:
        return _suited(study, _numbers(study.target, column))
    mine = labels(column)
    unknown = [label for label in mine if label not in classes]
    if unknown:
        raise DataError(f"column {study.target!r} has a class that was not agreed on; prepare again")
    if column.kind == "category":
        return np.asarray(np.array(column.levels)[column.values])
    return np.array(column.values == 1) if column.kind == "boolean" else _whole(column.values)


def weights(study: Study, read: Mapping[str, Column]) -> Numbers | None:
    """The weight of each row, at least 0 and not all 0; of successes among trials, the trials."""
    if study.trials is not None:
        return _numbers(study.trials, read[study.trials])
    if study.weight is None:
        return None
    values = _numbers(study.weight, read[study.weight])
    _refuse(study.weight, values < 0, "a weight is at least 0", "is negative")
    if not values.any():
        raise DataError(f"column {study.weight!r} is 0 in every row; leave the site out")
    return values


def share(study: Study, read: Read) -> Read:
    """The columns with successes as their share of the trials, where the study has trials."""
    if study.trials is None:
        return read
    trials, successes = (_numbers(name, read[name]) for name in (study.trials, study.target))
    _refuse(study.trials, trials <= 0, "a row has at least one trial", "is 0 or negative")
    _refuse(study.trials, trials != np.round(trials), "trials are counted", "is no whole number")
    _refuse(study.target, successes != np.round(successes), "successes are counted", "is no whole number")
    _refuse(study.target, successes < 0, "it counts successes", "is negative")
    _refuse(study.target, successes > trials, f"its trials are {study.trials!r}", "exceeds its trials")
    shares = Column("number", successes / trials)
    return made(read, lambda name: shares if name == study.target else read[name])


def offset(study: Study, read: Mapping[str, Column]) -> Numbers | None:
    """What is added to each row's linear predictor: the offset, or the logarithm of the exposure."""
    name = study.offset or study.exposure
    if name is None:
        return None
    if name not in read:
        raise DataError(f"there is no column {name!r}, which the model needs as its offset or exposure")
    values = _numbers(name, read[name])
    if study.exposure is None:
        return values
    _refuse(name, values <= 0, "an exposure is positive", "is 0 or negative")
    logarithm: Numbers = np.log(values)
    return logarithm


def clusters(study: Study, read: Mapping[str, Column]) -> NDArray[np.intp] | None:
    """A number for each row, the same for rows that are not independent; it means nothing elsewhere."""
    return None if study.cluster is None else read[study.cluster].as_category().values.astype(np.intp)


def _numbers(name: str, column: Column) -> Numbers:
    if column.kind != "number":
        raise DataError(f"column {name!r} must hold numbers; convert it")
    if lost := int(column.missing.sum()):
        raise DataError(f"column {name!r} is missing in {lost} rows; fill them in or drop them")
    _refuse(name, ~np.isfinite(column.values), "a number is finite", "is infinite")
    _refuse(
        name, np.abs(column.values) > LARGEST, "its squares must be numbers, too", f"is beyond {LARGEST:g}"
    )
    return np.asarray(column.values, dtype=np.float64)


def _suited(study: Study, y: Numbers) -> Numbers:
    family = family_of(study.loss)
    found = (
        "is 0 or negative" if family.positive else "is negative" if family.most is None else "lies outside"
    )
    _refuse(study.target, family.unsuited(y), f"the {family.name} family needs {family.response}", found)
    return y


def _refuse(name: str, bad: NDArray[np.bool_], rule: str, found: str) -> None:
    if bad.any():
        raise DataError(
            f"column {name!r} {found} in {int(bad.sum())} of {len(bad)} rows, but {rule}; "
            "correct or drop those rows"
        )


def _whole(values: Numbers) -> NDArray[Any]:
    """Labels as integers where they all are."""
    whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else values
