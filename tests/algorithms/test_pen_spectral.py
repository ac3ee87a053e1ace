"""PEN's spectral innovations: what stands out of the noise is sent, and nothing malformed is believed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation
from fedshed import CodecError
from fedshed.algorithms import Pen
from fedshed.algorithms.pen.frame import encode_move
from fedshed.algorithms.pen.innovation import Copy, Steps, correct_copy, innovation, undecodable
from fedshed.algorithms.pen.messages import Innovation
from fedshed.algorithms.pen.spectral import (
    LEAST,
    MOST_PAIRS,
    OUTSIDE,
    encode_pairs,
    has_structure,
    lanczos,
    largest_pairs,
    noise_radius,
    read_pairs,
    standing_out,
    sum_signed,
)
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.protocol.quantize import encode_steps
from made_matrices import spd, symmetric

QUICK = settings(deadline=None, max_examples=30)


def spiked(n, k, seed, height=4.0, noise=0.05):
    """Noise and k eigenvalues of either sign outside it."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0][:, :k]
    w = rng.choice([-1.0, 1.0], k) * height * rng.uniform(1, 3, k)
    return (Q * w) @ Q.T + noise * symmetric(n, rng)


def squares(E):
    return float(np.sum(E**2))


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 10**6), st.floats(0.05, 6.0))
@QUICK
def test_a_spectral_part_never_raises_the_missed_energy(n, k, seed, fineness):
    E = spiked(n, min(k, n), seed)
    data, left = encode_pairs(E, fineness)
    low = sum_signed(*read_pairs(data, n)) if data else np.zeros((n, n))
    assert left == pytest.approx(squares(E - low), rel=1e-6, abs=1e-9 * squares(E))
    assert left < squares(E) * (1 + 1e-12)
    assert data == b"" or left < squares(E)


@pytest.mark.parametrize(("n", "k"), [(20, 0), (20, 1), (20, 2), (200, 0), (200, 5), (200, 12)])
def test_what_is_left_has_no_eigenvalue_outside_its_noise(n, k):
    E = spiked(n, k, seed=k)
    w, V = standing_out(E)
    assert k <= len(w) < MOST_PAIRS
    rest = np.linalg.eigvalsh(E - (V * w) @ V.T)
    assert np.abs(rest).max() <= max(OUTSIDE * noise_radius(squares(rest), n), LEAST) * (1 + 1e-6)


def test_no_more_pairs_are_sent_than_the_cap():
    data, _ = encode_pairs(spiked(400, 40, 0), 0.7)
    assert data[0] == MOST_PAIRS


@pytest.mark.parametrize("count", [1, 6, 24])
def test_lanczos_finds_the_eigenpairs_that_a_dense_solver_finds(count):
    E = spiked(200, count, seed=1)
    w, V = largest_pairs(E, count)
    dense = np.linalg.eigvalsh(E)
    np.testing.assert_allclose(w, dense[np.argsort(-np.abs(dense))][:count], rtol=1e-5)
    assert np.linalg.norm(E @ V - V * w) <= 1e-3 * np.linalg.norm(w)
    np.testing.assert_array_equal(largest_pairs(E, count)[0], w)  # same start, same bits


def test_lanczos_ends_where_its_space_is_invariant():
    """Of a matrix of rank 3 there are no more than four directions to be found."""
    w, V = lanczos(spiked(50, 3, 0, noise=0.0), 20, 20)
    assert len(w) <= 5
    np.testing.assert_allclose(V.T @ V, np.eye(len(w)), atol=1e-5)
    assert lanczos(np.zeros((50, 50)), 20, 20)[0].shape == (1,)


def test_errors_of_one_sign_are_structured_and_random_ones_are_not():
    rng = np.random.default_rng(0)
    assert not has_structure(symmetric(150, rng))
    assert has_structure(np.abs(symmetric(150, rng)))


