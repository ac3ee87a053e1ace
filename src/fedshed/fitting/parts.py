"""The parts of a study: what a site answers in each of them, and which of them its study has."""

from __future__ import annotations

from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.registry import BUILT_IN
from fedshed.exchange.sites import Stage as Part
from fedshed.fitting.curves import group_columns
from fedshed.fitting.stages import Play
from fedshed.objectives import family_of
from fedshed.protocol.codec import Decoder
from fedshed.solve.life_counts import SurvivalCounts
from fedshed.solve.stages import (
    BESIDE_THE_FIT,
    CURVES,
    ESTIMATES,
    EVALUATION,
    FIT,
    FOLDS,
    PROFILE,
    SCATTER,
    SCORES,
    SURVIVAL,
    fit_stage,
)
from fedshed.solve.survival_checks import SurvivalCheck


def algorithm_of(stage: Play, n: int) -> AnyAlgorithm:
    """The algorithm of a fit of n parameters."""
    algorithm: AnyAlgorithm = Decoder(BUILT_IN, n)(bytes(stage.algorithm))
    return algorithm


def part_of(number: int, stage: Play, n: int, names: tuple[str, ...] = ()) -> Part:
    """The stage of a part: the study's algorithm in the fit, a stage that both ends know in the others.

    `names` are the columns of the design, which the plan does not contain.
    """
    if number == FIT:
        return fit_stage(algorithm_of(stage, n))
    if why := _undeclared(stage).get(number):
        raise ProtocolError(why)
    if number == CURVES.number and stage.terms is not None:
        groups = group_columns(replace(stage.plan, names=names), stage.terms.study.by)
        return replace(CURVES, conversation=SurvivalCounts(grid=stage.terms.study.grid, groups=groups))
    if number == SURVIVAL.number and stage.terms is not None:
        study = stage.terms.study
        return replace(SURVIVAL, conversation=SurvivalCheck(transform=study.ph_transform, grid=study.grid))
    if number not in BESIDE_THE_FIT:
        raise ProtocolError(
            f"no part of a study has the number {number}; run the same version of fedshed at both ends"
        )
    return BESIDE_THE_FIT[number]


def _undeclared(stage: Play) -> dict[int, str]:
    """The parts that a study does not have, and why."""
    study, terms = stage.plan.study, stage.terms
    absent = (
        (SCATTER, terms is not None and terms.errors is None,
         "the approved study does not ask for standard errors by rows (errors)"),
        (CURVES, terms is not None and not terms.study.grid,
         "the approved study does not ask for survival curves (grid)"),
        (EVALUATION, study.holdout is None,
         "the study does not hold out rows (holdout), so there is nothing to evaluate"),
        (SCORES, not study.protected,
         "sites compare their scores themselves only in a protected study"),
        (PROFILE, not study.searched,
         "the study has no parameter that must be estimated"),
        (ESTIMATES, not study.site_estimates,
         "the study does not ask for each site's own estimate (site_estimates)"),
        (SURVIVAL, not family_of(study.loss).survival,
         "only a survival model has concordant pairs and proportional hazards"),
        (FOLDS, terms is not None,
         "a path asks about hundreds of points, which no approved study allows; run the path on tables in "
         "one place, and approve a study with the chosen penalty (l1, l2)"),
    )  # fmt: skip
    return {part.number: why for part, is_absent, why in absent if is_absent}
