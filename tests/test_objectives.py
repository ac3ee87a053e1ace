"""Local costs against finite differences, textbook formulas and extreme margins; dense and CSR alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array

from fedshed.objectives import LeastSquares, Logistic
from fedshed.objectives.base import gram

MODELS = [LeastSquares, Logistic]


def rows(seed, n=5, N=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n)) * (rng.random((N, n)) < 0.6)
    return X, np.where(rng.random(N) < 0.5, -1.0, 1.0), rng.normal(size=n), rng.normal(size=n)


@pytest.mark.parametrize("model", MODELS)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25, derandomize=True)
def test_gradient_and_hessian_are_the_derivatives_of_the_value(model, seed):
    X, y, theta, _ = rows(seed)
    objective = model(X, y)
    point = objective.at(theta)
    slope = approx_fprime(theta, lambda v: objective.at(v).value, 1e-7)
    np.testing.assert_allclose(point.gradient, slope, atol=1e-5)
    bend = np.array(
        [approx_fprime(theta, lambda v, j=j: objective.at(v).gradient[j], 1e-7) for j in range(5)]
    )
    np.testing.assert_allclose(gram(point.factor), bend, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25, derandomize=True)
def test_costs_along_a_direction_are_the_values_there(model, seed):
    X, y, theta, direction = rows(seed)
    objective, etas = model(X, y), np.array([1.0, 0.5, 0.25, 0.0])
    expected = [objective.at(theta + eta * direction).value for eta in etas]
    np.testing.assert_allclose(objective.along(theta, direction, etas), expected, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_csr_rows_give_what_dense_rows_give_and_stay_sparse(model):
    X, y, theta, direction = rows(1)
    dense, sparse = model(X, y), model(csr_array(X), y)
    one, two = dense.at(theta), sparse.at(theta)
    assert two.value == pytest.approx(one.value, rel=1e-14)
    np.testing.assert_allclose(two.gradient, one.gradient, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(gram(two.factor), gram(one.factor), rtol=1e-12, atol=1e-15)
    assert not isinstance(two.factor, np.ndarray)
    etas = np.array([1.0, 0.3])
    np.testing.assert_allclose(sparse.along(theta, direction, etas), dense.along(theta, direction, etas))


@pytest.mark.parametrize("margin", [1e4, -1e4, 750.0, -750.0, 0.0])
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_logistic_is_safe_for_any_margin(margin, label):
    """l = log(1 + e^-yz): for large |z| it is max(0, -yz), its slope -y or 0, its curvature 0."""
    objective = Logistic(np.array([[1.0]]), np.array([label]))
    with np.errstate(all="raise", under="ignore"):
        point = objective.at(np.array([margin]))
        value, slope, curvature = point.value, point.gradient[0], gram(point.factor)[0, 0]
        along = objective.along(np.array([0.0]), np.array([margin]), np.array([1.0]))[0]
    assert value == along
    if margin:
        assert value == pytest.approx(max(0.0, -label * margin), abs=1e-300)
        assert slope == pytest.approx(-label if label * margin < 0 else 0.0, abs=1e-300)
    else:
        assert (value, slope, curvature) == (pytest.approx(np.log(2)), -label / 2, pytest.approx(0.25))
    assert curvature >= 0


@pytest.mark.parametrize("model", MODELS)
def test_scale_is_the_mean_over_rows(model):
    """f^(i) = (1/N_i) sum l_j: rows twice leave it unchanged (docs/paper.md 7)."""
    X, y, theta, _ = rows(2)
    once, twice = model(X, y).at(theta), model(np.vstack([X, X]), np.tile(y, 2)).at(theta)
    assert once.value == pytest.approx(twice.value)
    np.testing.assert_allclose(gram(once.factor), gram(twice.factor), rtol=1e-12)
