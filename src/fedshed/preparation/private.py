"""Which studies can be private: those in which everything that leaves is noised and charged, or public."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fedshed._utils.errors import ConfigError

if TYPE_CHECKING:
    from fedshed.preparation.study import Study

log = logging.getLogger("fedshed")
WITHOUT = ("weight", "trials", "offset", "exposure", "cluster")


def check_private(study: Study) -> None:
    """ConfigError for a private study that would release more than noise covers, in words that say why."""
    if study.privacy is None:
        return
    if not study.protected:
        raise ConfigError("privacy is for protected studies, in which only sums leave; add protected = true")
    if study.family != "logistic":
        raise ConfigError(
            f"privacy is for the logistic family, whose rows have bounded scores, not for {study.family}"
        )
    if study.missing != "refuse":
        raise ConfigError(
            "privacy needs missing = 'refuse': the number of rows of each site is public, so none may be "
            "dropped for what it holds; complete the tables first"
        )
    if given := [name for name in WITHOUT if getattr(study, name) is not None]:
        raise ConfigError(f"a private study has no {given[0]}: each row counts once; leave {given[0]} out")
    if study.standardize:
        raise ConfigError(
            "a private study cannot standardise, which needs moments of the rows; scale columns by public "
            "numbers in the formula, such as I((age - 60) / 15)"
        )
    if study.privacy.weak:
        log.warning(study.privacy.weak)
