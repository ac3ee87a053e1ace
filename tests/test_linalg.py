"""Kernels against the dense textbook formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedshed import SingularError
from fedshed.arrays import pack, unpack
from fedshed.linalg import DensePlusRidge, LowRankPlusDiagonal, leading_eigenpairs

QUICK = settings(deadline=None, max_examples=60, derandomize=True)
shapes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 9), st.integers(0, 10**6))


def factor_of(N, n, rank, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, min(rank, n))) @ rng.normal(size=(min(rank, n), n))


@given(shapes)
@QUICK
def test_all_pairs_and_the_last_value_rebuild_the_hessian(shape):
    """sum_j (lambda_j - rho) v_j v_j' + rho I with rho = lambda_{q+1} is F'F when all pairs are sent."""
    F = factor_of(*shape)
    for factor in (F, csr_array(F)):
        values, vectors = leading_eigenpairs(factor)
        q, n = len(vectors), F.shape[1]
        assert q <= min(n - 1, *F.shape)
        rho = values[q]
        rebuilt = vectors.T @ np.diag(values[:q] - rho) @ vectors + rho * np.eye(n)
        np.testing.assert_allclose(rebuilt, F.T @ F, atol=1e-9 * (1 + values[0]))
        assert (np.diff(values) <= 0).all()
        np.testing.assert_allclose(values, np.linalg.eigvalsh(F.T @ F)[::-1], atol=1e-9 * (1 + values[0]))


def test_no_rows_of_weight_give_no_pairs():
    values, vectors = leading_eigenpairs(np.zeros((4, 3)))
    assert values.tolist() == [0, 0, 0]
    assert vectors.shape == (0, 3)


@given(st.integers(1, 8), st.integers(0, 10**6))
@QUICK
def test_packed_is_half_and_unpacks(n, seed):
    A = np.random.default_rng(seed).normal(size=(n, n))
    packed = pack(A + A.T)
    assert packed.shape == (n * (n + 1) // 2,)
    assert np.array_equal(unpack(packed, n), A + A.T)


@given(shapes)
@QUICK
def test_solve_inverts_matvec(shape):
    U = factor_of(*shape)
    ridge = np.linspace(0.1, 1, U.shape[1])
    operator, g = LowRankPlusDiagonal(U, ridge), np.ones(U.shape[1])
    np.testing.assert_allclose(operator.matvec(operator.solve(g)), g, atol=1e-8)
    np.testing.assert_allclose(operator.matvec(g), (U.T @ U + np.diag(ridge)) @ g)


def test_a_singular_curvature_names_the_collinear_columns():
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, 3] = X[:, 1]
    with pytest.raises(SingularError, match=r"b, d are collinear.*l2 > 0"):
        DensePlusRidge(X.T @ X, np.zeros(4), ["a", "b", "c", "d"]).solve(np.ones(4))
