"""Numbers as whole numbers of fixed width, so that sums over sites are exact and masks hide them.

A wide number is x 2^64 modulo 2^128, a slim one x 2^fraction modulo 2^64, a flag a number modulo 2^64.  All
of an exchange lie in one vector of 64-bit words: the low halves of the wide numbers, their high halves, the
slim numbers, the flags.  Each site keeps below its share of the range, so no sum over 128 sites wraps.
"""

from __future__ import annotations

import secrets
from math import ceil, log2
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.linalg.arrays import Vector
from fedshed.privacy.addends import Addends, Totals

Words: TypeAlias = NDArray[np.uint64]
WORD = np.dtype("<u8")
SIGNED = np.dtype("<i8")

MOST_SITES = 128
FEWEST_SITES = 3  # of two, each could take its own numbers from the sum and read the other's
POINT = 64  # bits of fraction of a wide number
WIDE_RANGE = 125  # |x 2^64| of all sites together stays below 2^125, and so does the noise
SLIM_RANGE = 62  # |x 2^fraction| of all sites together stays below 2^62
FLAG = 56  # bits of a raised flag
SPARE = 12  # bits by which the entries of a Hessian may exceed the weight of all rows
ONE, NONE = np.uint64(1), np.uint64(0)

Length: TypeAlias = Annotated[int, Meta(ge=0, lt=2**27)]


