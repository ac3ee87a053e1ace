"""L-BFGS: its product is the dense update, its memory is bounded, and it sends one diagonal."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation
from fedshed.algorithms.lbfgs import two_loop, update_secants

L2 = 1e-2
QUICK = settings(deadline=None, max_examples=40)


@given(st.integers(0, 10**6), st.integers(0, 6))
@QUICK
def test_two_loops_are_the_dense_bfgs_update(seed, secants):
    """B <- (I - r s y') B (I - r y s') + r s s', r = 1/(s'y), from B_0 = gamma D^-1."""
    rng = np.random.default_rng(seed)
    n = 5
    D, g = rng.uniform(0.5, 2, n), rng.normal(size=n)
    M = rng.normal(size=(n, n))
    s = rng.normal(size=(secants, n))
    y = s @ (M @ M.T + np.eye(n))
    gamma = (s[-1] @ y[-1]) / (y[-1] @ (y[-1] / D)) if secants else 1.0
    B = gamma * np.diag(1 / D)
    for ds, dy in zip(s, y, strict=True):
        r = 1 / (ds @ dy)
        left = np.eye(n) - r * np.outer(ds, dy)
        B = left @ B @ left.T + r * np.outer(ds, ds)
    np.testing.assert_allclose(two_loop(g, s, y, lambda v: v / D), B @ g, rtol=1e-8, atol=1e-10)


def test_a_memory_of_nothing_remembers_nothing_and_a_full_one_forgets_the_oldest():
    s = y = None
    for t in range(5):
        s0, y0 = update_secants(
            None, None, (np.full(3, t), np.full(3, t)), np.full(3, t + 1.0), np.full(3, t + 2.0), 0
        )
        assert len(s0) == len(y0) == 0
        s, y = update_secants(
            s, y, (np.full(3, t), np.full(3, t)), np.full(3, t + 1.0), np.full(3, t + 2.0), 2
        )
        assert len(s) == len(y) == min(t + 1, 2)


def test_lbfgs_sends_the_diagonal_once_and_then_gradients():
    trace = fedshed.optimize(make_federation("logistic"), algorithm="lbfgs", l2=L2, max_iterations=5).trace
    assert [row.uplink_vectors for row in trace] == [0, 2, 3, 4, 5, 7]
    assert trace[-1].hessians == 1


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(-4, 0), st.floats(-6, 6))
@QUICK
def test_secants_of_noisy_gradients_leave_a_direction_of_descent(seed, count, log_noise, log_scale):
    """y = H s + noise: what `update_secants` keeps has s'y > 0, so B is positive definite."""
    rng = np.random.default_rng(seed)
    n = 6
    A = rng.normal(size=(n, n)) * np.geomspace(1, 1e-3, n)
    H, P = A.T @ A, np.diag(10 ** rng.uniform(-2, 2, n))
    s = y = last = None
    theta, g = np.zeros(n), rng.normal(size=n)
    for _ in range(count):
        s, y = update_secants(s, y, last, theta, g, memory=5)
        last = (theta, g)
        theta = theta + 10**log_scale * rng.normal(size=n)
        g = H @ theta * (1 + 10**log_noise * rng.normal(size=n))
    s, y = update_secants(s, y, last, theta, g, memory=5)
    assert len(s) <= 5
    assert (np.sum(s * y, axis=1) > 0).all()
    if (np.sum(s * y, axis=1) > 1e-4 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)).all():
        direction = two_loop(g, s, y, lambda v: v / np.diag(P), scaled=False)
        assert g @ direction > 0
