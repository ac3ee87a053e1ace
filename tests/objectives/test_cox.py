"""The cost of a Cox model by its definition: ties, late entry, strata, weights, margins far apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from fedshed import ConfigError, DataError, Federation
from fedshed.objectives.build import local_objective
from fedshed.objectives.cox import Breslow, Cox
from fedshed.objectives.stack import stacked
from fedshed.objectives.survival_scores import score_residuals
from fedshed.tables.stored import Table
from fedshed.tables.survival import survival
from naive_cox import partial_likelihood
from naive_cox import score_residuals as naive_residuals

MODELS = [(Cox, True), (Breslow, False)]


@st.composite
def made(draw, scale=1.0):
    """A few rows with many ties; perhaps without any event, or with risk sets that nobody else is in."""
    rows = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    y = survival(
        rng.integers(1, 6, rows).astype(float),
        rng.random(rows) < draw(st.sampled_from([0.0, 0.15, 0.5, 1.0])),
        rng.integers(-1, 4, rows) - 0.5 if draw(st.booleans()) else None,
        rng.integers(0, draw(st.integers(1, 3)), rows),
    )
    y["entry"] = np.minimum(y["entry"], y["time"] - 0.5)
    X, theta = rng.normal(size=(rows, 3)), scale * rng.normal(size=3)
    weights = rng.integers(0, 4, rows).astype(float)
    weights[0] = 1.0
    return X, y, weights, rng.normal(size=rows), theta


@given(made(), st.sampled_from(MODELS))
@settings(max_examples=100, deadline=None)
def test_value_gradient_and_hessian_are_those_of_the_definition(case, kind):
    X, y, weights, offset, theta = case
    model, kept = (
        kind[0](X[weights > 0], y[weights > 0], weights[weights > 0], offset[weights > 0]),
        weights > 0,
    )
    f, g, H, _ = partial_likelihood(X[kept], y[kept], weights[kept], X[kept] @ theta + offset[kept], kind[1])
    point, W = model.at(theta), weights.sum()
    np.testing.assert_allclose(W * point.value, f, atol=1e-11)
    np.testing.assert_allclose(W * point.gradient, g, atol=1e-11)
    np.testing.assert_allclose(W * point.factor.T @ point.factor, H, atol=1e-10)
    direction, etas = np.array([0.3, -1.0, 0.5]), np.array([0.0, 0.5, 2.0])
    ends = [model.at(theta + eta * direction) for eta in etas]
    np.testing.assert_allclose(model.along(theta, direction, etas), [e.value for e in ends], atol=1e-11)
    slopes = [e.gradient @ direction for e in ends]
    np.testing.assert_allclose(model.slopes_along(theta, direction, etas), slopes, atol=1e-11)


@given(made(scale=400.0), st.sampled_from(MODELS))
@settings(max_examples=40, deadline=None)
def test_margins_far_apart_lose_no_digits(case, kind):
    """exp of the margins themselves is 0 or infinite here."""
    X, y, _, _, theta = case
    w = np.ones(len(y))
    f, g, H, _ = partial_likelihood(X, y, w, X @ theta, kind[1])
    model = kind[0](X, y)
    point = model.at(theta)
    np.testing.assert_allclose(len(y) * point.value, f, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(len(y) * point.gradient, g, atol=1e-9)
    np.testing.assert_allclose(len(y) * point.factor.T @ point.factor, H, atol=1e-8)
    np.testing.assert_allclose(model.along(theta, theta, np.zeros(2)), point.value, rtol=1e-12)


def test_rows_that_enter_late_and_outweigh_the_others_cost_no_digits():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    X[20:, 0] += 40.0
    y = survival(np.arange(1.0, 41.0), np.ones(40), np.where(np.arange(40) < 20, -1.0, 19.5))
    theta = np.array([1.0, 0.5])
    f, g, _, _ = partial_likelihood(X, y, np.ones(40), X @ theta)
    point = Cox(X, y).at(theta)
    np.testing.assert_allclose(40 * point.value, f, rtol=1e-12)
    np.testing.assert_allclose(40 * point.gradient, g, atol=1e-9)


@given(made(), st.sampled_from(MODELS))
@settings(max_examples=40, deadline=None)
def test_score_residuals_are_those_of_r_and_sum_to_the_gradient(case, kind):
    X, y, _, _, theta = case
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    model = kind[0](X, y, w)
    U = score_residuals(model, theta)
    np.testing.assert_allclose(U, naive_residuals(X, y, w, X @ theta, kind[1]), atol=1e-10)
    np.testing.assert_allclose(w @ U, -model.weight * model.at(theta).gradient, atol=1e-10)


@given(made(scale=400.0))
@settings(max_examples=20, deadline=None)
def test_score_residuals_of_margins_far_apart_sum_to_the_gradient(case):
    X, y, _, _, theta = case
    model = Cox(X, y)
    U = score_residuals(model, theta)
    np.testing.assert_allclose(U.sum(axis=0), -len(y) * model.at(theta).gradient, atol=1e-9)


def test_a_row_twice_is_a_row_of_weight_two_with_breslow_ties():
    X, y = (
        np.random.default_rng(0).normal(size=(9, 2)),
        survival(np.arange(9) % 4 + 1.0, np.arange(9) % 3 > 0),
    )
    w = np.array([1, 2, 1, 3, 1, 1, 2, 1, 1])
    once, twice = Breslow(X, y, w.astype(float)), Breslow(np.repeat(X, w, 0), np.repeat(y, w))
    theta = np.array([0.5, -0.3])
    np.testing.assert_allclose(once.at(theta).value, twice.at(theta).value, rtol=1e-13)
    np.testing.assert_allclose(once.at(theta).gradient, twice.at(theta).gradient, atol=1e-14)


def test_models_of_equal_shape_are_not_evaluated_together():
    y = survival(np.arange(1.0, 7.0), np.ones(6))
    models = {name: Cox(np.random.default_rng(k).normal(size=(6, 2)), y) for k, name in enumerate("ab")}
    assert all(model.slot is None for model in stacked(models).values())


def test_sparse_tables_and_strata_that_are_sites_give_the_same_cost():
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(60, 3)) * (rng.random((60, 3)) < 0.5), rng.integers(0, 3, 60)
    y = survival(rng.integers(1, 20, 60).astype(float), rng.random(60) < 0.6, None, rng.integers(0, 2, 60))
    pooled = Federation.from_arrays(X, y, site).pooled()
    assert len(np.unique(pooled.y["stratum"])) == 6
    one = local_objective("all", pooled, "cox", None).at(np.ones(3))
    parts = [
        local_objective("a", Table(csr_array(X[site == s]), y[site == s]), "cox", None) for s in range(3)
    ]
    points = [part.at(np.ones(3)) for part in parts]
    shares = [part.weight / 60 for part in parts]
    np.testing.assert_allclose(sum(p * at.value for p, at in zip(shares, points, strict=True)), one.value)
    total = sum(p * at.gradient for p, at in zip(shares, points, strict=True))
    np.testing.assert_allclose(total, one.gradient, atol=1e-14)


# --- monotone likelihood ------------------------------------------------------------------------------


def separated(late=False):
    """No row of the level x1 has its event before the others have theirs: its hazard is 0."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=120), np.arange(120) % 10 == 0, rng.normal(size=120)])
    y = survival(rng.uniform(1, 9, 120), (rng.random(120) < 0.7) & (X[:, 1] == 0))
    if late:
        y["entry"] = y["time"] - rng.uniform(0.5, 5.0, 120)
    return Federation.from_arrays(X, y, np.repeat(["a", "b", "c"], [20, 30, 70]))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("algorithm", ["newton", "auto"])
