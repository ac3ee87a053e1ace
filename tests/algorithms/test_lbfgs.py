"""L-BFGS: its product is the dense update, its start fits the secants, and it needs no more than SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer

import fedshed
from conftest import make_federation
from fedshed import Federation
from fedshed.algorithms.lbfgs import EXPONENTS, initial_diagonal, two_loop, update_secants
from fedshed.solve.optimize import build_problem

L2 = 1e-2
QUICK = settings(deadline=None, max_examples=40)


@given(st.integers(0, 10**6), st.integers(0, 6))
@QUICK
def test_two_loops_are_the_dense_bfgs_update(seed, secants):
    """B <- (I - r s y') B (I - r y s') + r s s', r = 1/(s'y), from B_0 = D^-1."""
    rng = np.random.default_rng(seed)
    n = 5
    D, g = rng.uniform(0.5, 2, n), rng.normal(size=n)
    M = rng.normal(size=(n, n))
    s = rng.normal(size=(secants, n))
    y = s @ (M @ M.T + np.eye(n))
    B = np.diag(1 / D)
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
    assert [row.uplink_vectors for row in trace] == [0, 3, 4, 5, 6, 7]
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
        direction = two_loop(g, s, y, lambda v: v / np.diag(P))
        assert g @ direction > 0


# --- the initial matrix -----------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from(EXPONENTS), st.floats(-3, 3))
@QUICK
def test_a_hessian_that_is_a_power_of_the_diagonal_is_found(seed, count, p, log_scale):
    """y = c M s with M = D^p mean(D)^(1-p): H_0 = c M."""
    rng = np.random.default_rng(seed)
    D = 10 ** rng.uniform(-3, 3, 7)
    M = 10**log_scale * D**p * np.mean(D) ** (1 - p)
    s = rng.normal(size=(count, 7))
    np.testing.assert_allclose(initial_diagonal(s, s * M, D), M, rtol=1e-10)


def test_without_secants_it_is_the_diagonal_itself():
    D, none = np.array([1.0, 4.0, 9.0]), np.zeros((0, 3))
    assert np.array_equal(initial_diagonal(none, none, D), D)


@given(st.integers(0, 10**6), st.integers(1, 12))
@QUICK
def test_no_secant_finds_the_initial_matrix_too_flat_and_one_is_met(seed, count):
    """y'H_0^-1 y >= s'y with equality for one: what is not spanned is as flat as the flattest secant."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(9, 9)) * np.geomspace(1, 1e-2, 9)
    s = rng.normal(size=(count, 9))
    y = s @ (A.T @ A + 1e-4 * np.eye(9))
    H0 = initial_diagonal(s, y, np.diag(A.T @ A) + 1e-4)
    assert np.max(np.sum(s * y, axis=1) / np.sum(y * y / H0, axis=1)) == pytest.approx(1)


@pytest.mark.parametrize("name", ["lbfgs", "lbfgs-coded"])
def test_where_units_are_far_apart_others_change_no_iterate(name):
    """Then the secants choose the diagonal itself, with which theta does not depend on units."""
    federation = make_federation("logistic", n=8)
    found = []
    for powers in ([0, 12, -9, 5, 10, -11, 3, 7], [9, -10, 12, 2, -7, 0, -12, 8]):
        units = 2.0 ** np.array(powers)
        tables = {i: (t.X * units, t.y) for i, t in federation.tables.items()}
        result = fedshed.optimize(
            Federation.from_sites(tables), algorithm=name, l2=L2 * units**2, tol=0.0, max_iterations=12
        )
        found.append(result.theta * units)
    np.testing.assert_allclose(*found, rtol=1e-6)


# --- as good as SciPy's ---------------------------------------------------------------------------------


def cancer():
    """Breast cancer in standardised columns at five sites."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return Federation.from_sites({f"s{k}": (X[k::5], y[k::5]) for k in range(5)})


DEMO = {
    "digits": (lambda: fedshed.datasets.load("digits", agents=20, partition="two-class"), 1e-5),
    "cancer": (cancer, 1e-4),
}


@pytest.mark.parametrize("name", ["lbfgs", "lbfgs-coded"])
@pytest.mark.parametrize("rows", DEMO)
def test_to_1e_11_it_needs_at_most_1_1_times_the_evaluations_of_scipy(rows, name):
    """SciPy's L-BFGS-B on the pooled rows from the same start, with 20 or 50 secants, whichever is better."""
    federation, l2 = DEMO[rows][0](), DEMO[rows][1]
    _, f_star = fedshed.optimum(federation, l2=l2)
    result = fedshed.optimize(federation, algorithm=name, l2=l2, f_star=f_star, max_iterations=1000)
    assert result.converged, result.reason
    ours = result.trace.first_below(1e-11).exchanges
    assert ours <= 1.1 * min(evaluations(federation, l2, f_star, secants) for secants in (20, 50))


def evaluations(federation, l2, f_star, secants):
    """Of f and its gradient by SciPy before f - f_star < 1e-11."""
    objectives, problem = build_problem(federation, "logistic", l2, intercept=False)
    seen = []

    def costs(theta):
        points = {i: one.at(theta) for i, one in objectives.items()}
        f = sum(problem.p[i] * point.value for i, point in points.items()) + problem.penalty(theta)
        g = sum(problem.p[i] * point.gradient for i, point in points.items()) + problem.l2 * theta
        seen.append(f - f_star)
        return f, g

    options = {"maxcor": secants, "ftol": 0.0, "gtol": 0.0, "maxiter": 3000, "maxfun": 3000}
    minimize(costs, np.zeros(problem.n), jac=True, method="L-BFGS-B", options=options)
    return 1 + next(k for k, gap in enumerate(seen) if gap < 1e-11)
