"""Linear tags: those of the sums are the sums of the tags, and no other sums have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.privacy import fixed_point as fp
from fedshed.privacy import linear_tags
from fedshed.privacy.linear_tags import PRIMES, added, coefficient_bytes, coefficients, tags

few = settings(max_examples=25, deadline=None)
SHAPE = fp.Shape(wide=4, slim=5, slots=2, fraction=20)
STREAM = np.random.default_rng(7).bytes(coefficient_bytes(SHAPE))


def signed(words, shape):
    """The entries as Python's signed whole numbers."""
    low, high, slim, flags = (part.tolist() for part in fp.parts_of(words, shape))
    wide = [a + (b << 64) for a, b in zip(low, high, strict=True)]
    return [x - (x >> 127 << 128) for x in wide] + [x - (x >> 63 << 64) for x in slim + flags]


def plain_tags(words, shape, stream):
    """<a, x> modulo each prime, entry by entry."""
    a = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") % 2**61 for i in range(len(stream) // 8)]
    x = signed(words, shape)
    return tuple(
        sum(a[len(PRIMES) * i + j] * value for i, value in enumerate(x)) % p for j, p in enumerate(PRIMES)
    )


def words_of(shape, values, flags=None):
    """Words of whole numbers: a constant 1, then wide numbers, slim ones and flags."""
    wide = [1 << 64, *values[: shape.wide - 1]]
    slim = list(values[shape.wide - 1 :])
    low, high = [x % 2**64 for x in wide], [(x >> 64) % 2**64 for x in wide]
    return np.array([*low, *high, *(x % 2**64 for x in slim), *(flags or [0] * shape.slots)], dtype=np.uint64)


wide_values = st.lists(st.integers(-(2**120), 2**120), min_size=3, max_size=3)
slim_values = st.lists(st.integers(-(2**58), 2**58), min_size=5, max_size=5)
rows = st.builds(lambda w, s: [*w, *s], wide_values, slim_values)


@few
@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 4), st.integers(0, 2**32))
def test_tags_are_those_of_plain_whole_numbers(wide, slim, slots, seed):
    shape = fp.Shape(wide, slim, slots, 0)
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, shape.words, dtype=np.uint64)
    words[2 * wide + slim :] >>= np.uint64(1)
    stream = rng.bytes(coefficient_bytes(shape))
    assert tags(words, shape, coefficients(stream)) == plain_tags(words, shape, stream)


@pytest.mark.parametrize("filled", [0, 2**64 - 1, 2**63, 2**63 - 1])
def test_products_are_exact_for_the_largest_limbs(filled, monkeypatch):
    shape = fp.Shape(3, 5000, 0, 0)
    words = np.full(shape.words, filled, dtype=np.uint64)
    stream = b"\xff" * coefficient_bytes(shape)
    expected = plain_tags(words, shape, stream)
    assert tags(words, shape, coefficients(stream)) == expected
    monkeypatch.setattr(linear_tags, "CHUNK", 999)
    assert tags(words, shape, coefficients(stream)) == expected


def test_a_whole_product_is_exact_in_float64():
    assert linear_tags.CHUNK * (2**16 - 1) ** 2 < 2**53
    most = fp.Length.__metadata__[0].lt  # entries: the sums of four products of limbs of all stay in 64 bits
    assert 4 * 3 * most * (2**16 - 1) ** 2 < 2**63


@few
@given(st.lists(rows, min_size=1, max_size=5))
def test_tags_add_up_as_the_numbers_do(sites):
    a = coefficients(STREAM)
    each = [words_of(SHAPE, values) for values in sites]
    total = each[0]
    for more in each[1:]:
        total = fp.add(total, more, SHAPE)
    assert tags(total, SHAPE, a) == added([tags(words, SHAPE, a) for words in each])


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("entry", range(4 + 5 + 2))
@pytest.mark.parametrize("sign", [-1, 1])
def test_adding_a_prime_to_an_entry_is_noticed(prime, entry, sign):
    a = coefficients(STREAM)
    values = [3, -(2**80), 7, 5, -9, 2**40, 0, 1]
    before = words_of(SHAPE, values, [4, 2**61 + 100])
    lifted = signed(before, SHAPE)
    lifted[entry] += sign * prime
    after = before.copy()
    if entry < 4:
        after[entry], after[4 + entry] = lifted[entry] % 2**64, (lifted[entry] >> 64) % 2**64
    else:
        after[4 + entry] = lifted[entry] % 2**64
    assert tags(after, SHAPE, a) != tags(before, SHAPE, a)


@pytest.mark.parametrize("entry", range(SHAPE.words))
def test_the_last_bit_of_any_word_is_noticed(entry):
    a = coefficients(STREAM)
    before = words_of(SHAPE, [1, -2, 3, 4, -5, 6, 7, 8], [0, 9])
    after = before.copy()
    after[entry] ^= np.uint64(1)
    assert tags(after, SHAPE, a) != tags(before, SHAPE, a)


@few
@given(rows, st.integers(-40, 40))
def test_multiples_of_sums_and_tags_are_noticed_by_the_constant(values, k):
    a = coefficients(STREAM)
    small = [value >> 8 for value in values]
    true = tags(words_of(SHAPE, small), SHAPE, a)
    scaled = words_of(SHAPE, [k * value for value in small])  # its constant is 1: any other is refused
    multiple = tuple(k * t % p for t, p in zip(true, PRIMES, strict=True))
    assert (tags(scaled, SHAPE, a) == multiple) == (k == 1)


def test_the_primes_are_prime_and_exceed_every_entry_together():
    assert len(set(PRIMES)) == 3
    assert PRIMES[0] * PRIMES[1] * PRIMES[2] > 2**130
    for p in PRIMES:
        assert abs(p - 2**61) < 64
        assert all(_strong(p, base) for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))


def _strong(p, base):
    """Whether p passes the test of Miller and Rabin; these bases decide it below 3.3e24."""
    odd, twos = p - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    powers = [pow(base, odd << k, p) for k in range(twos)]
    return powers[0] == 1 or p - 1 in powers