class Shape(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many numbers of each kind an exchange has, and the fraction bits of its slim ones."""

    wide: Length  # the constant that comes first included
    slim: Length
    slots: Length
    fraction: Annotated[int, Meta(ge=0, le=62)]

    @property
    def words(self) -> int:
        """The number of 64-bit words."""
        return 2 * self.wide + self.slim + self.slots


def fraction_for(weight: float) -> int:
    """Fraction bits of the entries of a Hessian for all rows of at most this weight: 62 - ceil(log2 W) - 12.

    >>> fraction_for(1_000_000)
    30
    """
    bits = SLIM_RANGE - ceil(log2(max(weight, 1.0))) - SPARE
    if bits < 8:
        raise ConfigError(f"a weight of {weight:g} is too large for masked sums; scale it to 2^42 at most")
    return bits


# --- encoding ------------------------------------------------------------------------------------


def encode(part: Addends, fraction: int, sites: int) -> tuple[Shape, Words]:
    """A site's numbers as words, behind a constant 1 that every site adds.

    A slot is raised where the site says so, or where a number of it is NaN, infinite or too large: its flag
    is then random, and so are its numbers, for otherwise the sum would be one of the other sites alone.
    """
    if not 1 <= sites <= MOST_SITES:
        raise ConfigError(f"{sites} sites; at most {MOST_SITES} can take part in masked sums")
    shape = Shape(1 + len(part.wide), len(part.slim), len(part.raised), fraction)
    raised = _raised(part, fraction, sites)
    wide_up, slim_up = raised[part.wide_slots], raised[part.slim_slots]
    words = np.empty(shape.words, dtype=WORD)
    low, high, slim, flags = parts_of(words, shape)
    low[0], high[0] = NONE, ONE
    low[1:], high[1:] = _wide(np.where(wide_up, 0.0, part.wide), part.noise, sites)
    slim[:] = _slim(np.where(slim_up, 0.0, part.slim), fraction)
    flags[:] = NONE
    if raised.any():
        low[1:][wide_up], high[1:][wide_up] = _random_wide(int(wide_up.sum()), sites)
        slim[slim_up] = _random_signed(int(slim_up.sum()), _share(sites) + 1)
        flags[raised] = [1 + secrets.randbelow(2**FLAG - 1) for _ in range(int(raised.sum()))]
    return shape, words


def parts_of(words: Words, shape: Shape) -> tuple[Words, Words, Words, Words]:
    """Views of the low and the high halves of the wide numbers, of the slim numbers and of the flags."""
    a, b = shape.wide, 2 * shape.wide
    return words[:a], words[a:b], words[b : b + shape.slim], words[b + shape.slim : shape.words]


def _raised(part: Addends, fraction: int, sites: int) -> NDArray[np.bool_]:
    """The slots whose flags this site raises; |x| < range / M is what a site may add."""
    raised = np.array(part.raised, dtype=bool)
    raised[part.wide_slots[~(np.abs(part.wide) < 2.0 ** (WIDE_RANGE - POINT) / sites)]] = True
    raised[part.slim_slots[~(np.abs(part.slim) < 2.0 ** (SLIM_RANGE - fraction) / sites)]] = True
    return raised


def _wide(x: Vector, noise: tuple[int, ...], sites: int) -> tuple[Words, Words]:
    """The halves of x 2^64, rounded to the nearest whole number, plus the noise."""
    low, high = negated(*wide_of(np.abs(x)), np.signbit(x))
    if not noise:
        return low, high
    if len(noise) != len(x) or max(map(abs, noise)) >= 2**WIDE_RANGE // sites:
        raise ProtocolError("the noise does not fit the numbers that it is added to; add less noise")
    drawn = np.frombuffer(b"".join((z % 2**128).to_bytes(16, "little") for z in noise), WORD).reshape(-1, 2)
    return plus(low, high, drawn[:, 0], drawn[:, 1])


def wide_of(x: Vector) -> tuple[Words, Words]:
    """The halves of x 2^64 for 0 <= x < 2^63, to the nearest: exact where x has no bits below 2^-64."""
    whole = np.rint(np.ldexp(x, POINT))  # a float64 above 2^53 is whole
    high = np.floor(np.ldexp(whole, -64))
    low = whole - np.ldexp(high, 64)
    return low.astype(WORD), high.astype(WORD)


def _slim(x: Vector, fraction: int) -> Words:
    """x 2^fraction to the nearest whole number, modulo 2^64."""
    return np.rint(x * 2.0**fraction).astype(SIGNED).view(WORD)


def _share(sites: int) -> int:
    """ceil(log2 M): the bits that a site leaves to the others."""
    return (sites - 1).bit_length()


def _random_wide(count: int, sites: int) -> tuple[Words, Words]:
    """Uniform wide numbers within the range of a site."""
    low = np.frombuffer(secrets.token_bytes(8 * count), dtype=WORD)
    return low, _random_signed(count, _share(sites) + 127 - WIDE_RANGE)


def _random_signed(count: int, shift: int) -> Words:
    """Uniform numbers in [-2^(63 - shift), 2^(63 - shift)), modulo 2^64."""
    drawn = np.frombuffer(secrets.token_bytes(8 * count), dtype=SIGNED)
    return (drawn >> shift).view(WORD)


# --- arithmetic ----------------------------------------------------------------------------------


def plus(low: Words, high: Words, low2: Words, high2: Words) -> tuple[Words, Words]:
    """The sum of wide numbers modulo 2^128."""
    total = low + low2
    return total, high + high2 + (total < low)


def negated(low: Words, high: Words, where: NDArray[np.bool_] | bool = True) -> tuple[Words, Words]:
    """-x modulo 2^128 where asked for, x elsewhere."""
    turned = ~low + ONE
    return np.where(where, turned, low), np.where(where, ~high + (turned == NONE), high)


def add(a: Words, b: Words, shape: Shape) -> Words:
    """The sum of two vectors: wide numbers modulo 2^128, the rest modulo 2^64."""
    total = a + b
    total[shape.wide : 2 * shape.wide] += total[: shape.wide] < a[: shape.wide]
    return total


def subtract(a: Words, b: Words, shape: Shape) -> Words:
    """The difference of two vectors, modulo the same."""
    total = a - b
    total[shape.wide : 2 * shape.wide] -= a[: shape.wide] < b[: shape.wide]
    return total


# --- decoding ------------------------------------------------------------------------------------


def check_sums(words: Words, shape: Shape, sites: int) -> None:
    """ProtocolError unless these can be sums over this many sites: the constant counts them."""
    low, high, slim, flags = parts_of(words, shape)
    if (int(low[0]), int(high[0])) != (0, sites):
        raise ProtocolError(f"the sums are not those of {sites} sites, because some answered another request")
    top = high.view(SIGNED)
    most = 1 << (WIDE_RANGE + 1 - 64)
    small = -most <= int(top.min()) and int(top.max()) < most
    small = small and bool((np.abs(slim.view(SIGNED) >> 1) <= 2 ** (SLIM_RANGE - 1)).all())
    if not (small and bool((flags < sites << FLAG).all())):
        raise ProtocolError(f"the sums are larger than {sites} sites can make them")


def decode(words: Words, shape: Shape) -> Totals:
    """The sums as the nearest float64, the slots that some site raised, and the constant: how many sites."""
    low, high, slim, flags = parts_of(words, shape)
    minus = high[1:].view(SIGNED) < 0
    size = _nearest(*negated(low[1:], high[1:], minus))
    wide = np.ldexp(np.where(minus, -size, size), -POINT)
    entries = slim.view(SIGNED).astype(np.float64) * 2.0**-shape.fraction
    return Totals(wide, entries, flags != NONE, int(high[0]))


def _nearest(low: Words, high: Words) -> Vector:
    """The float64 nearest to high 2^64 + low, for high < 2^63, rounded once.

    The leading 64 bits are kept, and the last of them is set if any bit below is: after this rounding to odd
    the rounding to float64 is right (Boldo and Melquiond, IEEE Transactions on Computers 57(4), 2008).
    """
    length = np.clip(np.frexp(high.astype(np.float64))[1], 1, 63).astype(np.uint64)
    kept = (high << (np.uint64(64) - length)) | (low >> length)
    kept |= (low << (np.uint64(64) - length)) != NONE
    large = np.ldexp(kept.astype(np.float64), length.astype(np.int64))
    return np.where(high == NONE, low.astype(np.float64), large)
