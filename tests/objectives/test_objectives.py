"""Local costs against finite differences, textbook formulas and extreme margins; dense and CSR alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array

from fedshed.linalg.rows import gram
from fedshed.objectives import Gamma, LeastSquares, Logistic, Multinomial, Poisson


def three_classes(X, y, *rest):
    """A multinomial model of three classes, two of them the labels of a binary one."""
    return Multinomial(X, np.where(X[:, [0]].sum(axis=1) > 0.5, 2, y > 0), *rest, classes=3)


def positive(model):
    """A model of positive responses, from labels -1 and +1."""
    return lambda X, y, *rest: model(X, y + 1.5, *rest)


MODELS = [LeastSquares, Logistic, positive(Poisson), positive(Gamma), three_classes]


def rows(seed, n=5, N=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n)) * (rng.random((N, n)) < 0.6)
    return X, np.where(rng.random(N) < 0.5, -1.0, 1.0), rng.normal(size=2 * n), rng.normal(size=2 * n)


@pytest.mark.parametrize("model", MODELS)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_gradient_and_hessian_are_the_derivatives_of_the_value(model, seed):
    X, y, theta, _ = rows(seed)
    objective = model(X, y)
    theta = theta[: objective.dim]
    point = objective.at(theta)
    slope = approx_fprime(theta, lambda v: objective.at(v).value, 1e-7)
    np.testing.assert_allclose(point.gradient, slope, rtol=1e-5, atol=1e-5)
    bend = np.array(
        [approx_fprime(theta, lambda v, j=j: objective.at(v).gradient[j], 1e-7) for j in range(len(theta))]
    )
    np.testing.assert_allclose(gram(point.factor), bend, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_costs_along_a_direction_are_the_values_there(model, seed):
    X, y, theta, direction = rows(seed)
    objective, etas = model(X, y), np.array([1.0, 0.5, 0.25, 0.0])
    theta, direction = theta[: objective.dim], direction[: objective.dim]
    expected = [objective.at(theta + eta * direction).value for eta in etas]
    np.testing.assert_allclose(objective.along(theta, direction, etas), expected, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_csr_rows_give_what_dense_rows_give_and_stay_sparse(model):
    X, y, theta, direction = rows(1)
    dense, sparse = model(X, y), model(csr_array(X), y)
    theta, direction = theta[: dense.dim], direction[: dense.dim]
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
    theta = theta[: model(X, y).dim]
    once, twice = model(X, y).at(theta), model(np.vstack([X, X]), np.tile(y, 2)).at(theta)
    assert once.value == pytest.approx(twice.value)
    np.testing.assert_allclose(gram(once.factor), gram(twice.factor), rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_weight_of_two_is_the_row_twice_and_of_zero_no_row(model):
    X, y, theta, direction = rows(3)
    times = np.random.default_rng(0).integers(0, 4, len(y))
    weighted, repeated = model(X, y, times.astype(float)), model(np.repeat(X, times, 0), np.repeat(y, times))
    theta, direction = theta[: weighted.dim], direction[: weighted.dim]
    one, two = weighted.at(theta), repeated.at(theta)
    assert weighted.weight == repeated.weight
    assert one.value == pytest.approx(two.value, rel=1e-13)
    np.testing.assert_allclose(one.gradient, two.gradient, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gram(one.factor), gram(two.factor), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gram(one.information), gram(two.information), rtol=1e-12, atol=1e-14)
    slopes = [one.slopes_along(theta, direction, np.array([0.0, 0.5])) for one in (weighted, repeated)]
    np.testing.assert_allclose(*slopes, rtol=1e-11)


@pytest.mark.parametrize("model", MODELS[:-1])
def test_an_offset_is_a_column_whose_coefficient_is_one(model):
    X, y, theta, _ = rows(4)
    theta, offset = theta[:5], X[:, 0] - 0.3
    one = model(X, y, None, offset).at(theta)
    two = model(np.column_stack([X, offset]), y).at(np.append(theta, 1.0))
    assert one.value == pytest.approx(two.value, rel=1e-13)
    np.testing.assert_allclose(one.gradient, two.gradient[:5], rtol=1e-12, atol=1e-14)


def test_the_information_of_a_gamma_model_is_the_mean_of_its_curvature():
    """E[y exp(-z)] = 1 at the true z; observed and expected differ, as the logarithm is not canonical."""
    rng = np.random.default_rng(0)
    X, theta = rng.normal(size=(200_000, 2)), np.array([0.3, -0.5])
    point = Gamma(X, rng.gamma(3.0, np.exp(X @ theta) / 3.0)).at(theta)
    np.testing.assert_allclose(gram(point.factor), gram(point.information), atol=0.01)
    np.testing.assert_allclose(gram(point.information), X.T @ X / len(X), rtol=1e-12)


def test_two_classes_are_the_logistic_model_in_another_scale():
    """z_1 - z_0 = sqrt(2) A x: the multinomial cost of two classes is the logistic one."""
    X, y, theta, _ = rows(5)
    both = Multinomial(X, y > 0, classes=2).at(theta[:5] / np.sqrt(2))
    binary = Logistic(X, y)
    z = [abs(both.value - binary.at(sign * theta[:5]).value) for sign in (1.0, -1.0)]
    assert min(z) < 1e-14


@pytest.mark.parametrize(("model", "times"), [(Poisson, 1.0), (Gamma, 0.0)])
def test_a_small_deviance_keeps_its_digits(model, times):
    """Near the mean it is y^times t^2 / 2 (1 +- t / 3 + ...), however large y and its loss are."""
    t, y = np.array([1e-5, -1e-5, 1e-4]), np.array([3e6, 1e8, 2e7])
    z = np.log(y) + t
    series = y**times * t**2 / 2 * (1 + (1 if model is Poisson else -1) * t / 3 + t**2 / 12)
    np.testing.assert_allclose(model(np.ones((3, 1)), y).excess(z), series, rtol=1e-8)


@pytest.mark.parametrize("model", [Poisson, Gamma])
def test_half_the_deviance_is_the_loss_above_its_least(model):
    y, z = np.array([0.5, 1.0, 7.0]), np.array([-3.0, 0.4, 30.0])
    rows_ = model(np.ones((3, 1)), y)
    np.testing.assert_allclose(rows_.excess(z), rows_.losses(z) - rows_.losses(np.log(y)), rtol=1e-12)
