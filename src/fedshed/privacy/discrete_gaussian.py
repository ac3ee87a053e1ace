"""Discrete Gaussian noise in whole numbers, exactly: no float takes part, so no rounding tells anything.

Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy", Algorithms 1 to 3:
rejection from a discrete Laplace, with coins whose odds are fractions of whole numbers.  From uniform bits
the probability of a whole number x is proportional to exp(-x^2 / (2 sigma^2)) without any rounding.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import isqrt
from typing import TypeAlias

from fedshed._utils.errors import ConfigError

Bits: TypeAlias = Callable[[int], int]  # a number of bits: a whole number of that many uniform bits
FRACTION = 64  # bits of the fraction of a wide number: one unit is 2^-64


def _below(limit: int, bits: Bits) -> int:
    """A uniform whole number from 0 to limit - 1, by rejection."""
    size = (limit - 1).bit_length()
    while (drawn := bits(size) if size else 0) >= limit:
        pass
    return drawn


def _coin(over: int, under: int, bits: Bits) -> bool:
    """True with probability exp(-over / under), for a fraction of at most 1 (Algorithm 1, first case).

    Of coins with odds gamma/1, gamma/2, ... the first to fail has an odd number with this probability.
    """
    k = 1
    while _below(under * k, bits) < over:
        k += 1
    return k % 2 == 1


def exponential_coin(over: int, under: int, bits: Bits) -> bool:
    """True with probability exp(-over / under), for any fraction from 0 on (Algorithm 1)."""
    while over > under:
        if not _coin(1, 1, bits):
            return False
        over -= under
    return _coin(over, under, bits)


def discrete_laplace(scale: int, bits: Bits) -> int:
    """A whole number x with probability proportional to exp(-|x| / scale) (Algorithm 2)."""
    while True:
        part = _below(scale, bits)
        if not _coin(part, scale, bits):
            continue
        whole = 0
        while _coin(1, 1, bits):
            whole += 1
        size, negative = part + scale * whole, bits(1)
        if size or not negative:  # 0 has one sign only
            return -size if negative else size


def discrete_gaussian(variance: int, bits: Bits = secrets.randbits) -> int:
    """A whole number x with probability proportional to exp(-x^2 / (2 variance)) (Algorithm 3).

    Parameters
    ----------
    variance : int
        sigma^2, a whole number above 0.
    bits : callable
        Gives a whole number of as many uniform bits as it is asked for; the system's secure source unless a
        test has another.

    Examples
    --------
    >>> import random
    >>> discrete_gaussian(2**120, random.Random(1).getrandbits).bit_length() <= 64
    True
    """
    scale = isqrt(variance) + 1
    while True:
        drawn = discrete_laplace(scale, bits)
        # exp(-(|x| - sigma^2 / t)^2 / (2 sigma^2)), with both sides times t^2
        if exponential_coin((abs(drawn) * scale - variance) ** 2, 2 * variance * scale**2, bits):
            return drawn


def units(sigma: float) -> int:
    """The scale of noise in units of 2^-64, rounded up: there is never less noise than was charged."""
    if not 0 < sigma < float("inf"):
        raise ConfigError(f"the noise of a release must be a number above 0, not {sigma}")
    over, under = sigma.as_integer_ratio()
    return -((-over << FRACTION) // under)


def noise(sigmas: Sequence[float], bits: Bits = secrets.randbits) -> tuple[int, ...]:
    """Noise of these scales for wide numbers, as whole multiples of 2^-64; 0 where the scale is 0."""
    return tuple(discrete_gaussian(units(float(s)) ** 2, bits) if s else 0 for s in sigmas)
