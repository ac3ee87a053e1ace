"""What a study says of times to an event: which columns hold time, event, entry and strata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from fedshed._utils.errors import ConfigError
from fedshed.objectives.families import family_of

if TYPE_CHECKING:
    from fedshed.preparation.study import Study

FIELDS = ("time", "event", "entry", "strata")
MOST_STRATA = 5  # columns


def complete_times(study: Study) -> None:
    """The target of a survival model is its time: either name is enough."""
    if not family_of(study.loss).survival:
        return
    if study.time is not None and not study.target:
        force_setattr(study, "target", study.time)
    elif study.time is None and study.target:
        force_setattr(study, "time", study.target)


def check_times(study: Study) -> None:
    """Refuse times where the family has none, and a survival model without its event."""
    family = family_of(study.loss)
    if not family.survival:
        said = [name for name in FIELDS if getattr(study, name)]
        if said or study.ties != "efron":
            name = said[0] if said else "ties"
            raise ConfigError(f"{name} is for survival models (family cox), not for {study.family}")
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
