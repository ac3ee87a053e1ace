"""Compensated sums are rounded as if they had twice the digits."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.linalg.totals import compensated_total

EPS = np.finfo(float).eps
numbers = st.floats(-1e15, 1e15, allow_subnormal=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=33))
def test_the_error_is_one_rounding_and_the_square_of_it(rows):
    found = compensated_total(np.array(rows))
    for j, column in enumerate(zip(*rows, strict=True)):
        exact, size = sum(map(Fraction, column)), float(sum(abs(Fraction(x)) for x in column))
        assert abs(Fraction(float(found[j])) - exact) <= EPS * abs(exact) + len(rows) ** 2 * EPS**2 * size


def test_what_cancels_is_kept_where_a_plain_sum_loses_it():
    rows = np.array([1e16, 1.0, 1.0, -1e16, 1.0])
    assert compensated_total(rows) == 3.0
    assert rows.sum() != 3.0