@given(st.integers(30, 60), st.integers(0, 10**6))
@settings(QUICK, max_examples=15)
def test_both_ends_add_the_same_spectral_part(n, seed):
    prediction = Copy(7, spd(n, seed, 0.1), np.zeros(n))
    W, move = (
        prediction.W + spiked(n, 2, seed, height=2.0, noise=0.001),
        encode_move(1, b"", np.ones(n), 1e-6),
    )
    coarse = Steps(entries=50.0, dithered=50.0, first=50.0, first_dithered=50.0, pairs=0.1)
    answer = innovation(1.0, np.zeros(n), W, prediction, move, coarse, np.inf)
    new = correct_copy(prediction, move, answer)
    assert answer.spectral
    assert undecodable(move, answer, n) is None
    assert squares(new.W - W) == pytest.approx(answer.error, rel=1e-6, abs=1e-12)
    assert squares(new.W - W) < 0.2 * squares(answer.c * prediction.W - W)
    assert np.array_equal(new.W, new.W.T)
    other = correct_copy(prediction, move, Innovation(*(getattr(answer, f) for f in FIELDS)))
    assert other.digest != new.digest  # what was sent is part of the history
    full = len(answer.hessian) + len(answer.gradient) + len(answer.spectral)
    assert not innovation(1.0, np.zeros(n), W, prediction, move, coarse, full - 1).spectral


FIELDS = ("loss", "gradient", "c", "hessian", "error")  # without the spectral part


# --- malformed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" + b"\1" * 255 + encode_steps(np.ones(255 * 5), 0.1),
        b"\6" + b"\1" * 6 + encode_steps(np.ones(30), 0.1),  # more pairs than columns
        b"\0" + encode_steps(np.ones(5), 0.1),
        b"\2\1",
        b"\1\2" + encode_steps(np.ones(5), 0.1),
        b"\1\1" + np.float32(np.nan).tobytes() + encode_steps(np.ones(5), 0.1)[4:],
        b"\1\1" + np.float32(np.inf).tobytes() + encode_steps(np.ones(5), 0.1)[4:],
        b"\1\1" + encode_steps(np.arange(5.0), 0.1)[:-4],
        b"\1\1" + encode_steps(np.ones(5), 0.1) + b"\0\0\0\0",
        b"\1\1",
    ],
    ids=["huge-rank", "rank-above-n", "rank-0", "signs-cut", "signs", "nan", "inf", "cut", "more", "empty"],
)
def test_a_malformed_spectral_part_is_refused(data):
    with pytest.raises(CodecError):
        read_pairs(data, 5)
    flat = encode_steps(np.zeros(15), 0.1)
    answer = Innovation(0.0, encode_steps(np.zeros(5), 0.1), 1.0, flat, 0.0, data)
    assert undecodable(encode_move(1, b"", np.zeros(5), 1.0), answer, 5) is not None


def test_rows_whose_squares_overflow_are_refused():
    rows = b"\1\1" + encode_steps(np.full(5, 3e38), 3e38)
    zeros = encode_steps(np.zeros(5), 0.1), 1.0, encode_steps(np.zeros(15), 0.1), 0.0
    assert undecodable(encode_move(1, b"", np.zeros(5), 1.0), Innovation(0.0, *zeros, rows), 5) is None
    large = b"\1\1" + encode_steps(np.full(5, 3e38 * 2.0**30), 3e38)
    signs, values = read_pairs(large, 5)
    assert np.isfinite(sum_signed(signs, values)).all()  # float32 steps and 32-bit symbols cannot overflow


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_read_or_refused(data):
    try:
        signs, rows = read_pairs(data, 4)
    except CodecError:
        return
    assert np.isfinite(sum_signed(signs, rows)).all()


# --- runs ---------------------------------------------------------------------------------------------

SPECTRAL = Pen(step_size=50.0)  # hardly an entry is sent: all there is are pairs


def fitted(algorithm=SPECTRAL, **options):
    return fedshed.optimize(make_federation("logistic"), algorithm=algorithm, l2=1e-3, tol=1e-10, **options)


def test_pairs_alone_carry_a_run_to_the_pooled_optimum():
    expected, _ = fedshed.optimum(make_federation("logistic"), l2=1e-3)
    result = fitted()
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, expected, atol=1e-7)


def test_lost_answers_stateless_agents_and_resumed_runs_give_the_same_bits(tmp_path):
    quiet, path = fitted(), tmp_path / "run.ckpt"
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.3, "forget": 0.25, "seed": 1}
    fitted(max_iterations=3, checkpoint=path)
    others = (
        fitted(transport=Stateless),
        fitted(transport=lambda sites: Faulty(InProcess(sites), **faults)),
        fedshed.resume(path, make_federation("logistic"), max_iterations=100),
    )
    assert all(np.array_equal(other.theta, quiet.theta) for other in others)