def test_a_monotone_likelihood_is_reported_with_its_column(late, algorithm):
    run = {"loss": "cox", "algorithm": algorithm}
    result = fedshed.optimize(separated(late), l2=0.0, **run)
    assert not result.converged
    assert result.reason.startswith("separated: ")
    assert "x1" in result.reason
    assert "x0" not in result.reason
    assert fedshed.optimize(separated(late), l2=1e-3, **run).converged


@given(made())
@settings(max_examples=40, deadline=None)
def test_gains_are_negative_for_some_pair_exactly_if_the_cost_rises_somewhere(case):
    """Far along a direction the slope of a monotone likelihood is at most 0, and else above it."""
    X, y, _, _, direction = case
    model = Cox(X, y)
    least = model.gains(direction).min(initial=0.0)
    slope = model.slopes_along(np.zeros(3), direction, np.array([1e6]))[0]
    assert (least < 0) == (slope > 1e-9)


# --- what is refused ----------------------------------------------------------------------------------


def test_responses_that_are_no_times_are_refused():
    X, good = np.ones((4, 1)), survival(np.arange(1.0, 5.0), [1, 0, 1, 1])
    for field, value, sentence in [
        ("time", -1.0, "the time is negative in 1 of 4 rows"),
        ("time", np.nan, "time is missing or infinite in 1 rows"),
        ("entry", 9.0, "the entry is not before the time in 1 of 4 rows"),
    ]:
        bad = good.copy()
        bad[field][1] = value
        with pytest.raises(DataError, match=sentence):
            Federation.from_arrays(X, bad)
    events = np.array([(2, 1.0)], dtype=[("died", int), ("until", float)])
    with pytest.raises(DataError, match="died must be 0 or 1"):
        Federation.from_arrays(X[:1], events)
    with pytest.raises(DataError, match="give it the fields event and time"):
        Federation.from_arrays(X[:1], np.zeros(1, dtype=[("a", int), ("b", int), ("c", int)]))
    with pytest.raises(DataError, match="times and events at one of them only"):
        Federation.from_sites({"a": (X, good), "b": (X, np.ones(4))})


def test_a_cox_model_needs_times_events_and_no_intercept():
    X = np.random.default_rng(0).normal(size=(6, 1))
    y = survival(np.arange(1.0, 7.0), np.zeros(6))
    with pytest.raises(DataError, match="no row of any site has an event"):
        fedshed.optimize(Federation.from_arrays(X, y), loss="cox")
    with pytest.raises(DataError, match="needs a time and an event of each row"):
        fedshed.optimize(Federation.from_arrays(X, np.ones(6)), loss="cox")
    y["event"][2] = True
    with pytest.raises(ConfigError, match="has a baseline hazard in place of an intercept"):
        fedshed.optimize(Federation.from_arrays(X, y), loss="cox", intercept=True)
    with pytest.raises(DataError, match="the poisson loss needs a target, but y holds times"):
        fedshed.optimize(Federation.from_arrays(X, y), loss="poisson")


def test_a_column_that_varies_between_sites_only_is_named():
    rng = np.random.default_rng(0)
    site = np.repeat([0.0, 1.0], 20)
    y = survival(rng.uniform(1, 9, 40), rng.random(40) < 0.6)
    federation = Federation.from_arrays(np.column_stack([rng.normal(size=40), site]), y, site)
    with pytest.raises(fedshed.SingularError, match="x1"):
        fedshed.optimize(federation, loss="cox", l2=0.0)
