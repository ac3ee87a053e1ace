"""Kernels against the dense textbook formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.sparse import csr_array

from fedshed import SingularError
from fedshed.linalg import (
    Automatic,
    DensePlusRidge,
    Lanczos,
    LowRankPlusDiagonal,
    Subspace,
    Textbook,
    Tridiagonal,
    columns,
    leading,
    leading_eigenpairs,
    solve,
)
from fedshed.linalg.arrays import pack, unpack
from fedshed.linalg.columns import Narrow, columns_of, narrowed
from fedshed.linalg.rows import weighted_gram
from fedshed.linalg.solve import cholesky_of

QUICK = settings(deadline=None, max_examples=60)
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


# --- kernels ------------------------------------------------------------------------------------------

EXACT = (Textbook(), Tridiagonal(), Lanczos(), Automatic())
factors = st.tuples(
    st.sampled_from([1, 2, 7, 40, 90, 130]),  # rows
    st.sampled_from([1, 2, 9, 40, 100]),  # columns
    st.sampled_from(
        ["decaying", "deficient", "repeated", "zero rows and columns", "equal columns", "sparse", "zero"]
    ),
    st.integers(0, 10**6),
)


def awkward_factor(N, n, kind, seed):
    """Factors with hard Gram matrices: deficient, repeated eigenvalues, zero rows and columns."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(N, n)) * np.geomspace(1, 1e-3, n)
    if kind == "deficient":
        F = F[:, : 1 + n // 3] @ rng.normal(size=(1 + n // 3, n))
    if kind == "repeated":
        m = min(N, n)
        left, right = (np.linalg.qr(rng.normal(size=(size, m)))[0] for size in (N, n))
        F = (left * np.where(np.arange(m) < m // 2, 2.0, 1.0)) @ right.T
    if kind == "zero rows and columns":
        F[rng.random(N) < 0.3], F[:, rng.random(n) < 0.3] = 0, 0
    if kind == "equal columns":
        F = F[:, rng.integers(0, 1 + n // 2, size=n)]
    if kind == "sparse":
        F[rng.random(F.shape) < 0.9] = 0
    sparse = kind in ("sparse", "zero rows and columns") or (kind == "equal columns" and seed % 2)
    return csr_array(F) if sparse else F * (kind != "zero")


def rebuilt(pairs, q):
    """sum_j (lambda_j - rho) v_j v_j' + rho I with rho = lambda_{q+1} (equation 9)."""
    V, rho = pairs.vectors[:q], pairs.values[q]
    return (V.T * (pairs.values[:q] - rho)) @ V + rho * np.eye(V.shape[1])


@pytest.mark.parametrize("kernel", EXACT, ids=lambda kernel: type(kernel).__name__)
@given(factors, st.integers(1, 30))
@QUICK
def test_exact_kernels_give_the_dense_textbook_pairs(kernel, shape, count):
    """Values, orthonormal vectors, residuals; and H_hat, which does not depend on the basis of a cluster."""
    F = awkward_factor(*shape)
    H = (F.T @ F) if isinstance(F, np.ndarray) else (F.T @ F).toarray()
    pairs, truth = leading(F, count, kernel), np.linalg.eigvalsh(H)[::-1]
    tiny, q = 1e-12 * (1e-300 + truth[0]), pairs.q
    assert q >= min(count, np.count_nonzero(truth > 100 * tiny), len(H) - 1)
    np.testing.assert_allclose(pairs.values, truth[: q + 1], atol=10 * tiny)
    np.testing.assert_allclose(pairs.vectors @ H, pairs.values[:q, None] * pairs.vectors, atol=1e3 * tiny)
    np.testing.assert_allclose(
        rebuilt(pairs, q) @ pairs.vectors.T, pairs.vectors.T * pairs.values[:q], atol=1e3 * tiny
    )
    if pairs.complete:
        np.testing.assert_allclose(rebuilt(pairs, q), H, atol=1e3 * tiny)
    if pairs.smallest is not None:
        np.testing.assert_allclose(pairs.smallest, truth[-1], atol=10 * tiny)


@pytest.mark.parametrize("kernel", [Tridiagonal(), Lanczos(), Subspace()], ids=lambda k: type(k).__name__)
@given(factors, st.integers(1, 12))
@QUICK
def test_pairs_drawn_later_complete_those_drawn_before(kernel, shape, count):
    """However the pairs are cut, all of them are orthonormal and rebuild the Hessian; the first ones stay."""
    F = awkward_factor(*shape)
    H = (F.T @ F) if isinstance(F, np.ndarray) else (F.T @ F).toarray()
    first = pairs = leading(F, count, kernel)
    while not pairs.complete:
        pairs = pairs.followed_by(leading(F, 2 * pairs.q + 1, kernel))
    assert np.array_equal(pairs.vectors[: first.q], first.vectors)
    scale = 1e-300 + np.linalg.norm(H, 2)
    if not isinstance(kernel, Subspace):
        np.testing.assert_allclose(rebuilt(pairs, pairs.q), H, atol=1e-9 * scale)
    strong = pairs.values[: pairs.q] > 1e-6 * scale  # the dual loses orthogonality as sqrt(lambda) falls
    V = pairs.vectors[strong]
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-8)


@given(factors)
@QUICK
def test_the_columns_that_matter_rebuild_the_table(shape):
    """F = Y E with orthonormal rows of E; zero columns are gone, and equal ones are there once."""
    F = awkward_factor(*shape)
    narrow = narrowed(F)
    Y, E = narrow.rows, narrow.columns.expand(np.eye(narrow.rows.shape[1]))
    dense = lambda A: A if isinstance(A, np.ndarray) else A.toarray()  # noqa: E731
    np.testing.assert_allclose(dense(Y) @ E, dense(F), rtol=1e-15)
    np.testing.assert_allclose(E @ E.T, np.eye(len(E)), atol=1e-15)
    kinds = {column.tobytes() for column in dense(F).T + 0.0 if column.any()}
    assert Y.shape[1] == len(kinds)


def test_columns_that_only_seem_alike_are_kept_apart(monkeypatch):
    """Random sums are a hint: without them every column seems equal to every other."""
    X = np.random.default_rng(0).normal(size=(6, 4))[:, [0, 1, 0, 2, 3, 3]]
    monkeypatch.setattr(columns, "_random_numbers", np.zeros)
    narrow = narrowed(X)
    np.testing.assert_allclose(
        narrow.rows @ narrow.columns.expand(np.eye(narrow.rows.shape[1])), X, rtol=1e-15
    )


@pytest.mark.parametrize("sizes", [(60, 60), (40, 50, 30)])
@pytest.mark.parametrize("alike", [True, False])
def test_matrices_that_fall_into_blocks(sizes, alike):
    """Of a table whose columns have no row in common T falls apart, with the same values in equal blocks."""
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(2 * m, m)) * np.geomspace(1, 0.1, m) for m in sizes]
    F = block_diag(*(blocks[:1] * len(sizes) if alike else blocks))
    pairs, H = leading(F, 25, Tridiagonal()), F.T @ F
    np.testing.assert_allclose(pairs.values, np.linalg.eigvalsh(H)[::-1][: pairs.q + 1], rtol=1e-12)
    np.testing.assert_allclose(pairs.vectors @ pairs.vectors.T, np.eye(pairs.q), atol=1e-12)
    np.testing.assert_allclose(pairs.vectors @ H, pairs.values[:-1, None] * pairs.vectors, atol=1e-11)


@pytest.mark.parametrize("size", [1e-150, 1e-80, 1e70, 1e120])
@pytest.mark.parametrize("count", [3, 40])
def test_units_of_any_size_change_the_values_alone(size, count):
    F = np.random.default_rng(0).normal(size=(300, 200)) * np.geomspace(1, 1e-2, 200)
    one, other = leading(F, count, Tridiagonal()), leading(size * F, count, Tridiagonal())
    np.testing.assert_allclose(other.values, size**2 * one.values, rtol=1e-10)
    np.testing.assert_allclose(
        np.abs(np.sum(one.vectors[:count] * other.vectors[:count], axis=1)), 1.0, rtol=1e-9
    )


@given(factors, st.integers(1, 12))
@QUICK
def test_subspace_values_are_never_above_the_eigenvalues(shape, count):
    """Nystrom's approximation is at most S, and the first value never far below."""
    F = awkward_factor(*shape)
    pairs = leading(F, count, Subspace())
    truth = leading_eigenpairs(F)[0]
    slack = 1e-12 * (1 + truth[0])
    assert (pairs.values <= truth[: pairs.q + 1] + slack).all()
    assert pairs.values[0] >= 0.5 * truth[0] - slack


@pytest.mark.parametrize("shape", [(1000, 64), (60, 400), (3000, 100)])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_subspace_of_hardly_any_rank(shape, rank):
    """Rows of very different size, as sites with outliers have them; a Hessian that is 0 everywhere."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        F = factor_of(*shape, rank, seed) * np.exp(3 * rng.normal(size=(shape[0], 1)))
        pairs, truth = leading(F, 12, Subspace()), leading_eigenpairs(F)
        assert pairs.q <= max(rank, 12)
        np.testing.assert_allclose(pairs.values[:rank], truth[0][:rank], rtol=1e-10)
        np.testing.assert_allclose(np.abs(pairs.vectors[:rank] @ truth[1][:rank].T), np.eye(rank), atol=1e-6)


@pytest.mark.parametrize("kernel", [Lanczos(), Subspace(), Tridiagonal()], ids=lambda k: type(k).__name__)
def test_a_curvature_of_zero_has_no_pairs(kernel):
    """As a saturated site's: its columns are in use, its curvature is none."""
    X = np.random.default_rng(0).normal(size=(300, 120))
    for F in (0 * X, csr_array(X) * 0.0):
        for count in (8, 20):
            pairs = leading(Narrow(F, columns_of(X)), count, kernel)
            assert pairs.complete
            assert (pairs.q, pairs.values.tolist()) == (0, [0.0])


@pytest.mark.parametrize("kernel", [Lanczos(), Subspace(), Tridiagonal()], ids=lambda k: type(k).__name__)
def test_a_kernel_is_a_pure_function(kernel):
    """Also where the space it searches closes early: a balanced one-hot table has one eigenvalue only."""
    X = csr_array(np.kron(np.eye(600), np.ones((3, 1))))
    one, other = leading(X, 8, kernel), leading(X, 8, kernel)
    assert np.array_equal(one.vectors, other.vectors)
    assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize("rows", [520, 1500])
@pytest.mark.parametrize("n", [520, 700])
def test_large_dense_factors_by_lanczos_are_the_textbooks(rows, n):
    F = np.random.default_rng(n).normal(size=(rows, n)) * np.geomspace(1, 0.05, n)
    pairs, (values, vectors) = leading(F, 5, Automatic()), leading_eigenpairs(F)
    assert pairs.kernel == "Lanczos"
    np.testing.assert_allclose(pairs.values, values[: pairs.q + 1], rtol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(pairs.vectors[:5] * vectors[:5], axis=1)), 1.0, rtol=1e-9)


def test_the_kernel_follows_the_shorter_side_the_density_and_the_pairs():
    rng = np.random.default_rng(0)
    dense, sparse = rng.normal(size=(300, 200)), csr_array(rng.random((600, 2000)) < 0.01, dtype=float)
    assert leading(dense, 5, Automatic()).kernel == "Tridiagonal"
    assert leading(dense, 5, Automatic(approximate=True)).kernel == "Subspace"
    assert leading(sparse, 5, Automatic()).kernel == "Lanczos"
    assert leading(sparse, 50, Automatic()).kernel == "Tridiagonal"
    assert leading(sparse, 5, Textbook()).kernel == "Textbook"


def test_a_wide_factor_never_makes_a_matrix_of_its_columns():
    """n = 200,000 columns, 30 rows: n x n would be 320 GB."""
    F = csr_array(np.random.default_rng(0).random((30, 200_000)) < 1e-3, dtype=float)
    pairs = leading(F, 30, Automatic())
    assert pairs.complete
    s = np.random.default_rng(1).normal(size=F.shape[1])
    np.testing.assert_allclose(
        (pairs.values[:-1] * (pairs.vectors @ s)) @ pairs.vectors, F.T @ (F @ s), atol=1e-9
    )


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


stacks = st.tuples(
    st.sampled_from([0, 1, 3, 20, 60]),  # rows
    st.sampled_from([1, 2, 21, 70]),  # columns
    st.floats(-9, 3),  # log10 of the diagonal
    st.sampled_from(["full", "deficient", "graded", "zero"]),
    st.booleans(),  # an intercept with a diagonal of its own
    st.integers(0, 10**6),
)


def awkward_stack(rows, n, log_diagonal, kind, intercept, seed):
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(rows, n))
    if kind == "deficient":
        U = np.repeat(U[:1], rows, axis=0)
    if kind == "graded":
        U *= np.geomspace(1, 1e-6, n)
    diagonal = np.full(n, 10.0**log_diagonal)
    diagonal[-1] *= 1e-3 if intercept else 1.0
    return U * (kind != "zero"), diagonal, rng.normal(size=n)


