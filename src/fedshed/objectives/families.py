"""All families: a new one is a file like theirs and a line here (docs/extend.md)."""

from __future__ import annotations

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.objectives import binomial, cox, gamma, least_squares, logistic, multinomial, poisson
from fedshed.objectives.family import Family

FAMILIES: dict[str, Family] = {
    family.loss: family
    for family in (
        least_squares.FAMILY, logistic.FAMILY, poisson.FAMILY, gamma.FAMILY, multinomial.FAMILY,
        binomial.FAMILY, poisson.QUASI, binomial.QUASI, cox.FAMILY, cox.BRESLOW,
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


def loss_named(family: str, ties: str = "efron") -> str:
    """The loss of a family, by either name; that of a survival model depends on how it counts ties."""
    found = next(one for one in FAMILIES.values() if family in (one.name, one.loss))
    if not found.survival or ties == "efron":
        return found.loss
    return f"cox-{ties}"
