"""Linear tags: sums that only the sites can vouch for.

A site's tag is <a, x> modulo a prime, with coefficients a that only the sites know.  Tags add up as the
numbers do, so the tag of the sums must be the sum of the tags.  Three primes near 2^61 are used: their
product exceeds 2^130, so no change of a 128-bit entry is a multiple of all three, and one that is no multiple
of a prime passes its tag with a probability of about 2^-61.  The constant 1 in front of x refuses multiples
of sums and tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.privacy.fixed_point import WORD, Shape, Words

PRIMES = (2**61 - 1, 2**61 - 31, 2**61 - 45)
TAGS = len(PRIMES)
CHUNK = 1 << 12  # entries in a matrix product: it stays in the cache, and is exact in float64 below 2^21
Tags: TypeAlias = tuple[int, ...]
Coefficients: TypeAlias = NDArray[np.uint16]  # entries x (three primes x four limbs)


def coefficient_bytes(shape: Shape) -> int:
    """Bytes of key stream that the coefficients of an exchange take."""
    return 8 * TAGS * (shape.wide + shape.slim + shape.slots)


def coefficients(stream: bytes | bytearray | memoryview) -> Coefficients:
    """Coefficients of 61 bits from a key stream, three for each entry, as limbs of 16 bits.

    They are uniform below 2^61 and so uniform modulo each prime to 2^-55.
    """
    words = np.frombuffer(stream, dtype=WORD) & np.uint64(2**61 - 1)
    return words.view("<u2").reshape(-1, 4 * TAGS)


def tags(words: Words, shape: Shape, a: Coefficients) -> Tags:
    """<a, x> modulo each prime, x lifted to signed whole numbers."""
    w, s = shape.wide, 2 * shape.wide
    pairs = np.ascontiguousarray(words[:s].reshape(2, w).T)
    return added([_combined(_products(pairs, a[:w])), _combined(_products(words[s:, None], a[w:]))])


def _products(entries: Words, a: Coefficients) -> NDArray[np.int64]:
    """Sums over entries of the products of each limb with each limb of each coefficient."""
    total = np.zeros((4 * entries.shape[1], 4 * TAGS), dtype=np.int64)
    for i in range(0, len(entries), CHUNK):
        total += (_limbs(entries[i : i + CHUNK]).T @ a[i : i + CHUNK].astype(np.float64)).astype(np.int64)
    return total


def _limbs(entries: Words) -> NDArray[np.float64]:
    """The 16-bit limbs of each entry, lowest first, the highest with its sign."""
    limbs = np.ascontiguousarray(entries).view("<u2")
    found = limbs.astype(np.float64)
    found[:, -1] = limbs[:, -1].astype("<i2", casting="unsafe")
    return found


def _combined(products: NDArray[np.int64]) -> Tags:
    """The products of limbs put together, those of one weight 2^(16 (i + j)) first, modulo each prime."""
    length = len(products)
    weights = np.zeros((TAGS, length + 3), dtype=np.int64)
    for j in range(4):
        weights[:, j : j + length] += products[:, j::4].T
    whole = [sum(x << 16 * i for i, x in enumerate(row)) for row in weights.tolist()]
    return tuple(x % p for x, p in zip(whole, PRIMES, strict=True))


def added(each: Sequence[Tags]) -> Tags:
    """The sums of tags, modulo their primes."""
    return tuple(sum(column) % p for column, p in zip(zip(*each, strict=True), PRIMES, strict=True))
