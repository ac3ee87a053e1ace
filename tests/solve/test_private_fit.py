"""The private fit: clipped rows, sensitivities, noise, errors that count it, and predictions of it."""

from __future__ import annotations

import random
from math import sqrt

import numpy as np
import pytest
from benchmarks.private import Setting, pooled, simulated, study
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedshed import Study
from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.linalg.arrays import unpack
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.preparation.study import study_of
from fedshed.privacy.private import Privacy
from fedshed.privacy.zcdp import composed, rho_of
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Agent, Problem
from fedshed.solve.private_fit import (
    AskBound,
    AskCurvature,
    AskSlope,
    PrivateFit,
    clipped,
    definite,
    private_fit,
)
from fedshed.solve.private_plan import PrivatePlan, predict

PRIVACY = Privacy(4.0, 1e-6, 2.0)


def plan_of(rows=400, columns=3, privacy=PRIVACY, sites=4, **more):
    return PrivatePlan(rows=rows, columns=columns, sites=sites, privacy=privacy, **more)


def table(rows=400, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    X = np.c_[rng.normal(size=(rows, columns)), np.ones(rows)]
    return X, np.where(rng.random(rows) < 1 / (1 + np.exp(-X[:, 0])), 1.0, -1.0)


def total(fit, X, y, part):
    return fit.respond(Agent("a", Logistic(X, y)), None, part, None)[1].total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10.0), st.floats(0.0, 5.0))
def test_replacing_one_row_moves_no_total_by_more_than_its_noise_is_charged_for(seed, clip, size):
    """Whatever the row, the clip and the point: |difference / sigma|^2 / 2 is at most the budget."""
    rng, plan = np.random.default_rng(seed), plan_of(6, 2, Privacy(4.0, 1e-6, clip))
    X, y = table(6, 2, seed)
    other, flipped = X.copy(), y.copy()
    other[0, :2], flipped[0] = rng.normal(size=2) * 10.0 ** rng.uniform(-3, 6), -y[0]
    if seed % 3 == 0:  # the worst case: opposite rows of the full norm, on the wrong side
        X[0, :2], other[0, :2] = (1e3, 0.0), (-1e3, 0.0)
    fit, theta = PrivateFit(plan=plan), np.r_[size * rng.normal(size=2), rng.normal()]
    budgets = {
        AskBound(): 0.03 * PRIVACY.rho,
        AskCurvature(theta): 0.07 * PRIVACY.rho,
        AskSlope(theta, 5): plan.gradient_rhos[5],
        AskSlope(np.zeros(3), 0): plan.gradient_rhos[0],
    }
    for part, rho in budgets.items():
        moved = total(fit, X, y, part) - total(fit, other, flipped, part)
        noise = fit.noise_of(part) * sqrt(plan.sites - 1)  # of all sites but one
        assert np.sum((moved / noise) ** 2) / 2 <= rho


def test_sensitivities_cover_the_rounding_of_sums_of_any_length():
    """N numbers of size 1 that are added one after the other can be off by N^2 / 2 units of rounding."""
    for rows in (10**3, 10**5, 10**7):
        plan = plan_of(rows, 1, Privacy(4.0, 1e-9, 1.0), intercept=False)
        largest = plan.gradient_sensitivity(np.array([100.0]))
        assert largest - 2.0 >= 2 * rows**2 * 2.0**-53
    assert plan_of(10**4, 10).rounded < 1.00001  # and cost nothing where sums are short


@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_the_sensitivity_of_the_gradient_is_attained(clip):
    """Two rows close to each other, far on the wrong sides of a steep theta: no smaller noise is enough."""
    plan, theta = plan_of(1, 2, Privacy(4.0, 0.5, clip)), np.array([1e4, 0.0, 0.0])
    row, twin = np.array([[-0.01, 9.0, 1.0]]), np.array([[0.01, 9.0, 1.0]])
    fit, part = PrivateFit(plan=plan), AskSlope(theta, 0)
    moved = total(fit, row, np.array([1.0]), part) - total(fit, twin, np.array([-1.0]), part)
    assert 0.99 < np.linalg.norm(moved) / plan.gradient_sensitivity(theta) <= 1


