"""What a study cannot have at once: penalties, parameters, site estimates, masks and noise."""

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
        raise ConfigError("a random intercept varies about the intercept; fit with one (intercept = true)")
    if study.protected and study.random_intercept:
        raise ConfigError(
            "a protected study cannot search for tau of a random intercept, as only sums that every site "
            "foresees are known; leave random_intercept out"
        )
    if study.protected and study.searched and parameter is not None:
        raise ConfigError(
            f"a protected study cannot search for {parameter.name}, as each site must know what is asked "
            f"next; give it, as in '{study.family}(0.8)'"
        )
    if study.random_intercept and study.loss == "least-squares" and study.l2:
        raise ConfigError("a linear model with a random intercept has no ridge here; set l2 = 0")


def check_spread(random_intercept: bool, sites: int) -> None:
    """Refuse a random intercept of one site, which says nothing about the spread between sites."""
    if random_intercept and sites < 2:
        raise ConfigError(
            "a random intercept varies between sites, and there is one site only; leave random_intercept "
            "out, or say which rows belong to which site"
        )


def check_lasso(study: Study) -> None:
    """An absolute penalty is for one linear predictor, and for sums without noise."""
    if study.selects and family_of(study.loss).classes == "many":
        raise ConfigError(
            f"l1 is for one linear predictor, not for the {study.family} family, whose zeros would depend on "
            "which contrasts stand for the classes; fit each class against the others, or use l2"
        )
    for name in ("firth", "random_intercept"):
        if study.selects and getattr(study, name):
            raise ConfigError(f"a fit with {name} has a search of its own, without l1; give one of them")
    if study.selects and study.privacy is not None:
        raise ConfigError("a private study has a fit of its own, without an absolute penalty; use l2, not l1")


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
        raise ConfigError("give firth or l2, not both: each is a penalty")
    if study.privacy is not None:
        raise ConfigError("a private study has no Firth penalty: leverages would need noise; leave firth out")


def check_estimates(study: Study) -> None:
    """Refuse estimates of single sites where nobody may see them, or where they are not of one predictor."""
    if not study.site_estimates:
        return
    if study.protected:
        raise ConfigError(
            "a protected study hides what a single site estimates, which a meta-analysis combines; leave out "
            "site_estimates, or protected"
        )
    if family_of(study.loss).classes == "many":
        raise ConfigError(
            f"a meta-analysis is of one linear predictor, and the {study.family} family has several"
        )
    penalised = study.l2.values() if isinstance(study.l2, dict) else [study.l2]
    if any(penalised):
        raise ConfigError("a meta-analysis combines unbiased estimates: leave out l2")
    for name in ("l1", "firth", "random_intercept"):
        if getattr(study, name):
            raise ConfigError(f"a meta-analysis combines plain estimates of single sites: leave out {name}")
