"""Whether a plan is one that a study leads to at this site, as far as the site can tell."""

from __future__ import annotations

import numpy as np
from msgspec import UNSET, UnsetType

from fedshed._utils.errors import ProtocolError
from fedshed.objectives.families import family_of
from fedshed.preparation import filling, formulas
from fedshed.preparation.describe import MOST_CLASSES, categories, predictors
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.study import Study
from fedshed.tables.columns import level_text
from fedshed.tables.frames import Frame, Read


def check_plan(study: Study, frame: Frame, plan: DesignPlan) -> None:
    """Refuse a plan of other columns, levels, classes or scales than the study leads to.

    Levels and classes that only other sites have, and the numbers of scales and knots, cannot be known here.
    """
    wrong = {
        "study": plan.study != study,
        "columns": not _same_columns(study, frame, plan),
        "intercept": plan.intercept != _intercept(study),
        "categories": not _same_categories(study, frame, plan),
        "levels": any(_impossible(study, name, given) for name, given in plan.levels.items()),
        "classes": not _possible_classes(study, plan),
        "scales": not _possible_scales(study, plan),
        "terms": not set(plan.transforms) <= _terms(study),
        "aliased columns": plan.aliased is not UNSET and (study.formula is None or study.protected),
        "notes": bool(plan.warnings),
        "parameter": not _possible_parameter(study, plan),
        "missing values": not filling.possible(plan, _read(study, frame, plan)),
    }
    if found := [name for name, is_wrong in wrong.items() if is_wrong]:
        raise ProtocolError(f"the plan has other {', '.join(found)} than the study that was approved")


def _same_columns(study: Study, frame: Frame, plan: DesignPlan) -> bool:
    """The predictors that the study names, in its order; where it names none, all of the table's."""
    expected = predictors(study, frame)
    if study.columns is None and study.formula is None:
        return len(plan.columns) == len(expected) and set(plan.columns) == set(expected)
    return plan.columns == expected


def _read(study: Study, frame: Frame, plan: DesignPlan) -> Read:
    return frame.columns((*study.beside, *plan.columns))


def _same_categories(study: Study, frame: Frame, plan: DesignPlan) -> bool:
    """A column that is missing in every row here has the kind that it has elsewhere."""
    columns = plan.columns
    if study.fills_in:
        read = _read(study, frame, plan)
        used = int(filling.rows_kept(study, read).sum())
        counts = filling.counts_of(study, columns, read)
        columns = tuple(name for name in columns if counts[name] < used)
    return set(plan.levels) & set(columns) == categories(study, frame, columns)


def _intercept(study: Study) -> bool:
    said = study.intercept if study.formula is None else formulas.formula_of(study).intercept
    return said and study.has_intercept


def _impossible(study: Study, name: str, levels: tuple[str, ...]) -> bool:
    """Whether levels occur twice, are too many, or begin with another reference than the study's."""
    reference = level_text(study.references[name]) if name in study.references else None
    return (
        len(set(levels)) < len(levels)
        or len(levels) > study.max_levels
        or (reference is not None and levels[:1] != (reference,))
        or (name in study.levels and sorted(_listed(study, levels)) != sorted(study.levels_of(name)))
    )


def _listed(study: Study, levels: tuple[str, ...]) -> tuple[str, ...]:
    """The levels without that of missing values."""
    marked = study.missing == "indicator" and levels[-1:] == (filling.MISSING,)
    return levels[:-1] if marked else levels


def _possible_classes(study: Study, plan: DesignPlan) -> bool:
    if plan.classes is None or not study.classified:
        return plan.classes is None and not study.classified
    if study.classes and set(plan.classes) != set(study.classes):
        return False
    many = family_of(study.loss).classes in ("many", "ordered")
    if many and study.classes:
        return plan.classes == study.classes
    ordered = list(plan.classes) == sorted(plan.classes, key=lambda value: (isinstance(value, str), value))
    return ordered and len(set(plan.classes)) == len(plan.classes) and (many or len(plan.classes) == 2) and (
        len(plan.classes) <= MOST_CLASSES
    )  # fmt: skip


def _possible_scales(study: Study, plan: DesignPlan) -> bool:
    """None where the study does not standardise; else finite, above 0, and as many as there are means."""
    given = plan.centres, plan.scales
    if given == (None, None):
        return True
    if (
        not (study.standardize or formulas.powers_to_centre(study))
        or plan.centres is None
        or plan.scales is None
    ):
        return False
    scales = np.array(plan.scales)
    return len(plan.centres) == len(scales) and bool(
        np.isfinite(plan.centres).all() and np.isfinite(scales).all() and (scales > 0).all()
    )


def _possible_parameter(study: Study, plan: DesignPlan) -> bool:
    """None, or a number within the range of a parameter that the study leaves to be found."""
    if isinstance(plan.parameter, UnsetType):
        return True
    parameter = family_of(study.loss).parameter
    return study.searched and parameter is not None and parameter.possible(plan.parameter)


def _terms(study: Study) -> set[str]:
    """The terms of the formula that need numbers of all rows."""
    if study.formula is None:
        return set()
    return {it.term for it in formulas.formula_of(study).transforms}
