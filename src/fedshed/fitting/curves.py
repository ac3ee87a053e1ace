"""The survival curves of a study: which columns of its design are the groups, and what the sites count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.linalg.arrays import Vector
from fedshed.preparation import DesignPlan
from fedshed.preparation.messages import Ready
from fedshed.protocol.conversation import Problem
from fedshed.solve.stages import survival_counts

ALL = "all"  # the name of the one group


def count_curves(
    plan: DesignPlan, problem: Problem, sites: Sites, ready: Mapping[str, Ready], by: str | None,
    times: Vector | None, last: float | None = None, least: int = 0, spent: Traffic | None = None,
    patience: int = 20,
) -> tuple[SurvivalCurves, Traffic]:  # fmt: skip
    """The curves by the levels of a category of the model, or of all rows, and what they took."""
    levels = group_levels(plan, by)
    columns = tuple(plan.names.index(f"{by}[{level}]") for level in levels[1:])
    found, traffic = survival_counts(
        sites, problem, times, columns, last, least, spent or Traffic(), patience
    )
    dropped = sum(each.dropped for each in ready.values())
    made = SurvivalCurves(
        plan.study.target, plan.study.event or "", by, levels, found.tables, dropped, traffic.exchanges,
        traffic.uplink_bytes, traffic.downlink_bytes,
    )  # fmt: skip
    return made, traffic


def group_levels(plan: DesignPlan, by: str | None) -> tuple[str, ...]:
    """The groups, the reference first, as the indicators in the design have them."""
    if by is None:
        return (ALL,)
    if by not in plan.levels:
        raise ConfigError(f"curves by {by!r} need it as a category of the model; name it as one (categories)")
    coded = [level for level in plan.levels[by] if f"{by}[{level}]" in plan.names]
    left = [level for level in plan.levels[by] if level not in coded]
    if len(left) != 1:
        raise ConfigError(f"curves by {by!r} need the category itself as a term of the model; add it")
    return (str(left[0]), *map(str, coded))


def study_curves(
    plan: DesignPlan, problem: Problem, sites: Sites, ready: Mapping[str, Ready], patience: int
) -> tuple[SurvivalCurves | None, Traffic]:
    """The curves that a study declares, on its grid."""
    study = plan.study
    if not study.grid:
        return None, Traffic()
    return count_curves(
        plan, problem, sites, ready, study.by, np.asarray(study.grid, dtype=np.float64), patience=patience
    )
