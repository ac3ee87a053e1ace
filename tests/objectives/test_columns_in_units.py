"""What is found once for all points, or by a cheaper sum, is what each point would find for itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedshed.algorithms.qn_shed import InUnits
from fedshed.linalg import LowRankPlusDiagonal
from fedshed.linalg.columns import narrowed
from fedshed.linalg.rows import diagonal
from fedshed.objectives.logistic import Logistic


def table(rng, N, n, sparse):
    """Rows with a column that is 0, one that is there twice, and one that is twice another."""
    X = rng.integers(0, 3, size=(N, n)) * (rng.random((N, n)) < 0.5) + 0.0
    X[:, 0], X[:, 1], X[:, 2] = 0.0, X[:, 3], 2 * X[:, 4]
    return csr_array(X) if sparse else X


def dense(X):
    return X if isinstance(X, np.ndarray) else X.toarray()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@given(st.integers(1, 40), st.integers(5, 30), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_columns_that_matter_in_units_are_those_of_every_point(sparse, N, n, seed):
    rng = np.random.default_rng(seed)
    X = table(rng, N, n, sparse)
    units = 2.0 ** (rng.integers(-2, 3, size=n) / 4)
    model = InUnits(Logistic(X, rng.choice([-1.0, 1.0], size=N)), units)
    for _ in range(2):
        point = model.at(rng.normal(size=n) / 9)
        found, expected = point.narrow, narrowed(point.factor)
        np.testing.assert_array_equal(dense(found.rows), dense(expected.rows))
        np.testing.assert_array_equal(found.columns.place, expected.columns.place)
        np.testing.assert_array_equal(found.columns.share, expected.columns.share)


@given(st.integers(1, 40), st.integers(5, 30), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_the_diagonal_of_a_sparse_factor_is_that_of_the_squares(N, n, seed):
    rng = np.random.default_rng(seed)
    F = csr_array(table(rng, N, n, True).toarray() * rng.normal(size=(N, n)))
    np.testing.assert_array_equal(diagonal(F), np.asarray(F.multiply(F).sum(axis=0)).ravel())
    twice = csr_array((np.ones(2), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))  # 1 + 1 in one place
    np.testing.assert_array_equal(diagonal(twice), [0.0, 4.0, 0.0])


@pytest.mark.parametrize("rows", [3, 40])
def test_a_product_is_matvec_whatever_the_method(rows):
    rng = np.random.default_rng(rows)
    H = LowRankPlusDiagonal(rng.normal(size=(rows, 9)), rng.random(9) + 0.1)
    s = rng.normal(size=9)
    np.testing.assert_allclose(H.product(s), H.matvec(s), rtol=1e-12)
    np.testing.assert_allclose(H.product(H.solve(s)), s, rtol=1e-9)