def test_the_parts_of_a_fit_cost_its_budget_together():
    plan = plan_of()
    fit, spent = PrivateFit(plan=plan), []
    for t in range(plan.steps):
        theta = np.full(4, 0.1 * t)
        sigma = fit.noise_of(AskSlope(theta, t))[0] * sqrt(plan.sites - 1)
        spent.append(rho_of(plan.gradient_sensitivity(theta), sigma))
    for part in (AskBound(), AskCurvature(theta)):
        spent.append(rho_of(plan.matrix_sensitivity, fit.noise_of(part)[0] * sqrt(plan.sites - 1)))
    assert composed(spent) == pytest.approx(plan.privacy.rho, rel=1e-9)


@given(st.floats(1e-3, 1e3), st.integers(0, 100))
def test_clipped_rows_have_the_norm_at_most_and_keep_their_direction(clip, seed):
    X = np.random.default_rng(seed).normal(size=(20, 4)) * 10.0 ** (seed % 7 - 3)
    X[0, :3] = 0.0
    short = clipped(X, clip, 3)
    assert np.linalg.norm(short[:, :3], axis=1).max() <= clip
    assert np.array_equal(short[:, 3], X[:, 3])
    kept = np.linalg.norm(X[:, :3], axis=1) < clip * (1 - 1e-9)
    assert np.allclose(short[kept], X[kept], rtol=1e-9)
    assert np.allclose(clipped(sparse.csr_array(X), clip, 3), short)


def test_without_noise_it_is_the_pooled_fit_of_clipped_rows_whatever_the_sites():
    """An epsilon without meaning leaves only the iteration, which must converge."""
    X, y = table(2000)
    plan = plan_of(2000, privacy=Privacy(1e9, 1e-6, 3.0))
    best, errors = pooled(clipped(X, 3.0, 3), y, np.zeros(4))
    for cut in (1, 700):
        parts = {"a": (X[:cut], y[:cut]), "b": (X[cut:], y[cut:])}
        agents = {name: Agent(name, Logistic(*of)) for name, of in parts.items()}
        found = private_fit(plan, simulated(PrivateFit(plan=plan), agents, random.Random(1).getrandbits))
        assert np.abs((found.theta - best) / errors).max() < 0.01
        assert np.allclose(found.errors, errors, rtol=0.01)


def test_the_deviation_is_as_claimed_and_as_predicted_and_intervals_cover():
    setting = Setting("", 4000, 4, 4.0, 2.8, 40)
    runs = [study(setting, seed, sites=3) for seed in range(setting.studies)]
    deviation = sqrt(np.mean([run["deviation"] ** 2 for run in runs]))
    claimed = sqrt(np.mean([run["claimed"] ** 2 for run in runs]))
    predicted = predict(4000, 4, 4.0, 1e-6, 2.8, sites=3).deviation
    assert deviation == pytest.approx(claimed, rel=0.2)
    assert 1 / 1.3 < deviation / predicted < 1.3
    assert 0.90 <= np.mean([run["covered"] for run in runs]) <= 0.99


def test_the_same_bits_give_the_same_fit_and_no_fit_is_without_noise():
    setting = Setting("", 1000, 3, 4.0, 2.4, 1)
    first, again, other = (study(setting, seed, sites=3)["deviation"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.abs(first).min() > 0
    assert not np.array_equal(first, other)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.01, 1e4))
def test_a_noised_matrix_becomes_definite_whatever_the_noise(seed, n, sigma):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, n)) * sigma
    made = definite(np.eye(n) + (Z + Z.T) / 2, sigma, np.zeros(n))
    for matrix in (made.inverse, made.unbiased):
        assert np.linalg.eigvalsh(matrix)[0] > 0


def test_a_matrix_with_little_noise_is_hardly_changed():
    H = unpack(np.array([5.0, 1.0, -2.0, 4.0, 0.5, 6.0]), 3)
    assert np.allclose(definite(H, 1e-9, np.zeros(3)).inverse, np.linalg.inv(H))
    assert np.allclose(definite(H, 1e-9, np.ones(3)).inverse, np.linalg.inv(H + np.eye(3)))


def test_the_messages_cross_the_wire():
    fit, theta = PrivateFit(plan=plan_of()), np.arange(4.0)
    codec = codec_of(fit, 4)
    for part in (AskBound(), AskSlope(theta, 3), AskCurvature(theta)):
        request = codec.encode_request(codec.encode_common(b"run!", 1, [part]), None)
        (back,) = codec.decode_request(request).parts
        assert type(back) is type(part)
        assert np.array_equal(fit.noise_of(back), fit.noise_of(part))


