"""Protected studies: what the study must list itself, because only sums leave the sites."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, DataError
from fedshed.preparation import formulas
from fedshed.preparation.describe import (
    describe,
    in_words,
    read_columns,
    refuse_other_classes,
    refuse_unlisted,
    rows_to_use,
    text_columns,
)
from fedshed.preparation.messages import Field, Schema
from fedshed.preparation.plan import DesignPlan, Label
from fedshed.preparation.responses import labels, positive_rows
from fedshed.preparation.study import Study
from fedshed.preparation.transforms import Spline, begun
from fedshed.tables.columns import Column, Kind
from fedshed.tables.frames import Frame

_NOTES = logging.getLogger("fedshed")


def check_protected(study: Study) -> None:
    """Refuse a study that would need to know more of the sites' tables than sums, with what to add to it."""
    if study.columns is None and study.formula is None:
        raise ConfigError(
            "a protected study must name its columns, because sites do not say which they have; give columns "
            "or a formula"
        )
    for column in (name for name in text_columns(study) if name in _predictors(study)):
        if column not in study.levels:
            raise ConfigError(
                f"column {column!r} is a category, whose levels a protected study must list, because sites "
                f"do not say which they have; give levels = {{{column} = [...]}}"
            )
    if study.classified and not (study.classes or study.positive):
        raise ConfigError(
            f"a protected study must list the classes of its target {study.target!r}, because sites do not "
            "say which they have; give classes = [...] (or positive, the values that count as yes)"
        )
    if study.site is not None and study.site in _predictors(study):
        raise ConfigError(
            f"a protected study cannot have an intercept for each site ({study.site!r}), because sums over "
            "the rows of one site would be those of that site alone; leave it out"
        )
    for it in formulas.formula_of(study).transforms if study.formula is not None else ():
        state = begun(it)
        if isinstance(state, Spline) and not state.placed:
            raise ConfigError(
                f"term {it.term!r} of a protected study needs knots, lower_bound and upper_bound, because "
                "they would come from histograms, which are not sums; give all three in the formula"
            )


def listed(study: Study, plan: DesignPlan) -> Study:
    """A study as a protected one, with the columns, levels and classes that its tables agreed on."""
    columns = {} if study.formula is not None else {"columns": plan.columns}
    classes = {} if study.positive or plan.classes is None else {"classes": plan.classes}
    return replace(study, protected=True, levels=dict(plan.levels), exclude=(), **columns, **classes)


def schema_of(study: Study, frame: Frame, least: int = 1) -> Schema:
    """What a site says of its table: as `describe` has it, or as a protected study has it."""
    return approved_schema(study, frame) if study.protected else describe(study, frame, least)


def approved_schema(study: Study, frame: Frame) -> Schema:
    """The schema that the study itself gives, with this site's counts; another table is refused."""
    check_protected(study)
    read = read_columns(study, frame)
    used, complete = rows_to_use(study, read)
    if not complete:
        raise DataError(
            "no row is complete; leave out columns that are always missing, or leave out the site"
        )
    if study.privacy is not None and complete < frame.rows:  # how many has no noise, so it stays here
        raise DataError("some rows miss a value, but a private study needs complete rows; complete the table")
    fields = tuple(_field(study, name, column, used[name]) for name, column in read.items())
    positive = tuple(range(len(study.positive)))
    if study.positive and not positive_rows(study, frame.column(study.marked)):
        _NOTES.warning(
            "column %r has none of the values named by positive; check how it writes them", study.marked
        )
    return Schema(frame.rows, complete, fields, _classes(study, used[study.target]), (), positive)


def _predictors(study: Study) -> tuple[str, ...]:
    return formulas.formula_of(study).columns if study.formula is not None else study.columns or ()


def _field(study: Study, name: str, column: Column, used: Column) -> Field:
    kind = _kind(study, name)
    filled = study.fills_in and name not in study.beside
    lost = int((used if filled else column).missing.sum())
    if column.kind != kind and name not in study.any_kind and not (filled and lost == len(used.values)):
        remedy = "convert it" if kind == "number" or name == study.target else "correct the study"
        listed = "" if name in study.beside else ", or list its levels in the study (levels = ...)"
        raise DataError(
            f"column {name!r} holds {in_words(column.kind)} here, but {in_words(kind)} in the study; "
            f"{remedy}{listed if kind == 'number' else ''}"
        )
    levels = study.levels_of(name) if name in study.levels else ()
    if levels:
        refuse_unlisted(study, name, used)
    return Field(name, kind, lost, levels)


def _kind(study: Study, name: str) -> Kind:
    """The kind of a column as the study has it: numbers, where it says nothing else."""
    if name == study.target and study.classified:
        if study.positive or isinstance(study.classes[0], bool):
            return "boolean"
        return "category" if isinstance(study.classes[0], str) else "number"
    return "category" if name in study.levels or name in study.any_kind else "number"


def _classes(study: Study, target: Column) -> tuple[Label, ...]:
    """The classes of the study, if the target has no others."""
    if not study.classified:
        return ()
    refuse_other_classes(study, labels(target))
    return (False, True) if study.positive else study.classes
