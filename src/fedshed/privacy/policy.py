"""What a site lets out: a policy of plain rules (docs/privacy.md)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed.linalg.arrays import Matrix, Packed
from fedshed.privacy.zcdp import epsilon_of, rho_for
from fedshed.protocol.messages import Message

CODED_CURVATURE = ("hessian", "spectral", "code")  # fields with Hessians or eigenvectors as bytes


class Objection(Struct, frozen=True):
    """A rule that a table or an answer breaks; the detail is for the site's own eyes."""

    rule: str
    detail: str


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one site; what breaks one of them is not answered at all."""

    min_rows: int = 10  # fewest rows of a table
    min_rows_per_class: int = 5  # fewest rows of each class of the target
    min_rows_per_level: int = 5  # fewest rows of each level of a column with two levels
    max_parameters_per_row: float = 0.2  # most coefficients of a model for each row of the table
    max_scalars: int = 1_000_000  # most numbers released in one study
    effective_rows: int = 10  # fewest rows that count at a point; 1 switches the rule off
    max_deviance: float = 1.5  # most at a point, in units of the null model's or theta = 0's; 1e300: no rule
    max_curvature: float = 0.2  # most entries of Hessians per row and column of the design, in all studies
    max_numbers: float = 1.0  # most numbers of any kind per row and column of the design, in all studies
    max_refusals: int = 3  # most refusals in one study, which then ends
    max_epsilon: float = 10.0  # most epsilon of all private studies of a site together, with max_delta
    max_delta: float = 1e-5  # the delta that max_epsilon is meant with

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 < value < np.inf:
                raise ConfigError(f"the disclosure policy's {name} must be a number above 0, not {value!r}")
        if self.max_delta >= 1:
            raise ConfigError(f"the disclosure policy's max_delta must be below 1, not {self.max_delta!r}")

    def outweighed(self, weights: NDArray[np.float64] | None) -> list[Objection]:
        """The rule on rows where a few outweigh all others: (sum w)^2 / sum w^2 rows count (Kish, 1965)."""
        if weights is None or len(weights) < self.min_rows:
            return []
        shares = weights / weights.max()
        count = float(shares.sum() ** 2 / (shares @ shares))
        few = Objection(
            f"at least {self.min_rows} rows (min_rows)", f"their weights make {count:.3g} of them"
        )
        return [few] if count < self.min_rows * (1 - 1e-12) else []

    def unnameable(self, rarest: Mapping[str, int], target: str) -> list[Objection]:
        """The rules against naming levels and classes of which too few rows have the rarest."""
        level = f"at least {self.min_rows_per_level} rows at each level that is named (min_rows_per_level)"
        label = f"at least {self.min_rows_per_class} rows of each class (min_rows_per_class)"
        rules = {
            name: (label, self.min_rows_per_class) if name == target else (level, self.min_rows_per_level)
            for name in rarest
        }
        few = {name: rows for name, rows in rarest.items() if rows < rules[name][1]}
        return [
            Objection(rules[name][0], f"the rarest value of {name} is in {rows} row{'s' * (rows != 1)}")
            for name, rows in few.items()
        ]

    def too_small(self, rows: int | None) -> list[Objection]:
        """The rule on histograms: their smallest block, if there is one, is a small cell of a table."""
        if rows is None or rows >= self.min_rows_per_level:
            return []
        least = f"at least {self.min_rows_per_level} rows in each block of a histogram (min_rows_per_level)"
        return [Objection(least, f"one block has {rows}")]

    def too_few_observed(self, rows: int | None) -> list[Objection]:
        """The rule on sums of columns that miss values: that of a single one would be the value itself."""
        if rows is None or rows >= self.min_rows_per_level:
            return []
        least = f"at least {self.min_rows_per_level} values in each column that is filled in"
        return [Objection(f"{least} (min_rows_per_level); leave the column out", f"one has {rows}")]

    def exceeded(self, released: int, more: int) -> list[Objection]:
        """The ceiling, where `more` scalars would go beyond it."""
        if released + more <= self.max_scalars:
            return []
        most = f"at most {self.max_scalars} numbers released in a study (max_scalars)"
        return [Objection(most, f"{released} are released, and {more} more were asked for")]

    def overspent(self, spent: float, more: float) -> list[Objection]:
        """The ceiling of private studies, where `more` of zCDP's rho would go beyond it."""
        if spent + more <= rho_for(self.max_epsilon, self.max_delta) * (1 + 1e-9):
            return []
        most = (
            f"at most epsilon = {self.max_epsilon:g} with delta = {self.max_delta:g} over all private "
            "studies of a site (max_epsilon): ask for a smaller epsilon, or ask the site to raise it"
        )
        gone, wanted = (epsilon_of(rho, self.max_delta) for rho in (spent, spent + more))
        return [Objection(most, f"{gone:.3g} is spent, and it would be {wanted:.3g}")]


def scalars(message: Message) -> int:
    """How many numbers a message gives away: entries of arrays, levels, and each byte of coded parts too."""
    return _of_fields(message)


def curvature(message: Message) -> int:
    """How many of them are entries of Hessians or eigenvectors, coded or not."""
    total = 0
    for name, curved in _curved(type(message)).items():
        value = getattr(message, name)
        if isinstance(value, Message):
            total += curvature(value)
        elif curved:
            total += _count(value)
    return total


@cache
def _curved(message: type[Message]) -> dict[str, bool]:
    """Of each field, whether it holds entries of Hessians or eigenvectors."""
    hints, kinds = get_type_hints(message), {Packed, Matrix}
    return {
        name: name in CODED_CURVATURE or bool(kinds & {hints[name], *get_args(hints[name])})
        for name in message.__struct_fields__
    }


def _of_fields(value: Struct) -> int:
    """Numbers in the fields of a struct; of its words those that name values of rows."""
    given = {name: getattr(value, name) for name in value.__struct_fields__}
    return sum(len(item) if name in ("levels", "labels") else _count(item) for name, item in given.items())


def _count(value: Any) -> int:
    """Numbers in a value."""
    if isinstance(value, Struct):
        return _of_fields(value)
    if isinstance(value, np.ndarray):
        return int(value.size)
    if isinstance(value, tuple | list):
        return sum(map(_count, value))
    if isinstance(value, bytes):
        return len(value)
    return isinstance(value, int | float) and not isinstance(value, bool)
