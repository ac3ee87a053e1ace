"""All families: a new one is a file like theirs and a line here (docs/extend.md)."""

from __future__ import annotations

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.objectives import (
    binomial,
    gamma,
    inverse_gaussian,
    least_squares,
    links,
    logistic,
    multinomial,
    ordinal,
    poisson,
)
from fedshed.objectives.family import Family

FAMILIES: dict[str, Family] = {
    family.loss: family
    for family in (
        least_squares.FAMILY, logistic.FAMILY, poisson.FAMILY, gamma.FAMILY, multinomial.FAMILY,
        binomial.FAMILY, poisson.QUASI, binomial.QUASI,
        links.PROBIT, links.CLOGLOG, links.PROBIT_SHARES, links.CLOGLOG_SHARES, inverse_gaussian.FAMILY,
        ordinal.FAMILY,
    )
}  # fmt: skip


def family_of(loss: str) -> Family:
    """The family with this loss."""
    if loss not in FAMILIES:
        raise ConfigError(f"unknown loss {loss!r}{closest(loss, FAMILIES)}")
    return FAMILIES[loss]


def known_families() -> tuple[str, ...]:
    """The names that a study may give: a family's own, or that of its loss."""
    return tuple(dict.fromkeys(name for one in FAMILIES.values() for name in (one.name, one.loss)))


def loss_named(family: str) -> str:
    """The loss of a family, by either name."""
    return next(one.loss for one in FAMILIES.values() if family in (one.name, one.loss))
