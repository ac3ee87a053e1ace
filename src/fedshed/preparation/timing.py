"""What a study says of times to an event: which columns hold time, event, entry and strata."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from fedshed._utils.errors import ConfigError
from fedshed.objectives.families import family_of
from fedshed.objectives.time_scale import POOLED

if TYPE_CHECKING:
    from fedshed.preparation.study import Study

FIELDS = ("time", "event", "entry", "strata", "grid", "by")
DEFAULTS = {"ties": "efron", "ph_transform": "identity"}
MOST_TIMES = 10_000  # of a grid in a study
MOST_STRATA = 5  # columns


def complete_times(study: Study) -> None:
    """The target of a survival model is its time: either name is enough."""
    if not family_of(study.loss).survival:
        return
    if study.time is not None and not study.target:
        force_setattr(study, "target", study.time)
    elif study.time is None and study.target:
        force_setattr(study, "time", study.target)
    force_setattr(study, "grid", tuple(map(float, study.grid)))  # 30 and 30.0 are the same study


def check_times(study: Study) -> None:
    """Refuse times where the family has none, and a survival model without its event."""
    family = family_of(study.loss)
    if not family.survival:
        said = [name for name in FIELDS if getattr(study, name)]
        said += [name for name, default in DEFAULTS.items() if getattr(study, name) != default]
        if said:
            name = said[0]
            raise ConfigError(
                f"{name} is for survival models (family cox), not for {study.family}; leave {name} out"
            )
        return
    if study.time != study.target:
        raise ConfigError(f"target is {study.target!r} but time is {study.time!r}; give it once, as time")
    if study.event is None:
        raise ConfigError(
            f"the {study.family} family needs the column that says whether the event happened; give event = "
            "'column' (--event)"
        )
    if len(study.strata) > MOST_STRATA:
        raise ConfigError(f"strata names {len(study.strata)} columns; name at most {MOST_STRATA}")
    if study.exposure is not None:
        raise ConfigError("a Cox model has no exposure: each row is at risk until its time; leave it out")
    if study.privacy is not None:
        raise ConfigError("a private study cannot have the cox family; leave privacy out")
    _check_grid(study)
    _check_transform(study)


def _check_transform(study: Study) -> None:
    """Refuse a scale of time that needs counts where there can be none."""
    if study.ph_transform not in POOLED:
        return
    needs = f"ph_transform = {study.ph_transform!r} needs counts of the rows at times, which"
    remedy = "use ph_transform = 'identity' or 'log'"
    if study.weight is not None:
        raise ConfigError(f"{needs} a study with weights does not have; {remedy}")
    if study.protected and not study.grid:
        raise ConfigError(f"{needs} a protected study has on a grid only; give grid = [...], or {remedy}")


def _check_grid(study: Study) -> None:
    """Refuse curves that cannot be: times that do not increase, groups without times, weights."""
    if study.by is not None and not study.grid:
        raise ConfigError("by is the category of survival curves, which need times; give grid = [...]")
    if not study.grid:
        return
    above = zip(study.grid[1:], study.grid, strict=False)
    if len(study.grid) > MOST_TIMES or not all(0 <= t < inf for t in study.grid):
        raise ConfigError(f"grid has 1 to {MOST_TIMES:,} times, none of them negative or infinite")
    if not all(later > earlier for later, earlier in above):
        raise ConfigError("the times of grid must increase")
    if not study.grid[-1]:
        raise ConfigError("grid must end after time 0; add later times")
    for name in ("standardize", "weight"):
        if getattr(study, name):
            raise ConfigError(
                f"a study with survival curves (grid) cannot have {name}; leave out one of the two"
            )
