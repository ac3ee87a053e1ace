"""Fixed-point numbers: sums are those of whole numbers, nothing wraps, and what cannot be added says so."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.privacy import addends
from fedshed.privacy import fixed_point as fp
from fedshed.privacy.addends import Addends

SITES = 128
LIMIT = 2.0 ** (fp.WIDE_RANGE - fp.POINT) / SITES
FRACTION = 30
SLIM_LIMIT = 2.0 ** (fp.SLIM_RANGE - FRACTION) / SITES
BAD = (np.nan, np.inf, -np.inf, 1e300, -LIMIT, LIMIT)
few = settings(max_examples=60, deadline=None)

sizes = st.integers(-7, 7).map(lambda k: 10.0**k)
tiny = st.floats(-(2.0**-40), 2.0**-40)
below = {"allow_nan": False, "exclude_min": True, "exclude_max": True}
wides = st.one_of(
    st.floats(-LIMIT, LIMIT, **below), tiny, st.builds(lambda a, b: a * b, st.floats(-9, 9), sizes)
)
slims = st.floats(-SLIM_LIMIT, SLIM_LIMIT, **below)


def part(wide, slim=(), raised=False, noise=()):
    """Numbers of one slot."""
    wide, slim = np.array(wide, dtype=float), np.array(slim, dtype=float)
    slots = np.zeros(len(wide), dtype=np.intp), np.zeros(len(slim), dtype=np.intp)
    return Addends(wide, slots[0], slim, slots[1], np.array([raised]), tuple(noise))


def integers(words, shape):
    """The words as Python's whole numbers: wide, slim, flags."""
    low, high, slim, flags = (each.tolist() for each in fp.parts_of(words, shape))
    wide = [a + (b << 64) for a, b in zip(low, high, strict=True)]
    lift = lambda x, bits: x - (x >> (bits - 1) << bits)  # noqa: E731
    return [lift(x, 128) for x in wide], [lift(x, 64) for x in slim], flags


def summed(parts, fraction=FRACTION, sites=SITES):
    encoded = [fp.encode(each, fraction, sites) for each in parts]
    shape, words = encoded[0]
    for _, more in encoded[1:]:
        words = fp.add(words, more, shape)
    return shape, words


def rounded(x, bits):
    """x 2^bits to the nearest whole number, ties to even, in exact arithmetic."""
    return round(Fraction(x) * 2**bits)


@few
@given(st.lists(st.tuples(wides, wides, slims), min_size=1, max_size=6))
def test_sums_are_those_of_whole_numbers(rows):
    shape, words = summed([part(row[:2], row[2:]) for row in rows])
    wide, slim, flags = integers(words, shape)
    assert wide == [len(rows) << 64] + [sum(rounded(row[j], 64) for row in rows) for j in (0, 1)]
    assert slim == [sum(rounded(row[2], FRACTION) for row in rows)]
    assert flags == [0]


@few
@given(st.lists(wides, min_size=1, max_size=5))
def test_totals_are_rounded_once(column):
    shape, words = summed([part([x]) for x in column])
    exact = sum(Fraction(rounded(x, 64), 2**64) for x in column)
    assert fp.decode(words, shape).wide.tolist() == [float(exact)]


@few
@given(st.integers(-(2**126), 2**126 - 1), st.integers(0, 62))
def test_any_wide_sum_becomes_the_nearest_float(top, shift):
    number = top >> shift
    shape = fp.Shape(2, 0, 0, 0)
    halves = [0, number % 2**64, 1, (number >> 64) % 2**64]
    total = fp.decode(np.array(halves, dtype=np.uint64), shape).wide[0]
    assert total == number / 2**64


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_numbers_of_all_sites_do_not_wrap(sign):
    largest, slim = np.nextafter(LIMIT, 0), np.nextafter(SLIM_LIMIT, 0)
    most = (2**fp.WIDE_RANGE - 1) // SITES
    noise = [int(sign) * most] if sign > 0 else [-most]
    shape, words = summed([part([sign * largest], [sign * slim], noise=noise)] * SITES)
    wide, slims_, _ = integers(words, shape)
    assert wide[1] == SITES * (rounded(sign * largest, 64) + int(sign) * most)
    assert slims_ == [SITES * rounded(sign * slim, FRACTION)]
    fp.check_sums(words, shape, SITES)


@pytest.mark.parametrize("bad", BAD)
def test_a_number_that_cannot_be_added_raises_its_own_slot(bad):
    numbers = np.array([1.0, bad, 2.0])
    mine = Addends(numbers, np.array([0, 1, 2]), numbers, np.array([3, 4, 5]), np.zeros(7, dtype=bool))
    shape, words = fp.encode(mine, FRACTION, SITES)
    raised = fp.decode(words, shape).raised
    assert raised.tolist() == [False, True, False, False, True, False, False]
    flags = integers(words, shape)[2]
    assert all(1 <= flags[j] < 2**fp.FLAG for j in (1, 4))
    totals = fp.decode(words, shape)
    assert totals.wide[[0, 2]].tolist() == totals.slim[[0, 2]].tolist() == [1.0, 2.0]