@given(stacks)
@QUICK
def test_any_solve_is_the_dense_textbook_solve_to_a_backward_error_of_1e_13(stack):
    U, diagonal, g = awkward_stack(*stack)
    operator, H = LowRankPlusDiagonal(U, diagonal), U.T @ U + np.diag(diagonal)
    p = operator.solve(g)
    scale = np.linalg.norm(g) + np.linalg.norm(H, 2) * np.linalg.norm(p)
    assert np.linalg.norm(g - H @ p) <= 1e-12 * scale
    assert np.linalg.norm(p - np.linalg.solve(H, g)) <= 1e-12 * np.linalg.cond(H) * np.linalg.norm(p)
    np.testing.assert_allclose(operator.matvec(g), H @ g, rtol=1e-9, atol=1e-12 * np.linalg.norm(H))


@given(stacks, st.floats(0.1, 30))
@QUICK
def test_conjugate_gradients_with_a_near_factor_solve_as_exactly(stack, ratio):
    """Half of the rows, and another diagonal: what an older H_hat looks like."""
    U, diagonal, g = awkward_stack(*stack)
    H, half = U.T @ U + np.diag(diagonal), U[: len(U) // 2]
    operator = LowRankPlusDiagonal(U, diagonal, preconditioner=lambda: cholesky_of(half, ratio * diagonal))
    p = operator._conjugate_gradients(g)
    scale = np.linalg.norm(g) + np.linalg.norm(H, 2) * np.linalg.norm(p)
    assert np.linalg.norm(g - H @ p) <= 1e-12 * scale


def test_many_columns_and_more_rows_are_solved_with_the_near_factor(monkeypatch):
    monkeypatch.setattr(solve, "MANY_COLUMNS", 30)
    rng = np.random.default_rng(0)
    U, g, made = rng.normal(size=(90, 40)), rng.normal(size=40), []
    near = LowRankPlusDiagonal(
        U, np.ones(40), preconditioner=lambda: made.append(1) or cholesky_of(U[:50], np.ones(40))
    )
    assert near.method == "pcg"
    np.testing.assert_allclose(near.matvec(near.solve(g)), g, atol=1e-10)
    assert made


def test_fewer_rows_than_columns_never_make_a_dense_matrix():
    """n = 200,000: n x n would be 320 GB."""
    rng = np.random.default_rng(0)
    U, g = rng.normal(size=(12, 200_000)), rng.normal(size=200_000)
    operator = LowRankPlusDiagonal(U, np.full(200_000, 1e-3))
    assert operator.method == "woodbury"
    np.testing.assert_allclose(operator.matvec(operator.solve(g)), g, atol=1e-6)
    assert LowRankPlusDiagonal(U[:, :12], np.full(12, 1e-3)).method == "dense"


def test_a_singular_curvature_names_the_collinear_columns():
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, 3] = X[:, 1]
    with pytest.raises(SingularError, match=r"b, d are collinear.*l2 > 0"):
        DensePlusRidge(X.T @ X, np.zeros(4), ["a", "b", "c", "d"]).solve(np.ones(4))


@settings(deadline=None, max_examples=30)
@given(blocks=st.lists(st.integers(0, 9), max_size=12), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_gram_matrix_of_blocks_is_that_of_their_stack(blocks, n, seed):
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(rows, n)), rng.random(rows)) for rows in blocks]
    expected = sum((V.T * w @ V for V, w in pairs), np.zeros((n, n)))
    np.testing.assert_allclose(weighted_gram(pairs, n), expected, atol=1e-13)
