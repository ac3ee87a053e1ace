"""PEN's frame: coded changes keep the Hessian near the identity; both ends take the same step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshed.algorithms.pen import frame
from made_matrices import spd

QUICK = settings(deadline=None, max_examples=40)


@given(st.integers(1, 12), st.integers(0, 10**6))
@QUICK
def test_a_change_of_frame_brings_the_eigenvalues_within_bounds(n, seed):
    A = spd(n, seed)
    change = frame.frame_change(*np.linalg.eigh(A))
    B, low, high = frame.change_of(change, n).B, frame.LOW, frame.HIGH
    if not change:  # it stays where it is near
        low, high = frame.STAY_LOW, frame.STAY_HIGH
    values = np.linalg.eigvalsh(B @ A @ B.T)
    assert values[0] >= low - 1e-9
    assert values[-1] <= high + 1e-9
    assert frame.frame_change(np.ones(n), np.eye(n)) == b""


@given(st.integers(1, 30), st.integers(0, 10**6))
@QUICK
def test_a_congruence_is_the_product_and_exactly_symmetric(n, seed):
    rng = np.random.default_rng(seed)
    B, W = rng.normal(size=(n, n)), spd(n, seed)
    product = frame.congruence(B, W)
    np.testing.assert_allclose(product, B @ W @ B.T, rtol=0, atol=1e-10 * n)
    assert np.array_equal(product, product.T)


def test_a_change_of_scale_alone_costs_no_products_and_few_bytes():
    A = 40 * spd(20, 0, 0.3)
    change = frame.frame_change(*np.linalg.eigh(A))
    B = frame.change_of(change, 20)
    assert B.d is not None
    assert len(change) < 20
    np.testing.assert_allclose(B.congruence(A), B.B @ A @ B.B.T)


def test_one_coarser_step_would_leave_the_bounds():
    """The step that is found fits, and its neighbour does not, from whichever side the search comes."""
    for threshold in (0, 1, frame.USUAL - 1, frame.USUAL, frame.USUAL + 1, len(frame.STEPS) - 1):
        assert frame._coarsest(lambda step, last=frame.STEPS[threshold]: step <= last) == threshold
    assert frame._coarsest(lambda step: False) == len(frame.STEPS) - 1


@given(st.integers(1, 12), st.integers(0, 10**6))
@QUICK
def test_both_ends_are_at_the_same_point_after_a_move(n, seed):
    """theta + G'u, with u within half a step of what the Master wanted."""
    rng = np.random.default_rng(seed)
    u, start = rng.normal(size=n), frame.Frame(rng.normal(size=(n, n)), rng.normal(size=n))
    move = frame.encode_move(1, b"", u, 0.7)
    assert np.abs(frame.decode_step(move, n) - u).max() <= 0.5 * frame.GRADIENT_STEP * 0.7 * (1 + 1e-6)
    np.testing.assert_array_equal(
        frame.move_frame(start, move).theta, start.theta + frame.decode_step(move, n) @ start.G
    )
