"""What a study may say together: each thing once, columns in one role, and numbers that can be."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING

from fedshed._utils.errors import ConfigError
from fedshed.objectives.families import family_of
from fedshed.preparation import combinations
from fedshed.preparation.holdout import check_holdout
from fedshed.preparation.private import check_private
from fedshed.preparation.timing import check_times
from fedshed.tables.columns import level_text

if TYPE_CHECKING:
    from fedshed.preparation.study import Study

MOST_COLUMNS = 10_000  # of a table, and of a design
MOST_LEVELS = 100_000  # that `max_levels` may allow


def check_study(study: Study) -> None:
    """ConfigError for the first thing that cannot be."""
    for check in (
        _not_too_many,
        _one_way_to_say_it,
        _no_column_twice,
        _possible_numbers,
        _possible_lists,
        combinations.check_lasso,
        check_private,
        check_times,
        check_holdout,
        combinations.check_parameter,
        combinations.check_firth,
        combinations.check_estimates,
    ):
        check(study)


def left_side(formula: str) -> str:
    """The target that a formula names."""
    left, tilde, _ = formula.partition("~")
    if not tilde or not left.strip():
        raise ConfigError(f"formula {formula!r} has no target; write 'target ~ terms', or give target")
    if left.strip().startswith("Surv("):
        raise ConfigError(
            f"formula {formula!r}: name the columns of a survival model apart (time = ..., event = ..., or "
            "--time, --event), and write the terms alone, as in 'age + sex'"
        )
    return left.strip().strip("`")


def _one_way_to_say_it(study: Study) -> None:
    if not study.target:
        what = "time" if family_of(study.loss).survival else "target"
        raise ConfigError(f"the study names no {what}; give {what} = 'column' (--{what})")
    if study.columns is not None and study.formula is not None:
        raise ConfigError("give columns or a formula, not both")
    if study.exclude and (study.columns is not None or study.formula is not None):
        raise ConfigError(
            "exclude is for studies without columns and formula, which name the predictors; leave exclude out"
        )
    if study.formula is not None and "~" in study.formula and left_side(study.formula) != study.target:
        raise ConfigError(
            f"target is {study.target!r} but the formula's is {left_side(study.formula)!r}; give it once"
        )
    if study.offset is not None and study.exposure is not None:
        raise ConfigError("give offset or exposure, not both: the offset of an exposure is its logarithm")
    if study.positive and family_of(study.loss).classes != "two" and study.event is None:
        raise ConfigError(
            f"positive is for a family of two classes, not for {study.family}; leave positive out"
        )
    _weights_said_once(study)
    if family_of(study.loss).classes == "ordered" and not study.intercept:
        raise ConfigError(
            f"the {study.family} family has thresholds in place of an intercept; leave intercept = false out"
        )
    if family_of(study.loss).classes in ("many", "ordered") and (study.offset or study.exposure):
        raise ConfigError(
            f"the {study.family} family has no offset, which would shift every class alike; leave it out"
        )


def _weights_said_once(study: Study) -> None:
    if study.trials is not None and not family_of(study.loss).grouped:
        raise ConfigError(f"trials are for the binomial families, not for {study.family}; leave trials out")
    if study.trials is not None and study.weight is not None:
        raise ConfigError("give trials or weight, not both: the trials of a row are its weight")
    if study.weight_type != "auto" and study.weight is None:
        raise ConfigError(
            f"weight_type is {study.weight_type!r}, but the study names no weight; name its column (weight)"
        )


def _no_column_twice(study: Study) -> None:
    predictors = [c for c in study.columns or () if c != study.site]  # a site may have its own intercept
    marks = [study.holdout] if isinstance(study.holdout, str) else []
    named = [*(c for c in (*study.beside, study.site) if c), *marks, *predictors, *study.exclude]
    twice = sorted(c for c, count in Counter(named).items() if count > 1)
    if twice:
        raise ConfigError(
            f"column {twice[0]!r} has two roles; a column can be only one of target, weight, predictor, ..."
        )
    curves = family_of(study.loss).survival  # which need no columns
    if study.columns is not None and not study.columns and not (study.intercept or curves):
        raise ConfigError("a model needs columns or an intercept; name at least one column")


def _not_too_many(study: Study) -> None:
    for name in ("columns", "exclude", "positive", "categories", "references", "levels", "classes", "strata"):
        if len(getattr(study, name) or ()) > MOST_COLUMNS:
            raise ConfigError(f"{name} has more than {MOST_COLUMNS} entries; name fewer")


def _possible_lists(study: Study) -> None:
    """Levels and classes are two at least, each once, and the reference is one of them."""
    for column in study.levels:
        listed = study.levels_of(column)
        if len(listed) < 2 or len(set(listed)) < len(listed):
            raise ConfigError(f"levels of {column!r} must be two or more, each listed once")
        reference = level_text(study.references.get(column, listed[0]))
        if reference not in listed:
            raise ConfigError(
                f"the reference {reference!r} is not among the levels listed for {column!r}; correct one of "
                "them"
            )
    _possible_reference_class(study)
    if not study.classes:
        return
    if not study.classified:
        raise ConfigError(
            f"classes are for a target of classes, but the {study.family} family has numbers; leave them out"
        )
    if study.positive:
        raise ConfigError("give positive or classes, not both: with positive the classes are True and False")
    kinds = {bool if isinstance(c, bool) else str if isinstance(c, str) else float for c in study.classes}
    if len(kinds) > 1 or len(set(study.classes)) < max(2, len(study.classes)):
        raise ConfigError(
            "classes must be two or more, each listed once, all of them text or all of them numbers"
        )
    if family_of(study.loss).classes == "two" and len(study.classes) > 2:
        raise ConfigError(
            f"the {study.family} family has two classes, not {len(study.classes)}; use multinomial or ordinal"
        )


def _possible_reference_class(study: Study) -> None:
    """Only a target of several classes has a reference among them; two classes have `positive`."""
    if study.target not in study.references:
        return
    kind = family_of(study.loss).classes
    if kind == "two":
        raise ConfigError(
            f"references names the target {study.target!r}, which has two classes; name the class that is "
            "modelled instead (positive = [...], --positive)"
        )
    if kind != "many":
        raise ConfigError(
            f"references names the target {study.target!r}, but the {study.family} family has no reference "
            "class; leave it out"
        )


def _possible_numbers(study: Study) -> None:
    for name, penalty in (("l2", study.l2), ("l1", study.l1)):
        given = penalty.values() if isinstance(penalty, dict) else [penalty]
        if not all(isfinite(value) and value >= 0 for value in given):
            raise ConfigError(f"{name} must be finite and at least 0, not {penalty!r}")
    if not 2 <= study.max_levels <= MOST_LEVELS:
        raise ConfigError(f"max_levels must be from 2 to {MOST_LEVELS}, not {study.max_levels}")
