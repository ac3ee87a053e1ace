"""Linear tags: sums that only the sites can vouch for.

A site's tag is <a, x> modulo a prime, with coefficients a that only the sites know.  Tags add up as the
numbers do, so the tag of the sums must be the sum of the tags.  Three primes near 2^61 are used: their
product exceeds 2^130, so no change of a 128-bit entry is a multiple of all three, and one that is no multiple
of a prime passes its tag with a probability of about 2^-61.  The constant 1 in front of x refuses multiples
of sums and tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.privacy.fixed_point import WORD, Shape, Words

PRIMES = (2**61 - 1, 2**61 - 31, 2**61 - 45)
TAGS = len(PRIMES)
MOST = (
    1 << 20
)  # entries in one matrix product: sums of 2^20 products of two 16-bit limbs are exact in float64
Tags: TypeAlias = tuple[int, ...]
Coefficients: TypeAlias = NDArray[np.float64]  # entries x (three primes x four limbs)


def coefficient_bytes(shape: Shape) -> int:
    """Bytes of key stream that the coefficients of an exchange take."""
    return 8 * TAGS * (shape.wide + shape.slim + shape.slots)


def coefficients(stream: bytes | bytearray | memoryview) -> Coefficients:
    """Coefficients of 61 bits from a key stream, three for each entry, as limbs of 16 bits.

    They are uniform below 2^61 and so uniform modulo each prime to 2^-55.
    """
    words = np.frombuffer(stream, dtype=WORD) & np.uint64(2**61 - 1)
    return words.view("<u2").reshape(-1, 4 * TAGS).astype(np.float64)


def tags(words: Words, shape: Shape, a: Coefficients) -> Tags:
    """<a, x> modulo each prime, x lifted to signed whole numbers."""
    w, s = shape.wide, 2 * shape.wide
    pairs = np.ascontiguousarray(words[:s].reshape(2, w).T)
    return added([*_in_chunks(pairs, a[:w]), *_in_chunks(words[s:, None], a[w:])])


def _in_chunks(entries: Words, a: Coefficients) -> Iterator[Tags]:
    """The tags of as many entries at a time as are exact."""
    for i in range(0, len(entries), MOST):
        yield _combined(_limbs(entries[i : i + MOST]).T @ a[i : i + MOST])


def _limbs(entries: Words) -> NDArray[np.float64]:
    """The 16-bit limbs of each entry, lowest first, the highest with its sign."""
    limbs = np.ascontiguousarray(entries).view("<u2")
    found = limbs.astype(np.float64)
    found[:, -1] = limbs[:, -1].astype("<i2", casting="unsafe")
    return found


def _combined(products: NDArray[np.float64]) -> Tags:
    """Sums of products of each limb with each limb of a coefficient, put together modulo each prime."""
    rows = products.reshape(len(products), TAGS, 4).tolist()
    return tuple(
        sum(int(x) << 16 * (i + j) for i, row in enumerate(rows) for j, x in enumerate(row[prime])) % p
        for prime, p in enumerate(PRIMES)
    )


def added(each: Sequence[Tags]) -> Tags:
    """The sums of tags, modulo their primes."""
    return tuple(sum(column) % p for column, p in zip(zip(*each, strict=True), PRIMES, strict=True))