def test_raised_slots_say_nothing_of_the_sites_that_did_not_raise_them():
    """If two of three overflow, the sum of the slot would be the third site's numbers, were 0 added."""
    mine, theirs = part([3.5, -1.25], [2.0]), part([3.5, np.nan], [2.0])
    sums = [fp.decode(*reversed(summed([mine, theirs, theirs], sites=3))) for _ in range(8)]
    assert all(each.raised[0] for each in sums)
    for j in (0, 1):
        assert len({each.wide[j] for each in sums}) == 8
        assert min(abs(each.wide[j]) for each in sums) > 2.0**40
    assert len({each.slim[0] for each in sums}) == 8
    for _ in range(8):
        fp.check_sums(summed([theirs] * SITES)[1], fp.Shape(3, 1, 1, FRACTION), SITES)


def test_flags_of_all_sites_do_not_wrap():
    shape, words = summed([part([0.0], raised=True)] * SITES)
    assert integers(words, shape)[2][0] < 2**63
    assert fp.decode(words, shape).raised.all()


@few
@given(st.lists(st.integers(0, 2**64 - 1), min_size=10, max_size=10))
def test_differences_undo_sums(words):
    shape = fp.Shape(2, 0, 1, 0)
    a, b = (np.array(half, dtype=np.uint64) for half in (words[:5], words[5:]))
    assert fp.subtract(fp.add(a, b, shape), b, shape).tolist() == a.tolist()
    assert fp.add(fp.subtract(a, b, shape), b, shape).tolist() == a.tolist()
    wide = lambda w: [int(w[j]) + (int(w[2 + j]) << 64) for j in (0, 1)]  # noqa: E731
    expected = [(x + y) % 2**128 for x, y in zip(wide(a), wide(b), strict=True)]
    assert wide(fp.add(a, b, shape)) == expected


@few
@given(st.lists(st.tuples(st.integers(-(2**100), 2**100), st.floats(-1e7, 1e7)), min_size=2, max_size=5))
def test_noise_is_added_in_whole_numbers(rows):
    parts = [part([x], noise=[z]) for z, x in rows]
    shape, words = summed(parts)
    assert integers(words, shape)[0][1] == sum(z + rounded(x, 64) for z, x in rows)
    plain = addends.add(parts).wide[0]
    assert fp.decode(words, shape).wide[0] == pytest.approx(plain, rel=1e-15, abs=1e-18)


def test_noise_beyond_the_range_is_refused():
    with pytest.raises(ProtocolError, match="noise"):
        fp.encode(part([0.0], noise=[2**120]), FRACTION, SITES)


@few
@given(st.lists(st.builds(lambda a, b: a * b, st.floats(0.5, 9.0), sizes), min_size=2, max_size=6))
def test_masked_and_plain_sums_agree_for_columns_of_all_sizes(column):
    parts = [part([x]) for x in column]
    shape, words = summed(parts)
    plain = addends.add(parts).wide[0]
    assert abs(fp.decode(words, shape).wide[0] - plain) <= len(column) * 2.0**-65 + np.spacing(plain)


@pytest.mark.parametrize(
    ("index", "value"),
    [(0, 1), (2, 4), (3, 1 << 62), (3, (1 << 64) - (1 << 62) - 1), (4, 2**63), (4, 2**62 + 2), (5, 2**63)],
)
def test_sums_that_the_sites_cannot_make_are_refused(index, value):
    shape, words = summed([part([1.0], [1.0])] * 3)
    fp.check_sums(words, shape, 3)
    assert shape.words == 6
    words[index] = value
    with pytest.raises(ProtocolError):
        fp.check_sums(words, shape, 3)


def test_the_constant_counts_the_sites():
    shape, words = summed([part([1.0])] * 3)
    for wrong in (2, 4):
        with pytest.raises(ProtocolError, match=f"{wrong} sites"):
            fp.check_sums(words, shape, wrong)


@given(st.floats(1.0, 2.0**42))
def test_a_hessian_keeps_twelve_bits_above_the_weight(weight):
    fraction = fp.fraction_for(weight)
    assert weight * 2.0**fraction <= 2.0 ** (fp.SLIM_RANGE - fp.SPARE) < 2 * weight * 2.0**fraction


def test_weights_and_sites_beyond_the_range_are_refused():
    with pytest.raises(ConfigError, match="too large"):
        fp.fraction_for(1e14)
    with pytest.raises(ConfigError, match="129 sites"):
        fp.encode(part([1.0]), 0, 129)
