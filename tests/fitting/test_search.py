"""Parameters that the Master searches for: the negative binomial's alpha; Tweedie's p as it is given."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.linear_model import TweedieRegressor
from statsmodels.datasets import randhie

import fedshed
from fedshed import ConfigError, Model, Study

COLUMNS = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea"]
SIZES = {"a": 15, "b": 60, "c": 225, "d": 1200}


@pytest.fixture(scope="module")
def visits():
    """Visits to doctors in the RAND health insurance experiment, at four sites of very unequal size."""
    data = randhie.load_pandas().data.sample(sum(SIZES.values()), random_state=1)
    return data.assign(site=np.repeat(list(SIZES), list(SIZES.values()))).reset_index(drop=True)


def tables(data):
    return {site: part.drop(columns="site") for site, part in data.groupby("site")}


def design(data):
    return np.column_stack([data[COLUMNS], np.ones(len(data))])


@pytest.fixture(scope="module")
def model(visits):
    study = Study(family="negative-binomial", target="mdvis", columns=tuple(COLUMNS))
    return fedshed.fit(tables(visits), study)


def test_alpha_and_the_coefficients_are_those_of_statsmodels_on_the_pooled_rows(visits, model):
    oracle = sm.NegativeBinomial(visits["mdvis"].to_numpy(), design(visits), loglike_method="nb2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near = oracle.fit(disp=0, method="bfgs", maxiter=500)
        pooled = oracle.fit(disp=0, method="newton", start_params=near.params, maxiter=50, tol=1e-14)
    it = model.inference
    np.testing.assert_allclose(it.coef, pooled.params[:-1], atol=1e-7)
    assert it.nuisance.value == pytest.approx(pooled.params[-1], abs=1e-7)
    assert it.nuisance.error == pytest.approx(pooled.bse[-1], rel=1e-5)
    assert it.log_likelihood == pytest.approx(pooled.llf, abs=1e-7)
    assert it.aic == pytest.approx(pooled.aic, abs=1e-6)
    assert model.converged
    assert "alpha = " in str(model.summary())


def test_errors_and_deviances_are_those_of_statsmodels_glm_at_this_alpha(visits, model):
    family = sm.families.NegativeBinomial(alpha=model.inference.nuisance.value)
    pooled = sm.GLM(visits["mdvis"].to_numpy(), design(visits), family).fit(tol=1e-13)
    it = model.inference
    np.testing.assert_allclose(it.coef, pooled.params, atol=1e-7)
    np.testing.assert_allclose(it.std_err(), pooled.bse, rtol=1e-7)
    np.testing.assert_allclose(
        [it.deviance, it.null_deviance, it.pearson, it.log_likelihood],
        [pooled.deviance, pooled.null_deviance, pooled.pearson_chi2, pooled.llf], rtol=1e-8,
    )  # fmt: skip


def test_a_given_alpha_is_kept_and_the_one_found_gives_the_same_fit(visits, model, tmp_path):
    found = model.inference.nuisance.value
    study = Study(family=f"negative-binomial({found!r})", target="mdvis", columns=tuple(COLUMNS))
    given = fedshed.fit(tables(visits), study)
    np.testing.assert_allclose(given.inference.coef, model.inference.coef, atol=1e-9)
    assert given.inference.nuisance.found is False
    again = Model.load(model.save(tmp_path / "model.json"))
    assert again.inference == model.inference
    np.testing.assert_array_equal(again.predict(visits), model.predict(visits))


@pytest.mark.parametrize("algorithm", ["lbfgs", "qn-shed"])
def test_each_algorithm_finds_the_same_alpha(visits, model, algorithm):
    study = Study(family="negative-binomial", target="mdvis", columns=tuple(COLUMNS), standardize=True)
    other = fedshed.fit(tables(visits), study, algorithm=algorithm)
    assert other.converged, other.run.reason
    assert other.inference.nuisance.value == pytest.approx(model.inference.nuisance.value, abs=1e-7)
    np.testing.assert_allclose(other.inference.coef, model.inference.coef, atol=1e-6)


def test_counts_that_vary_no_more_than_poissons_give_poissons_fit():
    rng = np.random.default_rng(0)
    made = {
        site: pd.DataFrame({"x": (x := rng.normal(size=rows)), "y": rng.binomial(5, 1 / (1 + np.exp(-x)))})
        for site, rows in {"a": 30, "b": 300}.items()
    }
    model = fedshed.fit(made, Study(family="negative-binomial", target="y"))
    poisson = fedshed.fit(made, Study(family="poisson", target="y"))
    assert model.inference.nuisance.value == 0.0
    np.testing.assert_allclose(model.inference.coef, poisson.inference.coef, atol=1e-9)
    np.testing.assert_allclose(model.inference.std_err(), poisson.inference.std_err(), rtol=1e-7)
    assert "alpha is 0, the end of its range" in str(model.summary()).replace("\n    ", " ")


def test_separated_counts_are_reported_by_name_in_a_search(visits):
    data = visits.assign(never=(visits["idp"] == 1).astype(float))
    data.loc[data["never"] == 1, "mdvis"] = 0
    study = Study(family="negative-binomial", target="mdvis", columns=("lpi", "never"))
    model = fedshed.fit(tables(data), study)
    assert not model.converged
    assert "never" in model.run.reason


@pytest.mark.parametrize("p", [1.2, 1.5, 1.9])
def test_tweedie_is_that_of_statsmodels_and_of_scikit_learn(visits, p):
    data = visits.assign(cost=visits["mdvis"] * (1.0 + visits["disea"] / 50), logyears=0.1 * visits["physlm"])
    study = Study(family=f"tweedie({p})", target="cost", columns=tuple(COLUMNS), offset="logyears")
    model = fedshed.fit(tables(data), study)
    family = sm.families.Tweedie(link=sm.families.links.Log(), var_power=p)
    glm = sm.GLM(data["cost"].to_numpy(), design(data), family, offset=data["logyears"].to_numpy())
    pooled = glm.fit(scale="X2", tol=1e-13, maxiter=200)
    it = model.inference
    np.testing.assert_allclose(it.coef, pooled.params, atol=1e-7)
    np.testing.assert_allclose(it.std_err(), pooled.bse, rtol=1e-6)
    np.testing.assert_allclose([it.deviance, it.dispersion], [pooled.deviance, pooled.scale], rtol=1e-7)
    ridge = fedshed.FederatedRegressor(family=f"tweedie({p})", l2=0.1)
    ridge.fit(data[COLUMNS].to_numpy(), data["cost"].to_numpy(), sites=data["site"].to_numpy())
    other = TweedieRegressor(
        power=p, alpha=0.1, link="log", tol=1e-10, max_iter=5000, solver="newton-cholesky"
    )
    other.fit(data[COLUMNS].to_numpy(), data["cost"].to_numpy())
    np.testing.assert_allclose(ridge.coef_, other.coef_, atol=1e-6)


def test_protected_studies_take_a_parameter_but_do_not_search(visits):
    with pytest.raises(ConfigError, match="protected study cannot estimate alpha"):
        Study(family="negative-binomial", target="mdvis", protected=True)
    plain = Study(family="negative-binomial(1.3)", target="mdvis", columns=("lpi", "disea"))
    summed = Study(family="negative-binomial(1.3)", target="mdvis", columns=("lpi", "disea"), protected=True)
    one, two = (fedshed.fit(tables(visits), study) for study in (plain, summed))
    np.testing.assert_allclose(two.inference.coef, one.inference.coef, atol=1e-7)


def test_the_estimator_searches_as_a_study_does(visits, model, tmp_path):
    X, y = visits[COLUMNS].to_numpy(), visits["mdvis"].to_numpy()
    ours = fedshed.FederatedRegressor(family="negative-binomial", l2=0.0).fit(X, y, sites=visits["site"])
    np.testing.assert_allclose(ours.coef_, model.inference.coef[:-1], atol=1e-8)
    assert ours.parameter_ == pytest.approx(model.inference.nuisance.value, abs=1e-8)
    assert ours.converged_
    again = fedshed.estimators.load(ours.save(tmp_path / "estimator.json"))
    np.testing.assert_array_equal(again.predict(X), ours.predict(X))


def test_a_likelihood_ratio_of_two_searches_is_twice_the_difference_of_their_log_likelihoods(visits, model):
    study = Study(family="negative-binomial", target="mdvis", columns=tuple(COLUMNS[:-1]))
    small = fedshed.fit(tables(visits), study)
    test = fedshed.likelihood_ratio(small, model)
    gain = model.inference.log_likelihood - small.inference.log_likelihood
    assert small.inference.nuisance.value > model.inference.nuisance.value
    assert test.statistic == pytest.approx(2 * gain)
    assert test.df == 1
