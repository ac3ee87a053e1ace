"""The data sets that come with statsmodels, in very unequal sites, against its own fits of pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import fedshed
from fedshed import Study

CASES = {
    "spector": ("logistic", sm.families.Binomial(), lambda d: (d.exog, d.endog)),
    "fair": ("logistic", sm.families.Binomial(), lambda d: (d.exog, (d.endog > 0).astype(float))),
    "randhie": ("poisson", sm.families.Poisson(), lambda d: (d.exog, d.endog)),
    "cpunish": ("poisson", sm.families.Poisson(), lambda d: (d.exog, d.endog)),
    "scotland": ("gamma", sm.families.Gamma(sm.families.links.Log()), lambda d: (d.exog, d.endog)),
    "longley": ("linear", sm.families.Gaussian(), lambda d: (d.exog, d.endog)),
    "grunfeld": ("linear", sm.families.Gaussian(), lambda d: (d.exog[["value", "capital"]], d.endog)),
    "engel": ("linear", sm.families.Gaussian(), lambda d: (d.exog, d.endog)),
    "star98": ("binomial", sm.families.Binomial(), lambda d: (d.exog.iloc[:, :12], d.endog)),
}


def unequal(rows, seed=0):
    """Sites of about 1, 4, 15 and 80 percent of the rows, of three rows at least."""
    sizes = np.maximum((np.array([0.01, 0.04, 0.15]) * rows).astype(int), 3)
    sites = np.repeat([0, 1, 2, 3], [*sizes, rows - sizes.sum()])
    return np.random.default_rng(seed).permutation(sites)


def loaded(name):
    family, theirs, split = CASES[name]
    X, y = split(getattr(sm.datasets, name).load_pandas())
    X = X.reset_index(drop=True).astype(float).drop(columns=["const"], errors="ignore")
    X.columns = [f"c{j}" for j in range(X.shape[1])]
    return family, theirs, X, y.reset_index(drop=True)


@pytest.mark.parametrize("name", CASES)
def test_the_pooled_model_is_that_of_statsmodels(name):
    family, theirs, X, y = loaded(name)
    frame = X.copy()
    study = {"family": family, "target": "y", "standardize": True, "columns": tuple(X.columns)}
    if family == "binomial":
        frame["y"], frame["n"] = y.iloc[:, 0], y.sum(axis=1)
        study["trials"] = "n"
    else:
        frame["y"] = y
    tables = {str(site): part for site, part in frame.groupby(unequal(len(X)))}
    tables = {site: part.reset_index(drop=True) for site, part in tables.items()}
    model = fedshed.fit(tables, Study(**study))
    full = np.column_stack([X, np.ones(len(X))])
    pooled = sm.GLM(y, full, theirs).fit(tol=1e-14, maxiter=200)
    ours = model.inference
    assert model.converged, model.run.reason
    assert np.abs((ours.coef - pooled.params) / pooled.bse).max() < 1e-5
    np.testing.assert_allclose(ours.std_err(), pooled.bse, rtol=1e-5)
    np.testing.assert_allclose(ours.deviance, pooled.deviance, rtol=1e-7)
    np.testing.assert_allclose(ours.df_resid, pooled.df_resid)
    np.testing.assert_allclose(ours.log_likelihood, pooled.llf, rtol=1e-7)


def test_the_voters_of_1996_in_their_own_classes():
    data = sm.datasets.anes96.load_pandas()
    frame = data.exog[["logpopul", "selfLR", "age", "educ", "income"]].assign(
        party=data.endog.astype(int) // 2
    )
    tables = {str(site): part.reset_index(drop=True) for site, part in frame.groupby(unequal(len(frame)))}
    model = fedshed.fit(tables, Study(family="multinomial", target="party", standardize=True))
    full = sm.add_constant(frame.drop(columns="party"))
    pooled = sm.MNLogit(frame.party, full).fit(method="newton", disp=0, maxiter=100, tol=1e-13)
    assert model.converged
    np.testing.assert_allclose(model.inference.log_likelihood, pooled.llf, rtol=1e-9)
    terms = ["age", "educ", "income"]
    against = [model.coefficients[f"{name} [2]"] for name in terms]
    expected = pooled.params.loc[terms, 1]  # its columns are classes 1, 2 and 3 against 0
    np.testing.assert_allclose(against, expected, rtol=1e-5)
