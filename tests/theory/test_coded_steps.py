"""docs/theory.md: rounded directions and gradients keep descent, an exact limit, and the rates it states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation
from fedshed.algorithms import TailMean
from fedshed.algorithms.linked import Linked
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives

L2, ALPHA, BETA = 1e-2, 0.1, 0.5
QUICK = settings(deadline=None, max_examples=60)


def pooled(federation):
    """Cost, gradient and Hessian of all rows at theta, ridge included."""
    objectives = local_objectives(federation, "logistic")
    total = sum(one.weight for one in objectives.values())

    def at(theta):
        points = [(one.weight / total, one.at(theta)) for _, one in sorted(objectives.items())]
        f = sum(p * point.value for p, point in points) + L2 / 2 * theta @ theta
        g = sum(p * point.gradient for p, point in points) + L2 * theta
        H = sum(p * gram(point.factor) for p, point in points) + L2 * np.eye(len(theta))
        return f, g, H

    return at


@pytest.fixture(params=["qn-shed", "lbfgs-coded"])
def steps(request, monkeypatch):
    """Every step of a run: theta, the Master's gradient, the direction before and after rounding, B^-1."""
    seen, rounded = [], Linked.round_direction

    def recording(self, problem, state, g, d, product):
        after, sent = rounded(self, problem, state, g, d, product)
        inverse = np.array([product(unit) for unit in np.eye(len(g))])
        seen.append((state.theta, g, d, sent, (inverse + inverse.T) / 2))
        return after, sent

    monkeypatch.setattr(Linked, "round_direction", recording)
    federation = make_federation("logistic", n=9)
    result = fedshed.optimize(federation, algorithm=request.param, l2=L2, tol=1e-9)
    assert result.converged
    return federation, pooled(federation), seen, [row.eta for row in result.trace if row.eta]


def test_the_direction_is_rounded_as_far_as_descent_allows(steps):
    """A4 and the first part of Theorem 1."""
    _, _, seen, _ = steps
    tau = 0.1
    for _, g, d, sent, inverse in seen:
        s, q = -float(g @ d), sent - d
        np.testing.assert_allclose(inverse @ d, -g, rtol=1e-6, atol=1e-9 * np.abs(g).max())
        assert q @ inverse @ q <= tau**2 * s * (1 + 1e-6)
        assert -(1 + tau) * s * (1 + 1e-6) <= g @ sent <= -(1 - tau) * s * (1 - 1e-6)
    assert any(np.abs(sent - d).max() > 1e-3 * np.abs(d).max() for _, _, d, sent, _ in seen)


def test_every_accepted_step_is_as_long_and_as_good_as_theorem_1_says(steps):
    federation, at, seen, etas = steps
    tau, (_, f_star) = 0.1, fedshed.optimum(federation, l2=L2)
    smooth = np.linalg.eigvalsh(at(np.zeros(9))[2])[-1]  # logistic curvature is largest at 0
    errors = []
    for (theta, g, d, sent, inverse), (after, *_), eta in zip(seen, seen[1:], etas, strict=False):
        np.testing.assert_allclose(after, theta + eta * sent, atol=1e-12)
        f, exact, _ = at(theta)
        s, error, B = -float(g @ d), exact - g, np.linalg.inv(inverse)
        kappa = np.sqrt(max(error @ B @ error, 0.0) / s)
        m, M = np.linalg.eigvalsh(B)[[0, -1]]
        c = (1 - ALPHA) * (1 - tau) - kappa * (1 + tau)
        errors.append(kappa)
        if c > 0:
            assert eta >= min(1.0, 2 * BETA * c / (smooth * M * (1 + tau) ** 2)) * (1 - 1e-9)
        factor = 1 - 2 * ALPHA * eta * (1 - tau) * m * L2 / (1 + kappa) ** 2
        assert at(after)[0] - f_star <= factor * (f - f_star) + 1e-12
    assert max(errors) > 1e-3, "nothing was rounded"
    assert np.median(errors) < 0.4, "A3 does not hold on this run"


@QUICK
@given(st.integers(0, 10**6), st.floats(0, 0.6), st.floats(0, 0.3), st.floats(0, 0.3))
def test_the_contraction_of_theorem_3_for_a_quadratic(seed, delta, kappa, tau):
    rng, n = np.random.default_rng(seed), 5
    V = np.linalg.qr(rng.normal(size=(n, n)))[0]
    root = (V * np.geomspace(1, 30, n)) @ V.T  # H^(1/2)
    noise = rng.normal(size=(n, n)) + rng.normal(size=(n, n)).T
    inverse = root @ (np.eye(n) + delta * (noise + noise.T) / np.linalg.norm(noise + noise.T, 2)) @ root
    v, B = rng.normal(size=n), np.linalg.inv(inverse)
    g = root @ root @ v
    e = root @ (direction := rng.normal(size=n)) / np.linalg.norm(direction)
    e = e * kappa * np.linalg.norm(np.linalg.solve(root, g))
    s, q = (g - e) @ B @ (g - e), rng.normal(size=n)
    q = q * tau * np.sqrt(s / (q @ inverse @ q))
    after = v - B @ (g - e) + q
    before = np.linalg.norm(root @ v)
    bound = (delta + kappa + tau * (1 + kappa)) / (1 - delta) * before
    rounding = 1e-14 * np.linalg.cond(inverse) * before
    assert np.linalg.norm(root @ after) <= bound * (1 + 1e-9) + rounding


@QUICK
@given(st.floats(0, 1.5), st.floats(0, 1.5))
def test_the_recursion_of_two_terms_falls_exactly_where_their_sum_is_below_1(a, b):
    root = (a + np.sqrt(a * a + 4 * b)) / 2
    assert (root < 1) == (a + b < 1) or abs(a + b - 1) < 1e-12


@QUICK
@given(st.integers(0, 10**6), st.integers(0, 5), st.floats(0, 1))
def test_the_mean_of_the_other_eigenvalues_is_the_best_rho(seed, q, share):
    """Theorem 5: the squared error of H_hat is least there, and grows by (n - q)(rho - mean)^2."""
    rng, n = np.random.default_rng(seed), 7
    V = np.linalg.qr(rng.normal(size=(n, n)))[0]
    values = np.sort(rng.exponential(size=n))[::-1]
    H, rest = (V * values) @ V.T, values[q:]

    def error(rho):
        return np.sum((H - (V[:, :q] * (values[:q] - rho)) @ V[:, :q].T - rho * np.eye(n)) ** 2)

    best, other = (TailMean(part)(values, q) for part in (0.0, share))
    assert error(other) - error(best) == pytest.approx((n - q) * (other - rest.mean()) ** 2, abs=1e-12)
    assert best == pytest.approx(rest.mean())
    assert TailMean(1.0)(values, q) == pytest.approx(values[q])  # the paper's
