"""Combinations that a study cannot have: penalties, parameters, site estimates, masks and noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshed._utils.errors import ConfigError
from fedshed.objectives.families import family_of

if TYPE_CHECKING:
    from fedshed.preparation.study import Study


def check_parameter(study: Study) -> None:
    """Refuse a parameter that a family cannot have, and a search where only foreseeable sums may leave."""
    parameter = family_of(study.loss).parameter
    if study.random_intercept and not study.intercept:
        raise ConfigError("a random intercept varies about the common intercept; set intercept = true")
    if study.protected and study.random_intercept:
        raise ConfigError(
            "a protected study cannot estimate the random intercept's tau, because each site must know what "
            "is asked next; leave random_intercept out"
        )
    if study.protected and study.searched and parameter is not None:
        raise ConfigError(
            f"a protected study cannot estimate {parameter.name}, because each site must know what is asked "
            f"next; give it, as in '{study.family}(0.8)'"
        )
    if study.random_intercept and study.loss == "least-squares" and study.l2:
        raise ConfigError("a linear model with a random intercept cannot have a ridge; set l2 = 0")


def check_spread(random_intercept: bool, sites: int) -> None:
    """Refuse a random intercept with a single site, which gives no variance between sites."""
    if random_intercept and sites < 2:
        raise ConfigError(
            "a random intercept varies between sites, but there is only one site; leave random_intercept "
            "out, or name the column of sites (site, --site)"
        )


def check_lasso(study: Study) -> None:
    """An absolute penalty is for one linear predictor, and for sums without noise."""
    if study.selects and family_of(study.loss).classes == "many":
        raise ConfigError(
            f"l1 is for one linear predictor, not for the {study.family} family, whose zeros would depend on "
            "the choice of contrasts; fit each class against the others, or use l2"
        )
    for name in ("firth", "random_intercept"):
        if study.selects and getattr(study, name):
            raise ConfigError(
                f"a fit with {name} cannot have an absolute penalty; give {name} or l1, not both"
            )
    if study.selects and study.privacy is not None:
        raise ConfigError("a private study cannot have an absolute penalty; use l2 in place of l1")


def check_firth(study: Study) -> None:
    """Firth's penalty is for two classes or shares with a logit link, and takes the place of a ridge."""
    if not study.firth:
        return
    if study.random_intercept:
        raise ConfigError("give firth or random_intercept, not both")
    if study.loss not in ("logistic", "binomial"):
        raise ConfigError(
            f"Firth's penalty is for the logistic and binomial families, not for {study.family}; "
            "leave firth out"
        )
    if any(study.l2.values()) if isinstance(study.l2, dict) else study.l2:
        raise ConfigError("give firth or l2, not both, because each is a penalty")
    if study.privacy is not None:
        raise ConfigError(
            "a private study cannot have Firth's penalty, whose leverages would need noise; leave firth out"
        )


def check_estimates(study: Study) -> None:
    """Refuse estimates of single sites where nobody may see them, or where they are not of one predictor."""
    if not study.site_estimates:
        return
    if study.protected:
        raise ConfigError(
            "a protected study hides the estimates of single sites, which a meta-analysis combines; leave "
            "out site_estimates, or protected"
        )
    if family_of(study.loss).classes == "many":
        raise ConfigError(
            f"a meta-analysis needs one linear predictor, but the {study.family} family has several; leave "
            "site_estimates out"
        )
    penalised = study.l2.values() if isinstance(study.l2, dict) else [study.l2]
    if any(penalised):
        raise ConfigError("a meta-analysis combines unbiased estimates; leave l2 out")
    for name in ("l1", "firth", "random_intercept"):
        if getattr(study, name):
            raise ConfigError(f"a meta-analysis combines plain estimates of single sites; leave {name} out")
