"""Sums over sites without masks: exact, the same in any order, and honest about what cannot be added."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.privacy.addends import Addends, add

numbers = st.floats(-1e280, 1e280)


def part(wide, slim=(0.0,), raised=(False, False), noise=()):
    """One wide number in slot 0 for each given, one slim number in slot 1 for each given."""
    wide, slim = np.array(wide, dtype=float), np.array(slim, dtype=float)
    slots = np.zeros(len(wide), dtype=np.intp), np.ones(len(slim), dtype=np.intp)
    return Addends(wide, slots[0], slim, slots[1], np.array(raised), tuple(noise))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.randoms())
def test_sums_are_rounded_once_in_any_order(rows, random):
    totals = add([part(row, row) for row in rows])
    exact = [float(sum(map(Fraction, column))) for column in zip(*rows, strict=True)]
    assert totals.wide.tolist() == totals.slim.tolist() == exact
    random.shuffle(rows)
    assert add([part(row, row) for row in rows]).wide.tolist() == exact


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_number_that_cannot_be_added_raises_its_slot(bad):
    assert add([part([1.0]), part([bad])]).raised.tolist() == [True, False]
    assert add([part([1.0]), part([1.0], [bad])]).raised.tolist() == [False, True]
    assert np.isfinite(add([part([1.0]), part([bad])]).wide).all()


def test_a_slot_is_raised_where_any_site_says_so():
    parts = [part([1.0]), part([1.0], raised=(False, True)), part([1.0])]
    assert add(parts).raised.tolist() == [False, True]
    assert add(parts).wide.tolist() == [3.0]


def test_noise_counts_in_multiples_of_its_own_unit():
    totals = add([part([1.0, 2.0], noise=(3, -(2**64))), part([0.0, 0.0], noise=(-3, 1))])
    assert totals.wide.tolist() == [1.0, 1.0]
    assert add([part([0.0], noise=(5,))]).wide.tolist() == [5 * 2.0**-64]
