"""Firth's penalised likelihood: the pooled estimates of firthmodels, also where classes are separated."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from firthmodels import FirthLogisticRegression
from sklearn.datasets import load_breast_cancer

import fedshed
from fedshed import ConfigError, Federation, Study
from fedshed.algorithms.firth import Firth
from fedshed.exchange import Stateless

SITES = np.repeat(["a", "b", "c", "d"], [2, 9, 31, 58])
CUTS = (0, 2, 11, 42, 100)


def cancer(separated=False):
    """100 rows of the breast cancer data; separated: a column that tells the classes apart is among them."""
    data = load_breast_cancer()
    X = data.data[:100, [1, 4, 8]]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.where(X[:, 0] > 0.2, 1, 0) if separated else data.target[:100]
    return X, y


def oracle(X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of separated data it says that steps of rounding size do not help
        return FirthLogisticRegression(gtol=1e-8, xtol=1e-8, max_iter=1000).fit(X, y)


def tables(X, y, **more):
    return {
        site: {
            "y": y[a:b], "u": X[a:b, 0], "v": X[a:b, 1], "w": X[a:b, 2],
            **{name: np.asarray(column)[a:b] for name, column in more.items()},
        }
        for site, a, b in zip("abcd", CUTS[:-1], CUTS[1:], strict=True)
    }  # fmt: skip


def by_hand(X, y, weights=None, steps=400):
    """Firth's estimates by plain Fisher scoring on the modified score, with half steps (Firth 1993)."""
    X = np.column_stack([X, np.ones(len(X))])
    w = np.ones(len(y)) if weights is None else weights
    theta = np.zeros(X.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-X @ theta))
        A = np.linalg.inv((X * (w * p * (1 - p))[:, None]).T @ X)
        h = w * p * (1 - p) * ((X @ A) * X).sum(axis=1)
        theta = theta + 0.5 * A @ X.T @ (w * (y - p) + h * (0.5 - p))
    return theta


@pytest.mark.parametrize("separated", [False, True])
def test_estimates_errors_and_likelihood_are_those_of_the_pooled_rows(separated):
    X, y = cancer(separated)
    model = fedshed.fit(tables(X, y), Study(family="logistic", target="y", firth=True), tol=1e-11)
    pooled, it = oracle(X, y), model.inference
    assert model.converged, model.run.reason
    tolerance = 1e-7 if not separated else 1e-5  # the oracle stops earlier there: the hand has all digits
    np.testing.assert_allclose(it.coef, [*pooled.coef_, pooled.intercept_], rtol=tolerance)
    np.testing.assert_allclose(it.coef, by_hand(X, y), rtol=1e-7)
    np.testing.assert_allclose(it.penalised_log_likelihood, pooled.loglik_, rtol=1e-7)
    design = np.column_stack([X, np.ones(100)])
    p = 1 / (1 + np.exp(-design @ it.coef))
    V = np.linalg.inv((design * (p * (1 - p))[:, None]).T @ design)
    np.testing.assert_allclose(it.std_err(), np.sqrt(np.diag(V)), rtol=1e-9)
    assert f"{it.penalised_log_likelihood:.8g}" in " ".join(str(model.summary()).split())


def test_the_separation_message_names_firth_and_firth_then_converges():
    X, y = cancer(separated=True)
    study = Study(family="logistic", target="y")
    separated = fedshed.fit(tables(X, y), study)
    assert not separated.converged
    assert "firth = true, --firth" in separated.run.reason
    assert "l2 > 0" in separated.run.reason
    assert fedshed.fit(tables(X, y), Study(family="logistic", target="y", firth=True)).converged


@pytest.mark.parametrize(("events", "rows"), [(0, 5), (3, 10), (7, 7)])
def test_a_single_proportion_is_half_an_event_and_half_a_non_event_more(events, rows):
    """(y + 1/2) / (n + 1), Jeffreys' estimate, also where there is no event at all."""
    y = (np.arange(rows) < events).astype(int)
    frames = {"a": {"y": y[:2]}, "b": {"y": y[2:]}}
    study = Study(family="binomial", target="y", columns=(), firth=True)
    model = fedshed.fit(frames, study, tol=1e-12)
    p = 1 / (1 + np.exp(-model.coefficients["intercept"]))
    np.testing.assert_allclose(p, (events + 0.5) / (rows + 1), rtol=1e-8)


def test_weights_are_repeated_rows_and_trials_are_their_rows():
    X, y = cancer()
    weights = np.random.default_rng(0).integers(1, 4, 100)
    study = Study(family="logistic", target="y", weight="n", weight_type="frequency", firth=True)
    weighted = fedshed.fit(tables(X, y, n=weights), study, tol=1e-11)
    np.testing.assert_allclose(weighted.inference.coef, by_hand(X, y, weights), rtol=1e-7)
    repeated = oracle(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.inference.coef[:3], repeated.coef_, rtol=1e-6)
    grouped = tables(X, y * weights, n=weights)
    trials = fedshed.fit(grouped, Study(family="binomial", target="y", trials="n", firth=True), tol=1e-11)
    np.testing.assert_allclose(trials.inference.coef, weighted.inference.coef, rtol=1e-7)


