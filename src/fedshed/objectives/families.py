"""All families; a new one needs a file like theirs and one line here (docs/extend.md)."""

from __future__ import annotations

import re
from functools import cache

from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.objectives import (
    binomial,
    cox,
    gamma,
    inverse_gaussian,
    least_squares,
    links,
    logistic,
    multinomial,
    negative_binomial,
    ordinal,
    poisson,
    random_intercept,
    tweedie,
)
from fedshed.objectives.family import Family
from fedshed.objectives.parametric import Parametric, at_value
from fedshed.objectives.random_intercept import AT_SITE

FAMILIES: dict[str, Family] = {
    family.loss: family
    for family in (
        least_squares.FAMILY, logistic.FAMILY, poisson.FAMILY, gamma.FAMILY, multinomial.FAMILY,
        binomial.FAMILY, poisson.QUASI, binomial.QUASI, cox.FAMILY, cox.BRESLOW,
        negative_binomial.FAMILY, tweedie.FAMILY,
        links.PROBIT, links.CLOGLOG, links.PROBIT_SHARES, links.CLOGLOG_SHARES, inverse_gaussian.FAMILY,
        ordinal.FAMILY,
    )
}  # fmt: skip


def family_of(loss: str) -> Family:
    """The family with this loss.

    Parameters
    ----------
    loss : str
        The name of a loss; "tweedie(1.6)" is the family whose parameter is 1.6.

    Returns
    -------
    Family
        Its description.

    Raises
    ------
    ConfigError
        If there is no such loss, or its parameter is out of range.

    Examples
    --------
    >>> from fedshed.objectives import family_of
    >>> family_of("poisson").link
    'log'
    """
    name, value = parts_of(loss)
    plain = name.removesuffix(AT_SITE)
    if plain not in FAMILIES:
        raise ConfigError(f"unknown loss {loss!r}{closest(plain, FAMILIES)}")
    family = FAMILIES[plain] if plain == name else _at_sites(FAMILIES[plain])
    return family if value is None else _at(family, value)


def at_sites(loss: str, random: bool) -> str:
    """A loss with or without a random intercept per site; a linear model keeps its loss."""
    family = FAMILIES.get(parts_of(loss)[0])
    if not random or (family is not None and family.quadratic):
        return loss
    return loss + AT_SITE if family is None else _at_sites(family).loss


def is_known(loss: str) -> bool:
    """Whether there is such a loss."""
    try:
        family_of(loss)
    except ConfigError:
        return False
    return True


def known_families() -> tuple[str, ...]:
    """The names that a study may give: that of a family, or that of its loss."""
    return tuple(dict.fromkeys(name for one in FAMILIES.values() for name in (one.name, one.loss)))


def loss_named(family: str, ties: str = "efron") -> str:
    """The loss of a family, by either name; that of a survival model depends on the treatment of ties."""
    name, value = parts_of(family)
    found = next(one for one in FAMILIES.values() if name in (one.name, one.loss))
    if found.survival and ties != "efron":
        return f"cox-{ties}"
    return found.loss if value is None else with_value(found.loss, value)


def with_value(loss: str, value: float) -> str:
    """A loss with the value of its parameter: the same number again when it is read."""
    return f"{parts_of(loss)[0]}({float(value)!r})"


def parts_of(loss: str) -> tuple[str, float | None]:
    """A name of a loss or family, and the value of its parameter if it gives one."""
    match = re.fullmatch(r"([^()]+)\(([^()]+)\)", loss)
    if match is None:
        return loss, None
    try:
        return match[1], float(match[2])
    except ValueError:
        raise ConfigError(f"{loss!r}: the parameter of a family is a number, not {match[2]!r}") from None


@cache
def _at_sites(family: Family) -> Family:
    """The family with a random intercept per site."""
    if family.loss not in random_intercept.KINDS:
        raise ConfigError(
            f"a random intercept per site is for linear, {', '.join(random_intercept.KINDS)}, not for the "
            f"{family.name} family; leave random_intercept out"
        )
    return random_intercept.at_sites(family)


@cache
def _at(family: Family, value: float) -> Family:
    """The family at a value of its parameter."""
    parameter = family.parameter
    if parameter is None or not issubclass(family.objective, Parametric):
        raise ConfigError(f"the {family.name} family has no parameter; leave ({value:g}) out")
    if not parameter.possible(value):
        raise ConfigError(
            f"{parameter.name} of the {family.name} family must lie between {parameter.least:g} and "
            f"{parameter.most:g}, not {value:g}"
        )
    return replace(family, objective=at_value(family.objective, value, with_value(family.loss, value)))
