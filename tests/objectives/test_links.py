"""Probit, cloglog and inverse Gaussian: derivatives, tails, separation, and the pooled fit of statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer

import fedshed
from fedshed import Federation
from fedshed.objectives.inverse_gaussian import InverseGaussian
from fedshed.objectives.links import LogLog, LogLogShares, Probit, ProbitShares

LINKS = {"probit": sm.families.links.Probit(), "cloglog": sm.families.links.CLogLog()}


def cancer():
    """A few columns of the breast cancer data; the first site has 3 rows, the last 400."""
    data = load_breast_cancer()
    X = data.data[:, [1, 4, 8]]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    sites = np.repeat(["a", "b", "c", "d"], [3, 31, 135, 400])
    return X, data.target, sites


@pytest.mark.parametrize("loss", LINKS)
@pytest.mark.parametrize("algorithm", ["newton", "auto"])
def test_two_classes_have_the_pooled_estimates_of_a_generalised_linear_model(loss, algorithm):
    X, y, sites = cancer()
    federation = Federation.from_arrays(X, y, sites)
    result = fedshed.optimize(federation, loss=loss, l2=0.0, intercept=True, algorithm=algorithm)
    design = sm.add_constant(X, prepend=False)
    pooled = sm.GLM(y, design, family=sm.families.Binomial(link=LINKS[loss])).fit(tol=1e-13)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, pooled.params, atol=1e-7)


def test_probit_is_that_of_the_discrete_model():
    X, y, sites = cancer()
    result = fedshed.optimize(
        Federation.from_arrays(X, y, sites), loss="probit", l2=0.0, intercept=True, algorithm="newton"
    )
    pooled = sm.Probit(y, sm.add_constant(X, prepend=False)).fit(disp=False, tol=1e-12)
    np.testing.assert_allclose(result.theta, pooled.params, atol=1e-7)


@pytest.mark.parametrize("model", [Probit, LogLog, ProbitShares, LogLogShares, InverseGaussian])
@given(z=st.floats(-30, 6), y=st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_slopes_and_curvatures_are_derivatives_of_the_loss(model, z, y):
    response = np.array([np.where(y > 0.5, 1.0, -1.0) if model in (Probit, LogLog) else y])
    it, at, h = model(np.ones((1, 1)), response), np.array([z]), 1e-5
    slope = (it.losses(at + h) - it.losses(at - h)) / (2 * h)
    size = 1e-6 * (1.0 + np.abs(it.losses(at)) + np.abs(it.slopes(at)))
    assert np.abs(slope - it.slopes(at)) <= size
    curvature = (it.slopes(at + h) - it.slopes(at - h)) / (2 * h)
    if model is InverseGaussian:  # the curvature is its expectation over y
        curvature = np.exp(-at)
    assert np.abs(curvature - it.curvatures(at)) <= 1e-6 * (1.0 + np.abs(it.slopes(at)) + it.curvatures(at))


@pytest.mark.parametrize("model", [Probit, LogLog])
@given(z=st.floats(-1e6, 1e6), y=st.sampled_from([-1.0, 1.0]))
@settings(max_examples=100, deadline=None)
def test_tails_are_numbers_and_never_negative(model, z, y):
    """The loss of a row may be infinite where no float holds it; nothing is ever NaN or below 0."""
    it, at = model(np.ones((1, 1)), np.array([y])), np.array([z])
    with np.errstate(over="ignore"):
        loss, slope, curvature = it.losses(at), it.slopes(at), it.curvatures(at)
    assert loss >= 0
    assert slope * y <= 0
    assert curvature >= 0
    assert it.information(at) >= 0


def test_far_tails_keep_their_digits():
    """-log Phi(-x) = x^2 / 2 + log(x sqrt(2 pi)) + ..., and -log(1 - exp(-u)) = -z + u / 2 for small u."""
    x = np.array([50.0, 299.0, 301.0, 1e4])
    probit = Probit(np.ones((4, 1)), np.ones(4))
    np.testing.assert_allclose(probit.losses(-x), -norm.logcdf(-x), rtol=1e-12)
    np.testing.assert_allclose(probit.curvatures(-x), 1 - x**-2 + 6 * x**-4, rtol=1e-7)
    z = np.array([-700.0, -50.0, -40.0, -20.0])
    loglog = LogLog(np.ones((4, 1)), np.ones(4))
    np.testing.assert_allclose(loglog.losses(z), -z + np.exp(z) / 2, rtol=1e-14)
    np.testing.assert_allclose(loglog.curvatures(z), np.exp(z) / 2, rtol=1e-7)


@pytest.mark.parametrize("model", [Probit, LogLog])
def test_the_information_is_the_expected_curvature(model):
    z = np.linspace(-5, 1.5, 40)
    yes, no = (model(np.ones((40, 1)), np.full(40, y)) for y in (1.0, -1.0))
    p = np.exp(-yes.losses(z))
    np.testing.assert_allclose(yes.information(z), p * yes.curvatures(z) + (1 - p) * no.curvatures(z))


@pytest.mark.parametrize("loss", LINKS)
def test_trials_are_their_rows_one_by_one(loss):
    """4 trials with 3 successes have the same estimate as four rows."""
    rng = np.random.default_rng(2)
    X, trials = rng.normal(size=(80, 2)), rng.integers(1, 6, 80)
    successes = rng.binomial(trials, norm.cdf(X @ [0.5, -0.3]))
    sites = np.repeat(["a", "b"], [5, 75])
    grouped = Federation.from_arrays(X, successes / trials, sites, sample_weight=trials)
    rows = np.repeat(np.arange(80), trials)
    y = np.concatenate([np.arange(n) < s for n, s in zip(trials, successes, strict=True)])
    run = {"l2": 0.0, "intercept": True, "algorithm": "newton"}
    one = fedshed.optimize(grouped, loss=f"binomial-{loss}", **run)
    two = fedshed.optimize(Federation.from_arrays(X[rows], y, sites[rows]), loss=loss, **run)
    assert one.converged, one.reason
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)


@pytest.mark.parametrize("loss", LINKS)
@pytest.mark.parametrize("algorithm", ["newton", "lbfgs"])
def test_separated_classes_are_reported_for_every_link(loss, algorithm):
    X, y, sites = cancer()
    X = np.column_stack([X, sites == "b"])
    y = np.where(sites == "b", 1, y)
    federation = Federation.from_arrays(X, y, sites)
    result = fedshed.optimize(federation, loss=loss, l2=0.0, intercept=True, algorithm=algorithm, tol=1e-8)
    assert not result.converged
    assert result.reason.startswith("separated: ")
    assert "x3" in result.reason
    assert fedshed.optimize(federation, loss=loss, l2=1e-4, intercept=True, algorithm=algorithm).converged


@pytest.mark.parametrize("algorithm", ["newton", "auto", "fib-shed", "qn-shed", "lbfgs"])
def test_inverse_gaussian_has_the_pooled_estimates_and_no_honest_site_is_refused(algorithm):
    X, _, sites = cancer()
    rng = np.random.default_rng(0)
    y = rng.wald(np.exp(X @ [0.3, -0.5, 0.2] + 0.5), 1.5)
    federation = Federation.from_arrays(X, y, sites)
    result = fedshed.optimize(
        federation, loss="inverse-gaussian", l2=0.0, intercept=True, algorithm=algorithm
    )
    family = sm.families.InverseGaussian(link=sm.families.links.Log())
    pooled = sm.GLM(y, sm.add_constant(X, prepend=False), family=family).fit(tol=1e-13)
    assert result.converged, result.reason
    assert not result.refusals
    np.testing.assert_allclose(result.theta, pooled.params, atol=1e-7)


@pytest.mark.parametrize("family", [*LINKS, "inverse-gaussian"])
def test_a_fit_has_the_errors_deviances_and_likelihood_of_statsmodels(family):
    """Errors from the expected information, as a generalised linear model has them."""
    X, y, sites = cancer()
    design = sm.add_constant(X, prepend=False)
    kind = sm.families.Binomial(link=LINKS[family]) if family in LINKS else None
    if kind is None:
        kind = sm.families.InverseGaussian(link=sm.families.links.Log())
        y = np.random.default_rng(0).wald(np.exp(X @ [0.3, -0.5, 0.2] + 0.5), 1.5)
    frames = {
        site: {"y": y[mine], **{f"x{j}": X[mine, j] for j in range(3)}}
        for site in "abcd"
        for mine in [sites == site]
    }
    model = fedshed.fit(frames, fedshed.Study(family=family, target="y"), tol=1e-11)
    pooled, it = sm.GLM(y, design, family=kind).fit(tol=1e-13), model.inference
    assert model.converged, model.run.reason
    np.testing.assert_allclose(it.coef, pooled.params, atol=1e-7)
    np.testing.assert_allclose(it.std_err(), pooled.bse, rtol=1e-7)
    np.testing.assert_allclose([it.deviance, it.null_deviance], [pooled.deviance, pooled.null_deviance])
    np.testing.assert_allclose([it.log_likelihood, it.dispersion], [pooled.llf, pooled.scale], rtol=1e-7)
    frame = {f"x{j}": X[:5, j] for j in range(3)}
    there, expected = model.predict_interval(frame), pooled.get_prediction(design[:5]).summary_frame()
    np.testing.assert_allclose(there.mean, expected["mean"], rtol=1e-6)
    np.testing.assert_allclose(there.std_err, expected["mean_se"], rtol=1e-6)
    assert ("not convex" in str(model.summary())) == (family == "inverse-gaussian")
