"""The survival curves of a study: which columns of its design are the groups, and what the sites count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

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
    columns = group_columns(plan, by)
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
        raise ConfigError(
            f"curves by {by!r} need this column as a category of the model; name it in categories"
        )
    coded = [level for level in plan.levels[by] if f"{by}[{level}]" in plan.names]
    left = [level for level in plan.levels[by] if level not in coded]
    if len(left) != 1:
        raise ConfigError(
            f"curves by {by!r} need this category as a separate term of the model; add it to the formula"
        )
    return (str(left[0]), *map(str, coded))


def group_columns(plan: DesignPlan, by: str | None) -> tuple[int, ...]:
    """The columns of the design that indicate all groups but the first."""
    return tuple(plan.names.index(f"{by}[{level}]") for level in group_levels(plan, by)[1:])


def study_curves(
    plan: DesignPlan, problem: Problem, sites: Sites, ready: Mapping[str, Ready], patience: int, over: int = 0
) -> tuple[SurvivalCurves | None, Traffic]:
    """The curves that a study declares, on its grid; of a protected one `over` so many sites."""
    study = plan.study
    if not study.grid:
        return None, Traffic()
    grid = np.asarray(study.grid, dtype=np.float64)
    found, traffic = count_curves(plan, problem, sites, ready, study.by, grid, patience=patience)
    return replace(found, over=over), traffic
