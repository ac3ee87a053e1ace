"""Costs with an absolute penalty: the proximal step, its optimum, and who refuses it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import make_federation

import fedshed
from fedshed import Federation
from fedshed._utils.errors import ConfigError
from fedshed.algorithms.composite import least_subgradient, minimiser

COMPOSITE = [name for name, entry in fedshed.ALGORITHMS.items() if entry.algorithm.composite]
OTHERS = [name for name, entry in fedshed.ALGORITHMS.items() if not entry.algorithm.composite]
SLOW = ("mont-dec",)  # a new Hessian by one eigenpair in every round crawls, as it does without the penalty


@given(
    n=st.integers(1, 8), rows=st.integers(1, 12), seed=st.integers(0, 10_000),
    scale=st.floats(0.0, 2.0), free=st.booleans(),
)  # fmt: skip
def test_the_step_fulfils_the_conditions_of_an_optimum(n, rows, seed, scale, free):
    """|c_j + (Hw)_j| <= l1_j where w_j = 0, and = -l1_j sign(w_j) elsewhere, even where H is singular."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, n)) * np.geomspace(1, 100, n)
    H, theta = X.T @ X / rows, rng.normal(size=n) * rng.integers(0, 2, size=n)
    g, l1 = X.T @ rng.normal(size=rows) / rows, np.full(n, scale + 1e-3)
    l1[0] = 0.0 if free else l1[0]  # its curvature is never 0: it has rows
    w = minimiser(H, g, theta, l1)
    off = least_subgradient(w, g + H @ (w - theta), l1)
    assert np.linalg.norm(off) <= 1e-9 * (np.linalg.norm(g) + np.linalg.norm(np.abs(H) @ np.abs(w)) + 1e-3)


def test_one_column_is_moved_towards_zero_by_the_penalty():
    H, g = np.array([[4.0]]), np.array([-2.0])
    assert minimiser(H, g, np.zeros(1), np.array([1.0])).item() == 0.25  # (2 - 1) / 4
    assert minimiser(H, g, np.ones(1), np.array([9.0])).item() == 0.0


@pytest.mark.parametrize("name", [name for name in COMPOSITE if name not in SLOW])
def test_every_composite_algorithm_reaches_the_same_zeros_on_unequal_sites(name):
    losses = fedshed.ALGORITHMS[name].algorithm.losses or ("logistic",)
    federation = make_federation(losses[0])
    settings = {"loss": losses[0], "l1": 0.05, "l2": 1e-3, "intercept": True, "tol": 1e-9}
    exact = fedshed.optimize(federation, algorithm="newton", **settings)
    result = fedshed.optimize(federation, algorithm=name, **settings)
    assert result.converged
    assert exact.converged
    assert 0 < (exact.theta == 0).sum() < 6
    assert np.array_equal(result.theta == 0, exact.theta == 0)
    assert result.theta == pytest.approx(exact.theta, abs=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_an_algorithm_without_such_a_step_is_refused_before_anything_is_sent(name):
    loss = (fedshed.ALGORITHMS[name].algorithm.losses or ("logistic",))[0]
    with pytest.raises(
        ConfigError, match=r"has no step for an absolute penalty \(l1\); use .*newton, or set l1 = 0"
    ):
        fedshed.optimize(make_federation(loss), loss=loss, l1=0.1, algorithm=name)


def test_the_penalty_costs_no_byte():
    """A request and its answer are as long with the penalty as without it."""
    federation = make_federation("logistic")
    cost = [
        fedshed.optimize(federation, l1=l1, l2=1e-2, algorithm="newton", max_iterations=3).trace[-1]
        for l1 in (0.0, 0.05)
    ]
    assert cost[0].uplink_bytes == cost[1].uplink_bytes
    assert cost[0].exchanges == cost[1].exchanges


def test_no_penalty_is_the_same_as_zero_bit_for_bit():
    federation = make_federation("logistic")
    plain = fedshed.optimize(federation, l2=1e-2)
    zero = fedshed.optimize(federation, l2=1e-2, l1=np.zeros(6))
    assert plain.theta.tobytes() == zero.theta.tobytes()


def test_the_bound_of_the_certificate_holds():
    """f - f* <= |v|^2 / (2 min l2) for the least subgradient v, as for any (strong convexity)."""
    federation = make_federation("logistic")
    best = fedshed.optimize(federation, l1=0.02, l2=0.05, tol=1e-13).trace[-1].f
    for most in (1, 2, 3):
        cut = fedshed.optimize(federation, l1=0.02, l2=0.05, max_iterations=most, algorithm="fib-shed")
        assert 0 <= cut.trace[-1].f - best <= cut.certificate.bound
        assert cut.certificate.estimate is None


def test_a_resumed_run_keeps_its_penalty(tmp_path):
    federation, settings = make_federation("logistic"), {"l1": 0.05, "l2": 1e-3, "algorithm": "fib-shed"}
    whole = fedshed.optimize(federation, **settings)
    fedshed.optimize(federation, **settings, max_iterations=4, checkpoint=tmp_path / "run")
    resumed = fedshed.resume(tmp_path / "run", federation, max_iterations=500)
    assert resumed.theta.tobytes() == whole.theta.tobytes()


def test_more_columns_than_rows_have_an_optimum():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 30))
    federation = Federation.from_arrays(X, X[:, 0] + 0.1 * rng.normal(size=12), np.repeat(["a", "b"], [3, 9]))
    result = fedshed.optimize(federation, loss="least-squares", l1=0.1, l2=0.0, intercept=True, tol=1e-9)
    assert result.converged
    assert 1 <= (result.theta[:-1] != 0).sum() <= 12


def test_several_classes_are_refused_for_their_zeros_would_depend_on_the_contrasts():
    rng = np.random.default_rng(0)
    federation = Federation.from_arrays(rng.normal(size=(30, 2)), np.arange(30) % 3)
    with pytest.raises(ConfigError, match="one linear predictor"):
        fedshed.optimize(federation, loss="multinomial", l1=0.1)