def test_units_and_sites_do_not_matter():
    """The penalty is invariant under changes of scale; standardised or not, in one site or four."""
    X, y = cancer(separated=True)
    frames = tables(X * [1e3, 1.0, 1e-3] + [5e3, 0.0, 0.0], y)
    plain = fedshed.fit(tables(X, y), Study(family="logistic", target="y", firth=True), tol=1e-11)
    study = Study(family="logistic", target="y", firth=True, standardize=True)
    scaled = fedshed.fit(frames, study, tol=1e-11)
    coef = scaled.inference.coef[:3] * [1e3, 1.0, 1e-3]
    np.testing.assert_allclose(coef, plain.inference.coef[:3], rtol=1e-6)
    # log det I is that of the original units: each column's scale adds its logarithm
    difference = scaled.inference.penalised_log_likelihood - plain.inference.penalised_log_likelihood
    np.testing.assert_allclose(difference, np.log(1e3) + np.log(1e-3), atol=1e-6)


@pytest.mark.parametrize("how", ["stateless", "protected"])
def test_other_ways_to_run_it_give_the_same(how):
    X, y = cancer(separated=True)
    study = Study(
        family="logistic",
        target="y",
        firth=True,
        protected=how == "protected",
        classes=(0, 1),
        columns=("u", "v", "w"),
    )
    options = {"over": Stateless} if how == "stateless" else {}
    model = fedshed.fit(tables(X, y), study, tol=1e-9, **options)
    assert model.converged, model.run.reason
    np.testing.assert_allclose(model.inference.coef, by_hand(X, y), rtol=1e-5)
    assert model.inference.penalised_log_likelihood is not None


def test_the_estimator_predicts_with_firth():
    X, y = cancer(separated=True)
    model = fedshed.FederatedLogisticRegression(firth=True, tol=1e-11).fit(X, y, sites=SITES)
    theta = by_hand(X, y)
    np.testing.assert_allclose(model.coef_[0], theta[:3], rtol=1e-7)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-(X @ theta[:3] + theta[3]))))


def test_what_firth_cannot_have_is_refused_by_name():
    X, y = cancer()
    study = Study(family="logistic", target="y", firth=True)
    with pytest.raises(ConfigError, match="not for poisson"):
        Study(family="poisson", target="y", firth=True)
    with pytest.raises(ConfigError, match="firth or l2, not both"):
        Study(family="logistic", target="y", firth=True, l2=0.1)
    for options, words in (
        ({"algorithm": "lbfgs"}, "'auto' or 'newton', not 'lbfgs'"),
        ({"errors": "HC3"}, "cannot have errors = HC3"),
    ):
        with pytest.raises(ConfigError, match=words):
            fedshed.fit(tables(X, y), study, **options)
    with pytest.raises(ConfigError, match="firth or l2, not both"):
        fedshed.FederatedLogisticRegression(l2=1.0, firth=True).fit(X, y)
    with pytest.raises(ConfigError, match="two classes"):
        fedshed.FederatedLinearRegression(firth=True).fit(X, y)
    with pytest.raises(fedshed.SingularError, match="collinear"):
        fedshed.fit(tables(np.column_stack([X[:, :2], X[:, 0]]), y), study)


def test_a_fixed_coefficient_stays_and_the_others_reach_their_restricted_optimum():
    """The penalty of a restricted fit is that of all coefficients: its slope along the free ones is 0."""
    X, y = cancer(separated=True)
    result = fedshed.optimize(
        Federation.from_arrays(X, y, SITES), l2=0.0, intercept=True, algorithm=Firth(fixed=(0,)), tol=1e-9
    )
    assert result.converged, result.reason
    assert result.theta[0] == 0.0

    def penalised(theta):
        design = np.column_stack([X, np.ones(100)])
        p = 1 / (1 + np.exp(-design @ theta))
        I = (design * (p * (1 - p))[:, None]).T @ design  # noqa: E741
        return np.log(np.where(y == 1, p, 1 - p)).sum() + np.linalg.slogdet(I)[1] / 2

    for j in (1, 2, 3):
        step = 1e-5 * np.eye(4)[j]
        assert abs(penalised(result.theta + step) - penalised(result.theta - step)) < 1e-9


@pytest.mark.parametrize("separated", [False, True])
def test_penalised_likelihood_ratios_are_those_of_the_pooled_rows(separated):
    X, y = cancer(separated)
    study = Study(family="logistic", target="y", firth=True)
    found = fedshed.firth_tests(tables(X, y), study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wants to go on where rounding does not let it
        pooled = FirthLogisticRegression(max_iter=1000).fit(X, y).lrt()
    p_values = [found[name].p_value for name in "uvw"]
    np.testing.assert_allclose(p_values, pooled.lrt_pvalues_[:3], rtol=1e-3 if separated else 1e-5)
    small = Study(family="logistic", target="y", columns=("u",), firth=True)
    with pytest.raises(ConfigError, match="firth_tests"):
        fedshed.likelihood_ratio(fedshed.fit(tables(X, y), small), fedshed.fit(tables(X, y), study))
    with pytest.raises(ConfigError, match="with firth = true"):
        fedshed.firth_tests(tables(X, y), Study(family="logistic", target="y"))