def test_what_a_private_fit_cannot_do_is_said():
    fit, (X, y) = PrivateFit(plan=plan_of()), table()
    with pytest.raises(ConfigError, match="site 'a': a private fit is of a logistic model"):
        fit.respond(Agent("a", LeastSquares(X, y)), None, AskBound(), None)
    with pytest.raises(ConfigError, match="no weights and no offset"):
        fit.respond(Agent("a", Logistic(X, y, weights=np.ones(400))), None, AskBound(), None)
    with pytest.raises(ProtocolError, match="14 gradients was asked for one more"):
        total(fit, X, y, AskSlope(np.zeros(4), 14))
    with pytest.raises(ConfigError, match="at least 3 sites"):
        plan_of(sites=2)
    with pytest.raises(ConfigError, match="for 4 coefficients, and the design has 9"):
        next(fit.flow(Problem(np.zeros(9), {"all": 1.0}, "logistic")))
    with pytest.raises(ConfigError, match="not poisson"):
        next(fit.flow(Problem(np.zeros(4), {"all": 1.0}, "poisson")))


# predictions


def test_predictions_fall_with_rows_and_epsilon_and_grow_with_columns():
    base = predict(10_000, 10, 4.0, 1e-6, 4.5)
    assert predict(20_000, 10, 4.0, 1e-6, 4.5).deviation < base.deviation
    assert predict(10_000, 10, 8.0, 1e-6, 4.5).deviation < base.deviation
    assert predict(10_000, 20, 4.0, 1e-6, 6.4).deviation > base.deviation
    assert base.nonsense == ""
    assert base.deviation == pytest.approx(predict(10_000, 10, 4.0, 1e-6, 9.0).deviation, rel=0.05)


def test_what_is_said_to_be_needed_is_enough():
    found = predict(1000, 10, 1.0, 1e-6, 4.5)
    assert "noise" in found.nonsense
    assert 0.9 < predict(found.needed_rows, 10, 1.0, 1e-6, 4.5).deviation <= 1
    assert predict(1000, 10, found.needed_epsilon, 1e-6, 4.5).deviation == pytest.approx(1, rel=1e-6)


# the study


def test_a_private_study_is_read_as_it_is_written():
    promise = {"epsilon": 4, "delta": 1e-6, "clip": 3}
    study = study_of({"family": "logistic", "target": "y", "protected": True, "privacy": promise})
    assert study.privacy == Privacy(4.0, 1e-6, 3.0)
    assert Study(family="logistic", target="y").privacy is None


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"epsilon": 0, "delta": 1e-6, "clip": 3}, "epsilon of privacy must be a number above 0"),
        ({"epsilon": 1, "delta": 0, "clip": 3}, "delta of privacy must be between 0 and 1"),
        ({"epsilon": 1, "delta": 1e-6, "clip": -1}, "clip of privacy"),
        ({"epsilon": 1, "delta": 1e-6}, "clip"),
    ],
)
def test_a_promise_that_cannot_be_is_refused_with_the_field(privacy, said):
    with pytest.raises(ConfigError, match=said):
        study_of({"family": "logistic", "target": "y", "privacy": privacy})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"family": "poisson"}, "not for poisson"),
        ({"missing": "drop"}, "missing = 'refuse'"),
        ({"weight": "w"}, "cannot have weight"),
        ({"offset": "o"}, "cannot have offset"),
        ({"cluster": "c"}, "cannot have cluster"),
        ({"standardize": True}, "cannot standardise"),
    ],
)
def test_a_study_that_cannot_be_private_is_refused_with_the_reason(fields, said):
    with pytest.raises(ConfigError, match=said):
        Study(**{"family": "logistic", "target": "y", "protected": True, "privacy": PRIVACY, **fields})


def test_a_weak_promise_is_noted_and_a_delta_above_one_row_is_refused(caplog):
    Study(family="logistic", target="y", protected=True, privacy=Privacy(20.0, 1e-6, 3.0))
    assert "promises little" in caplog.text
    with pytest.raises(ConfigError, match="below 1 / rows"):
        plan_of(rows=2_000_000)
