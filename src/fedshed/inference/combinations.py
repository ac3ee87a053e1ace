"""Linear combinations of coefficients, as text: `treatment[b] - treatment[a]`, `2 * x + z`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed.inference.result import Inference, Robust
from fedshed.linalg.arrays import Vector

_SIGN = re.compile(r"\s*([+-])\s*")
_FACTOR = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*\*\s*")
_END = re.compile(r"\s*($|[+-])")


class Estimate(Struct, frozen=True):
    """A combination of coefficients with its error, test and confidence interval."""

    name: str
    estimate: float
    standard_error: float
    statistic: float
    p_value: float
    low: float
    high: float

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The exponentials of estimate, low and high: an odds or rate ratio with its interval."""
        with np.errstate(over="ignore"):
            low, middle, high = np.exp([self.low, self.estimate, self.high]).tolist()
        return middle, low, high

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.estimate:.5g} (standard error {self.standard_error:.4g}, "
            f"P = {self.p_value:.3g}, interval {self.low:.5g} to {self.high:.5g})"
        )


def contrast(inference: Inference, text: str, level: float = 0.95, robust: Robust = False) -> Estimate:
    """The combination a'b that is given as text, with its standard error (a'Va)^(1/2)."""
    row = combination(text, inference.names)
    return Estimate(text, *inference.transformed(row[None, :], [text]).table(level, robust)[0].tolist())


def combination(text: str, names: Sequence[str]) -> Vector:
    """The factor of each coefficient in a combination."""
    row, rest, sign = np.zeros(len(names)), text.strip(), 1.0
    first = True
    while rest or first:
        signed = _SIGN.match(rest)
        if signed is None and not first:
            raise ConfigError(f"{text!r}: a + or - is missing before {rest[:40]!r}")
        sign = -1.0 if signed and signed[1] == "-" else 1.0
        rest = rest[signed.end() :] if signed else rest
        if factor := _FACTOR.match(rest):
            sign, rest = sign * float(factor[1]), rest[factor.end() :]
        name = _name(text, rest, names)
        row[names.index(name)] += sign
        rest, first = rest[len(name) :].strip(), False
    return row


def _name(text: str, rest: str, names: Sequence[str]) -> str:
    """The longest name that a text begins with."""
    found = [name for name in names if rest.startswith(name) and _END.match(rest[len(name) :])]
    if not found:
        raise ConfigError(f"{text!r}: there is no coefficient {rest[:40]!r}{closest(rest, names)}")
    return max(found, key=len)
