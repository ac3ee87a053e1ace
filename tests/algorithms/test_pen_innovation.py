"""PEN's innovations: what the Master decodes is what the agent goes on from, within the step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedshed.algorithms.pen.dither import Dither
from fedshed.algorithms.pen.frame import change_of, decode_step, encode_move, frame_change
from fedshed.algorithms.pen.innovation import (
    NEAR,
    Copy,
    Steps,
    correct_copy,
    decode_first,
    energy,
    first_answer,
    innovation,
    predict_copy,
    secant_correction,
)
from fedshed.linalg.arrays import pack
from made_matrices import spd, symmetric

STEPS = Steps(entries=0.1, dithered=0.1, first=0.1, first_dithered=0.1, pairs=0.0)
QUICK = settings(deadline=None, max_examples=40)


@given(st.integers(1, 10), st.integers(0, 10**6))
@QUICK
def test_what_the_master_decodes_is_what_the_agent_goes_on_from(n, seed):
    """innovation and corrected are inverse up to the step: W within a dead zone, g within half a step."""
    rng = np.random.default_rng(seed)
    copy = Copy(7, spd(n, seed, 0.5), rng.normal(size=n))
    move = encode_move(1, frame_change(*np.linalg.eigh(spd(n, seed + 1))), rng.normal(size=n), 0.5)
    prediction = predict_copy(copy, move)
    W, g = prediction.W + 0.3 * spd(n, seed + 2, 0.3), prediction.g + rng.normal(size=n)
    answer = innovation(1.0, g, W, prediction, move, replace(STEPS, entries=0.1), np.inf)
    new = correct_copy(prediction, move, answer)
    assert np.abs(new.W - W).max() <= 0.06 * 2 * 1.001  # far from the optimum the step is doubled
    assert np.abs(new.g - g).max() <= 0.5 * 0.01 * 0.5 * 1.001
    assert answer.error == pytest.approx(np.sum((new.W - W) ** 2), rel=1e-6, abs=1e-12)
    assert new.digest != copy.digest


@given(st.integers(1, 8), st.integers(0, 10**6))
@QUICK
def test_a_small_budget_coarsens_the_step_until_the_message_fits(n, seed):
    prediction = Copy(1, spd(n, seed), np.zeros(n))
    move = encode_move(1, b"", np.zeros(n), 1.0)
    W, g, fine = spd(n, seed + 1), np.zeros(n), replace(STEPS, entries=1e-4)
    free = innovation(1.0, g, W, prediction, move, fine, np.inf)
    tight = innovation(1.0, g, W, prediction, move, fine, 30)
    assert len(tight.hessian) + len(tight.gradient) <= max(30, len(tight.gradient) + 8)
    assert len(tight.hessian) <= len(free.hessian)
    assert tight.error >= free.error


@given(st.integers(1, 12), st.integers(0, 10**6))
@QUICK
def test_energy_is_the_sum_of_squares_of_the_whole_matrix(n, seed):
    A = symmetric(n, np.random.default_rng(seed))
    assert energy(pack(A), n) == pytest.approx(np.sum(A**2))


@given(st.integers(1, 10), st.integers(0, 10**6))
@QUICK
def test_a_prediction_is_the_same_the_first_the_second_and_the_third_time(n, seed):
    """An agent and a Master in one process share it; another matrix with the same digest is not mistaken."""
    move = encode_move(1, frame_change(*np.linalg.eigh(spd(n, seed))), np.ones(n), 0.5)
    B = change_of(move.change, n).B
    for copy in (Copy(7, spd(n, seed + k), np.ones(n)) for k in (1, 1, 2, 1)):
        prediction = predict_copy(copy, move)
        np.testing.assert_allclose(prediction.W, B @ copy.W @ B.T, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            prediction.g, B @ copy.g + prediction.W @ decode_step(move, n), rtol=1e-9, atol=1e-9
        )


@given(st.floats(1e-12, 1e3))
@QUICK
def test_steps_are_finer_near_the_optimum_and_at_most_doubled_far_away(decrement):
    move = encode_move(1, b"", decrement * np.ones(2), decrement)
    assert STEPS.entries <= STEPS.of(move) <= 2 * STEPS.entries
    assert STEPS.of(move) == (STEPS.entries if decrement <= NEAR else STEPS.of(move))
    assert STEPS.of(replace(move, dither=True)) == STEPS.dithered


def test_a_first_hessian_whose_small_entries_are_all_of_one_sign_is_dithered():
    """Non-negative sparse features: what a coarse step rounds to 0 adds up; at random it does not."""
    n, steps = 60, replace(STEPS, first=0.25, first_dithered=0.18)
    rng, one = np.random.default_rng(0), np.eye(60) + 0.08
    mixed = np.eye(n) + np.triu(rng.uniform(-0.08, 0.08, (n, n)), 1)
    mixed = np.triu(mixed) + np.triu(mixed, 1).T

    def error(H):
        copies = [decode_first(first_answer(0.0, np.ones(n), H, steps, Dither(i, 0)), n) for i in range(30)]
        return np.linalg.norm(sum(copy.W for copy in copies) / 30 - H, 2), len({c.digest for c in copies})

    assert error(mixed)[1] == 1  # noise: every agent rounds to the nearest, alike
    bias, kinds = error(one)
    assert kinds == 30
    assert bias < 0.08 * n / 5  # rounded to the nearest it would be 0.08 n


@given(st.integers(1, 12), st.integers(0, 10**6))
@QUICK
def test_a_secant_correction_is_the_smallest_symmetric_matrix_that_explains_the_gradient(n, seed):
    """PSB: it maps u to r, and any other symmetric matrix that does so has a larger norm."""
    rng = np.random.default_rng(seed)
    r, u = rng.normal(size=n), rng.normal(size=n)
    P = secant_correction(r, u)
    np.testing.assert_allclose(P @ u, r, atol=1e-9)
    assert np.array_equal(P, P.T)
    beside = np.eye(n) - np.outer(u, u) / (u @ u)  # what maps u to 0
    other = P + beside @ symmetric(n, rng) @ beside
    assert np.linalg.norm(P) <= np.linalg.norm(other) + 1e-9
    assert not secant_correction(r, np.zeros(n)).any()


def test_without_a_hessian_both_ends_correct_the_copy_by_the_gradient():
    n = 6
    prediction, move = (
        Copy(7, np.eye(n), np.zeros(n)),
        encode_move(1, b"", np.ones(n), 0.1, False, secant=True),
    )
    g = np.arange(n) / n
    new = correct_copy(prediction, move, innovation(0.0, g, None, prediction, move, STEPS, np.inf))
    u = decode_step(move, n)
    np.testing.assert_allclose(new.W @ u, prediction.W @ u + new.g, atol=1e-9)
