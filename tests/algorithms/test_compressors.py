"""FedNL's compressors: what the theory asks of each, bytes, and codes that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation
from fedshed import CodecError, Federation
from fedshed.algorithms.rivals.compressors import Draw, Natural, RankR, TopK, unreadable
from fedshed.algorithms.rivals.fednl import FedNL
from fedshed.linalg.arrays import pack, unpack
from fedshed.objectives import local_objectives

QUICK = settings(deadline=None, max_examples=40)
L2 = 1e-3


def symmetric(n, seed):
    """Entries of very different size, some of them zero."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n)) * np.exp(3 * rng.normal(size=(n, n))) * (rng.random((n, n)) < 0.8)
    return A + A.T


def compressed(compressor, A, draw):
    return unpack(compressor.decode(compressor.encode(A, draw), len(A)), len(A))


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 10**6))
@QUICK
def test_the_largest_entries_contract(n, k, seed):
    """||C(A) - A||^2 <= (1 - k/N) ||A||^2 with N = n(n + 1)/2, and the entries sent are exact."""
    A, N = symmetric(n, seed), n * (n + 1) // 2
    C = compressed(TopK(k=k), A, Draw("a", 1, 1))
    assert np.linalg.norm(C - A) ** 2 <= (1 - min(k, N) / N) * np.linalg.norm(A) ** 2 * (1 + 1e-12)
    assert ((C == A) | (C == 0)).all()
    assert np.count_nonzero(pack(C)) <= k


@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 10**6))
@QUICK
def test_no_other_entries_are_nearer(n, k, seed):
    """Any k entries of the triangle leave at least as much of the Frobenius norm."""
    A, rng = symmetric(n, seed), np.random.default_rng(seed)
    best = np.linalg.norm(compressed(TopK(k=k), A, Draw("a", 1, 1)) - A)
    packed = pack(A)
    for _ in range(20):
        other = np.where(rng.permutation(len(packed)) < k, packed, 0.0)
        assert best <= np.linalg.norm(unpack(other, n) - A) * (1 + 1e-12)


@given(st.floats(1e-30, 1e30), st.booleans())
@QUICK
def test_natural_rounding_is_unbiased_and_its_variance_is_at_most_an_eighth(x, negative):
    """The two powers of two around x, each with the odds that make the mean x."""
    x = -x if negative else x
    A = np.full((60, 60), x)
    low = 2.0 ** np.floor(np.log2(abs(x)))
    drawn = np.abs(
        np.concatenate([Natural().decode(Natural(s).encode(A, Draw("a", 1, 1)), 60) for s in (0, 1)])
    )
    assert set(drawn) <= {low, 2 * low}
    odds = (abs(x) - low) / low
    assert odds * (1 - odds) * low**2 <= x**2 / 8 * (1 + 1e-12)
    spread = np.sqrt(odds * (1 - odds) / len(drawn))
    assert np.mean(drawn == 2 * low) == pytest.approx(odds, abs=6 * spread + 1e-12)


@given(st.integers(1, 15), st.integers(0, 10**6))
@QUICK
def test_natural_rounding_keeps_signs_zeros_and_powers_of_two(n, seed):
    A = symmetric(n, seed)
    C = compressed(Natural(seed=seed), A, Draw("a", 1, 1))
    assert np.array_equal(np.sign(C), np.sign(A))
    assert np.array_equal(compressed(Natural(seed=seed + 1), C, Draw("b", 2, 1)), C)
    assert (np.abs(C - A) <= np.abs(A)).all()


def test_natural_draws_follow_from_seed_agent_and_iteration_alone():
    A = symmetric(12, 0)
    here = Natural(seed=1).encode(A, Draw("a", 3, 1))
    assert here == Natural(seed=1).encode(A, Draw("a", 3, 5))
    others = [(1, "b", 3), (1, "a", 4), (2, "a", 3)]
    assert all(Natural(seed=s).encode(A, Draw(i, t, 1)) != here for s, i, t in others)


