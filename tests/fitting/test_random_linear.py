"""A linear model with a random intercept per site: REML in closed form, as statsmodels' MixedLM has it."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import multivariate_normal

import fedshed
from fedshed import ConfigError, Study

SIZES = [2, 3, 5, 8, 12, 20, 40, 90, 150]
STUDY = Study(family="linear", target="y", random_intercept=True)


def made(tau=1.5, seed=1, weighted=False):
    rng, tables = np.random.default_rng(seed), {}
    for i, rows in enumerate(SIZES):
        x, u = rng.normal(size=(2, rows)) + 0.3 * i
        y = 1.0 + 0.5 * x - 0.2 * u + tau * rng.normal() + rng.normal(size=rows)
        tables[f"s{i}"] = pd.DataFrame({"x": x, "u": u, "y": y})
        if weighted:
            tables[f"s{i}"]["w"] = rng.integers(1, 4, rows).astype(float)
    return tables


def pooled(tables):
    rows = pd.concat(tables.values(), keys=tables, names=["site"]).reset_index(level="site")
    return rows, np.column_stack([rows[["x", "u"]], np.ones(len(rows))])


def test_estimates_errors_and_likelihood_are_those_of_statsmodels_mixed_model():
    tables = made()
    rows, X = pooled(tables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixed = sm.MixedLM(rows["y"].to_numpy(), X, groups=rows["site"].to_numpy())
        oracle = mixed.fit(reml=True, method="bfgs", gtol=1e-10)
    model = fedshed.fit(tables, STUDY)
    it = model.inference
    np.testing.assert_allclose(it.coef, oracle.fe_params, atol=1e-5)
    np.testing.assert_allclose(it.std_err(), oracle.bse_fe, rtol=3e-4)  # its optimiser stops early
    assert it.nuisance.value**2 == pytest.approx(float(oracle.cov_re[0, 0]), rel=1e-3)
    assert it.dispersion == pytest.approx(oracle.scale, rel=1e-4)
    assert it.log_likelihood == pytest.approx(oracle.llf, abs=1e-6)
    assert it.log_likelihood >= oracle.llf - 1e-10
    said = " ".join(str(model.summary()).split())
    assert "restricted maximum likelihood" in said
    assert "tau = " in said


def test_it_is_the_restricted_likelihood_of_contrasts_with_a_dense_covariance_at_its_best():
    """L is the density of any N - n orthonormal contrasts K'y with K'X = 0, less log det(X'X) / 2."""
    tables = made()
    rows, X = pooled(tables)
    it = fedshed.fit(tables, STUDY).inference
    same = np.equal.outer(rows["site"].to_numpy(), rows["site"].to_numpy())
    K = np.linalg.svd(X)[0][:, X.shape[1] :]

    def likelihood(log_tau, log_sigma):
        V = np.exp(2 * log_sigma) * np.eye(len(rows)) + np.exp(2 * log_tau) * same
        return multivariate_normal(cov=K.T @ V @ K).logpdf(K.T @ rows["y"])

    at = np.log([it.nuisance.value, np.sqrt(it.dispersion)])
    gap = np.linalg.slogdet(X.T @ X)[1] / 2
    assert likelihood(*at) - gap == pytest.approx(it.log_likelihood, abs=1e-8)
    h, step = 1e-2, [1, -8, 0, 8, -1]
    paths = [[likelihood(*(at + k * h * e)) for k in (-2, -1, 0, 1, 2)] for e in np.eye(2)]
    np.testing.assert_allclose(np.array(paths) @ step / (12 * h), 0.0, atol=1e-3)
    corners = [likelihood(*(at + h * np.array(e))) for e in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    mixed = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * h * h)
    bends = np.array(paths) @ [-1, 16, -30, 16, -1] / (12 * h * h)
    variances = np.linalg.inv(-np.array([[bends[0], mixed], [mixed, bends[1]]]))
    assert it.nuisance.log_error == pytest.approx(np.sqrt(variances[0, 0]), rel=1e-3)
    V = it.dispersion * np.eye(len(rows)) + it.nuisance.value**2 * same
    covariance = np.linalg.inv(X.T @ np.linalg.solve(V, X))
    np.testing.assert_allclose(it.coef, covariance @ X.T @ np.linalg.solve(V, rows["y"]), atol=1e-9)
    np.testing.assert_allclose(it.covariance(), covariance, rtol=1e-8, atol=1e-12)


def test_whole_weights_are_rows_repeated():
    tables = made(weighted=True)
    repeated = {
        site: t.loc[t.index.repeat(t["w"].astype(int))].drop(columns="w") for site, t in tables.items()
    }
    one = fedshed.fit(
        tables, Study(family="linear", target="y", weight="w", weight_type="frequency", random_intercept=True)
    )
    two = fedshed.fit(repeated, STUDY)
    np.testing.assert_allclose(one.inference.coef, two.inference.coef, atol=1e-9)
    assert one.inference.nuisance.value == pytest.approx(two.inference.nuisance.value, rel=1e-9)
    np.testing.assert_allclose(one.inference.std_err(), two.inference.std_err(), rtol=1e-9)


def test_sites_that_do_not_differ_give_least_squares():
    tables = dict.fromkeys(("a", "b", "c"), made()["s7"])
    model, plain = fedshed.fit(tables, STUDY), fedshed.fit(tables, Study(family="linear", target="y"))
    assert model.inference.nuisance.value == 0.0
    np.testing.assert_allclose(model.inference.coef, plain.inference.coef, atol=1e-10)
    np.testing.assert_allclose(model.inference.std_err(), plain.inference.std_err(), rtol=1e-9)
    assert "tau, the standard deviation of the random intercept, is 0" in " ".join(
        str(model.summary()).split()
    )


def test_units_and_standardised_columns_change_nothing_and_the_estimator_is_the_same():
    tables = made()
    one = fedshed.fit(tables, STUDY)
    two = fedshed.fit(tables, Study(family="linear", target="y", random_intercept=True, standardize=True))
    np.testing.assert_allclose(two.inference.coef, one.inference.coef, atol=1e-9)
    np.testing.assert_allclose(two.inference.std_err(), one.inference.std_err(), rtol=1e-8)
    rows, X = pooled(tables)
    ours = fedshed.FederatedLinearRegression(random_intercept=True)  # its default ridge counts as 0
    ours.fit(X[:, :2], rows["y"].to_numpy(), sites=rows["site"].to_numpy())
    np.testing.assert_allclose([*ours.coef_, ours.intercept_], one.inference.coef, atol=1e-9)


def test_a_ridge_and_masked_sums_are_refused():
    with pytest.raises(ConfigError, match="set l2 = 0"):
        Study(family="linear", target="y", random_intercept=True, l2=0.1)
    with pytest.raises(ConfigError, match="a protected study cannot estimate the random intercept's tau"):
        Study(family="linear", target="y", random_intercept=True, protected=True)
