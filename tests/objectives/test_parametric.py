"""Families with a parameter: their losses, derivatives, likelihoods, and how they are named."""

from __future__ import annotations

import pickle
from copy import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedshed
from fedshed import ConfigError, Federation
from fedshed.objectives import family_of
from fedshed.objectives.families import parts_of, with_value

STEP = 1e-5
LOSSES = ["negative-binomial", "tweedie", "logistic@site", "binomial@site", "poisson@site"]
RANGES = {"negative-binomial": (1e-3, 50.0), "tweedie": (1.05, 1.95)}


def made(loss, value, rows=25, seed=0):
    """A model of a few rows with weights and offsets, and a point."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(rows, 2)), np.ones(rows)])
    theta = np.array([0.4, -0.3, 0.5])
    z = X @ theta
    share = 1 / (1 + np.exp(-z))
    y = {
        "negative-binomial": rng.poisson(np.exp(z) * rng.gamma(1.0, 1.0, rows)).astype(float),
        "poisson@site": rng.poisson(np.exp(z)).astype(float),
        "tweedie": rng.poisson(np.exp(z)) * rng.gamma(2.0, 0.5, rows),
        "logistic@site": np.where(rng.random(rows) < share, 1.0, -1.0),
        "binomial@site": rng.binomial(4, share) / 4,
    }[loss]
    weights, offset = rng.integers(1, 4, rows).astype(float), 0.2 * rng.normal(size=rows)
    return family_of(with_value(loss, value)).objective(X, y, weights, offset), theta


def differences(function, point, step=STEP):
    return np.array(
        [(function(point + step * e) - function(point - step * e)) / (2 * step) for e in np.eye(3)]
    )


@pytest.mark.parametrize("loss", LOSSES)
@given(st.floats(0.0, 1.0), st.integers(1, 40), st.integers(0, 10**6))
@settings(deadline=None, max_examples=12)
def test_gradients_and_hessians_are_the_derivatives_of_the_cost(loss, part, rows, seed):
    low, high = RANGES.get(loss, (0.01, 5.0))
    model, theta = made(loss, low * (high / low) ** part, rows, seed)
    point = model.at(theta)
    scale = 1.0 + np.abs(point.gradient).max()
    slopes = differences(lambda t: model.at(t).value, theta)
    np.testing.assert_allclose(point.gradient, slopes, atol=1e-8 * scale)
    bends = differences(lambda t: model.at(t).gradient, theta)
    np.testing.assert_allclose(point.factor.T @ point.factor, bends, atol=1e-7 * (1 + np.abs(bends).max()))
    u, etas = np.array([0.1, 0.2, -0.1]), np.array([0.0, 0.5, 1.0])
    costs = [model.at(theta + eta * u).value for eta in etas]
    np.testing.assert_allclose(model.along(theta, u, etas), costs, rtol=1e-12)
    own = [model.at(theta + eta * u).gradient @ u for eta in etas]
    np.testing.assert_allclose(model.slopes_along(theta, u, etas), own, rtol=1e-9, atol=1e-12)


def likelihood(model, theta):
    fit = model.at(theta).fit
    return fit.constant - fit.deviance / 2


@pytest.mark.parametrize("loss", ["negative-binomial", "logistic@site", "binomial@site", "poisson@site"])
@pytest.mark.parametrize("value", [0.005, 0.015, 0.3, 4.0])
def test_sensitivities_are_the_derivatives_of_the_likelihood_by_the_logarithm(loss, value):
    model, theta = made(loss, value)
    h = 1e-3
    there = [made(loss, value * np.exp(step * h))[0] for step in (-2, -1, 0, 1, 2)]
    costs = np.array([-likelihood(one, theta) / one.weight for one in there])
    found = model.sensitivity(theta)
    assert found.slope == pytest.approx(costs @ [1, -8, 0, 8, -1] / (12 * h), abs=1e-8)
    assert found.curvature == pytest.approx(costs @ [-1, 16, -30, 16, -1] / (12 * h * h), abs=1e-6)
    gradients = np.array([one.at(theta).gradient for one in there])
    np.testing.assert_allclose(found.mixed, [1, -8, 0, 8, -1] @ gradients / (12 * h), atol=1e-9)


@pytest.mark.parametrize("loss", ["negative-binomial", "poisson@site", "logistic@site"])
def test_at_zero_the_cost_is_that_of_the_family_without_a_parameter_and_so_is_the_limit(loss):
    model, theta = made(loss, 0.0)
    plain = family_of({"negative-binomial": "poisson"}.get(loss, loss.removesuffix("@site"))).objective
    same = plain(model.X, model.y, model.weights, model.offset)
    assert model.at(theta).value == same.at(theta).value
    assert model.at(theta).fit == same.at(theta).fit
    small = {"negative-binomial": 1e-6}.get(loss, 1e-3)  # a standard deviation is squared
    near = made(loss, small)[0]
    by = small if loss == "negative-binomial" else small**2
    slope = (likelihood(same, theta) - likelihood(near, theta)) / near.weight / by
    assert model.sensitivity(theta).slope == pytest.approx(slope, rel=1e-3)
    assert model.sensitivity(theta).curvature > 0


@given(st.floats(1e-6, 1e3), st.floats(-5.0, 8.0))
@settings(deadline=None, max_examples=200)
def test_the_negative_binomial_likelihood_is_scipys(alpha, z):
    y = np.array([0.0, 1.0, 2.0, 7.0, 150.0])
    model = family_of(with_value("negative-binomial", alpha)).objective(np.ones((5, 1)), y)
    expected = stats.nbinom.logpmf(y, 1 / alpha, 1 / (1 + alpha * np.exp(z))).sum()
    assert likelihood(model, np.array([z])) == pytest.approx(expected, rel=1e-8, abs=1e-7)


@given(st.floats(1e-6, 1e4), st.floats(-700.0, 700.0), st.sampled_from([0.0, 1.0, 30.0]))
@settings(deadline=None, max_examples=200)
def test_the_negative_binomial_loss_is_convex_and_finite_everywhere(alpha, z, y):
    model = family_of(with_value("negative-binomial", alpha)).objective(np.ones((1, 1)), np.array([y]))
    point = model.at(np.array([z]))
    assert np.isfinite([point.value, *point.gradient, *point.curvatures]).all()
    assert point.curvatures[0] >= 0


def test_a_model_with_a_parameter_is_the_same_after_a_copy_or_a_pickle():
    for loss, value in (("negative-binomial", 0.7), ("logistic@site", 0.4)):
        model, theta = made(loss, value)
        for other in (copy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
            assert type(other) is type(model)
            assert other.at(theta).value == model.at(theta).value


def test_a_family_is_named_with_its_parameter_or_without():
    assert parts_of("tweedie(1.7)") == ("tweedie", 1.7)
    assert parts_of("poisson") == ("poisson", None)
    assert family_of("tweedie").objective.parameter == 1.5
    assert fedshed.Study(family="tweedie(1.6)", target="y").loss == "tweedie(1.6)"
    assert not fedshed.Study(family="negative-binomial(0.5)", target="y").searched
    assert fedshed.Study(family="negative-binomial", target="y").searched


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        ("tweedie(2.5)", "p of the tweedie family must lie between 1.001 and 1.999, not 2.5"),
        ("negative-binomial(-1)", "alpha of the negative-binomial family must lie between"),
        ("negative-binomial(nan)", "alpha of the negative-binomial family must lie between"),
        ("tweedie(low)", "the parameter of a family is a number, not 'low'"),
        ("poisson(2)", "the poisson family has no parameter"),
        ("twedie(1.5)", "did you mean 'tweedie'"),
    ],
)
def test_parameters_that_a_family_cannot_have_are_refused(family, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        fedshed.Study(family=family, target="y")


def test_optimize_is_given_the_parameter_and_fit_searches_for_it():
    federation = Federation.from_arrays(np.ones((4, 1)), np.arange(4.0))
    with pytest.raises(ConfigError, match="the negative-binomial loss needs its alpha"):
        fedshed.optimize(federation, loss="negative-binomial")
    with pytest.raises(ConfigError, match="per site is for linear, logistic, binomial, poisson"):
        fedshed.optimize(federation, loss="gamma@site(0.5)")


@pytest.mark.parametrize("loss", ["tweedie", "tweedie(1.6)", "negative-binomial(0.5)"])
def test_sites_of_one_shape_fit_the_model_that_they_fit_alone(loss):
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(90, 2)), rng.poisson(2.0, size=90).astype(float)
    fits = [
        fedshed.optimize(fedshed.Federation.from_arrays(X, y, sites), loss=loss, l2=0.1, algorithm="newton")
        for sites in (np.arange(90) % 3, np.minimum(np.arange(90), 80) // 40)
    ]
    assert fits[0].converged
    np.testing.assert_allclose(fits[0].theta, fits[1].theta, rtol=0, atol=1e-9)