def test_learning_rates_are_those_of_the_two_classes():
    assert FedNL().learning_rate == FedNL(compressor=TopK()).learning_rate == 1.0
    assert FedNL(compressor=Natural()).learning_rate == pytest.approx(8 / 9)
    assert FedNL(compressor=Natural(), rate=0.5).learning_rate == 0.5


@pytest.mark.parametrize("n", [6, 40, 400])
def test_codes_take_the_bytes_they_promise(n):
    A, N = symmetric(n, 0) + 1.0, n * (n + 1) // 2
    place = 1 if n < 20 else 2 if n < 300 else 4
    assert len(TopK(k=5).encode(A, Draw("a", 1, 1))) == 5 * (8 + place)
    assert len(TopK().encode(A, Draw("a", 1, 2))) == min(2 * n, N) * (8 + place)
    assert len(Natural().encode(A, Draw("a", 1, 1))) == 2 + (9 * N + 7) // 8


def test_all_entries_at_once_is_fednl_with_full_rank():
    federation = make_federation("logistic")
    one = fedshed.optimize(federation, algorithm=FedNL(compressor=TopK(k=21)), l2=L2)
    two = fedshed.optimize(federation, algorithm=FedNL(channel=fedshed.Constant(6)), l2=L2)
    np.testing.assert_allclose(one.trace.column("f"), two.trace.column("f"), rtol=0, atol=1e-13)


def test_another_seed_rounds_otherwise_and_the_same_seed_the_same():
    runs = [
        fedshed.optimize(
            make_federation("logistic"), algorithm="fednl-natural", l2=L2, seed=s, max_iterations=4
        )
        for s in (3, 3, 4)
    ]
    assert np.array_equal(runs[0].theta, runs[1].theta)
    assert not np.array_equal(runs[0].theta, runs[2].theta)


@pytest.mark.parametrize(
    ("compressor", "code"),
    [
        (TopK(), b"12345"),
        (TopK(), np.array([1.0, 2.0]).tobytes() + bytes([3, 3])),
        (TopK(), np.array([1.0]).tobytes() + bytes([21])),
        (TopK(), np.array([np.nan]).tobytes() + bytes([2])),
        (Natural(), bytes(25)),
        (Natural(), b"\xff\x7f" + bytes(24)),
    ],
    ids=["cut off", "a place twice", "outside", "not a number", "too short", "too large"],
)
def test_a_code_that_is_none_is_refused_with_a_sentence(compressor, code):
    with pytest.raises(CodecError):
        compressor.decode(code, 6)
    point = local_objectives(make_federation("logistic"), "logistic")["small"].at(np.zeros(6))
    answer = compressor.lost(point)
    assert unreadable(compressor, answer) is None
    forged = type(answer)(answer.loss, answer.gradient, 1, code)
    assert "cannot be read" in unreadable(compressor, forged)
    assert unreadable(RankR(), RankR().lost(point)) is None


@pytest.mark.parametrize("name", ["fednl", "fednl-top-k", "fednl-natural"])
def test_raw_columns_without_a_penalty_converge(name):
    """A learnt Hessian that is not positive definite is no sign of collinear columns."""
    rng, tables = np.random.default_rng(1), {}
    for site in "abc":
        X = np.column_stack([rng.normal(60, 10, 120), rng.normal(25, 4, 120), rng.random(120), np.ones(120)])
        z = 0.05 * (X[:, 0] - 60) + 0.1 * (X[:, 1] - 25) - X[:, 2]
        tables[site] = (X, np.where(z + rng.logistic(size=120) > 0, "yes", "no"))
    federation = Federation.from_sites(tables)
    ours, newton = (fedshed.optimize(federation, algorithm=a, l2=0.0, tol=1e-7) for a in (name, "newton"))
    assert ours.converged, ours.reason
    assert abs(ours.trace[-1].f - newton.trace[-1].f) < 1e-12


def test_an_entry_off_the_diagonal_counts_twice():
    """2 x 0.8^2 > 1: of the Frobenius norm it takes more away."""
    code = TopK(k=1).encode(np.array([[1.0, 0.8], [0.8, 0.0]]), Draw("north", 1, 1))
    np.testing.assert_array_equal(TopK(k=1).decode(code, 2), [0.0, 0.8, 0.0])
