"""Which studies can be private: everything that leaves must be public, or have noise and be charged.
"charged.
"""

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
            f"privacy is for the logistic family, whose scores are bounded, not for {study.family}; leave "
            "privacy out"
        )
    if study.missing != "refuse":
        raise ConfigError(
            "privacy needs missing = 'refuse', because the number of rows of each site is public and must "
            "not depend on their values; complete the tables first"
        )
    if given := [name for name in WITHOUT if getattr(study, name) is not None]:
        raise ConfigError(
            f"a private study cannot have {given[0]}, because each row counts once; leave {given[0]} out"
        )
    if study.standardize:
        raise ConfigError(
            "a private study cannot standardise, because that needs moments of the rows; scale columns by "
            "public numbers in the formula, such as I((age - 60) / 15)"
        )
    if study.privacy.weak:
        log.warning(study.privacy.weak)
