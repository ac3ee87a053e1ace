"""Robust errors are shown only where enough sites inform a coefficient."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import fedshed
from against_r import R, rows_of, tables_of
from fedshed import Study
from fedshed.inference import FewSitesWarning


def tables(sites=20, rows=60, seed=0):
    """Sites with levels of their own, and errors that are alike within a site."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(sites):
        x = rng.normal(size=rows) + rng.normal()
        y = 2.0 * x + rng.normal() + rng.normal(size=rows) * (1 + 0.1 * i)
        made[f"s{i:02}"] = {"x": x, "y": y, "s": np.array([f"s{i:02}"] * rows)}
    return made


def pooled(every, dummies=True):
    """statsmodels' cluster errors on all rows."""
    x, y, s = (np.concatenate([one[name] for one in every.values()]) for name in "xys")
    names = np.unique(s)
    own = (s[:, None] == names[1:]).astype(float) if dummies else np.zeros((len(s), 0))
    X = np.column_stack([x, own, np.ones(len(x))])
    groups = np.searchsorted(names, s)
    return sm.GLM(y, X).fit(cov_type="cluster", cov_kwds={"groups": groups})


def test_an_intercept_of_a_site_gets_no_robust_error_but_a_reason_and_x_keeps_its_own():
    """The sandwich has rank M - 1: errors of site dummies come out near 0, whatever the truth."""
    every = tables()
    model = fedshed.fit(every, Study(family="linear", formula="y ~ x + C(s)"), tol=1e-11)
    theirs = pooled(every)
    errors = model.inference.std_err(robust=True)
    assert theirs.bse[1:-1].max() < 0.5 * model.inference.std_err()[1:-1].min()  # what must not be shown
    assert np.isnan(errors[1:]).all()
    np.testing.assert_allclose(errors[0], theirs.bse[0], rtol=1e-6)
    text = " ".join(str(model.summary(robust=True)).split())
    assert "No robust error is given for s[s01], s[s02]" in text
    assert "Student's t, with 19 degrees of freedom" in text
    shown = model.summary(robust=True).to_frame()
    assert shown.loc["s[s01]", ["std err", "t", "P>|t|", "[0.025", "0.975]"]].isna().all()


def test_equal_sites_count_whole_and_a_dominant_one_hardly_at_all():
    rng = np.random.default_rng(1)
    x = rng.normal(size=50)
    same = {f"s{i}": {"x": x, "y": x + rng.normal(size=50)} for i in range(8)}
    study = Study(family="linear", target="y")
    np.testing.assert_allclose(fedshed.fit(same, study).inference.clusters, 8.0)
    big = {"x": rng.normal(size=5000), "y": rng.normal(size=5000)}
    clusters = fedshed.fit({**same, "big": big}, study).inference.clusters
    assert max(clusters) < 2


@pytest.mark.filterwarnings("ignore::fedshed.inference.FewSitesWarning")
def test_robust_errors_of_six_sites_use_students_t_of_five():
    from scipy.stats import t

    every = tables(6)
    model = fedshed.fit(every, Study(family="linear", target="y", columns=("x",)), tol=1e-11)
    theirs = pooled(every, dummies=False)
    assert min(model.inference.clusters) >= 5
    errors = model.inference.std_err(robust=True)
    np.testing.assert_allclose(errors, theirs.bse, rtol=1e-6)
    p = model.inference.p_values(robust=True)
    np.testing.assert_allclose(p, 2 * t.sf(np.abs(theirs.params / theirs.bse), 5), rtol=1e-5)
    half = np.diff(model.inference.conf_int(robust=True), axis=1)[:, 0] / 2
    np.testing.assert_allclose(half, t.ppf(0.975, 5) * theirs.bse, rtol=1e-6)


def test_few_sites_are_warned_about():
    model = fedshed.fit(tables(6), Study(family="linear", target="y", columns=("x",)))
    with pytest.warns(FewSitesWarning, match="6 sites are few"):
        model.inference.std_err(robust=True)


# --- by rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_errors_by_rows_are_those_of_ordinary_least_squares(kind):
    every = tables(4, 30)
    model = fedshed.fit(every, Study(family="linear", target="y", columns=("x",)), tol=1e-11, errors=kind)
    x, y = (np.concatenate([one[name] for one in every.values()]) for name in "xy")
    theirs = sm.OLS(y, np.column_stack([x, np.ones(len(x))])).fit(cov_type=kind, use_t=True)
    np.testing.assert_allclose(model.inference.std_err(robust=kind), theirs.bse, rtol=1e-7)
    np.testing.assert_allclose(model.inference.p_values(robust=kind), theirs.pvalues, rtol=1e-5, atol=1e-200)
    assert f"robust, by rows ({kind})" in str(model.summary(robust=kind))


EXPECTED = {
    "hc_gamma": ("prestige", "type", Study(family="gamma", formula="income ~ education + women")),
    "hc_probit": ("birthwt", "race", Study(family="probit", formula="low ~ lwt + smoke + age")),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_errors_with_the_expected_information_are_those_of_rs_sandwich(name, kind):
    table, site, study = EXPECTED[name]
    every, theirs = tables_of(table, site), R[name]
    model = fedshed.fit(every, study, tol=1e-11, errors=f"{kind}-expected")
    ours = model.inference.std_err(robust=f"{kind}-expected")
    place = [model.inference.names.index(n) for n in ["intercept", *theirs["names"][1:]]]
    np.testing.assert_allclose(ours[place], theirs[kind], rtol=1e-6)
    assert f"robust, by rows ({kind}-expected)" in str(model.summary(robust=f"{kind}-expected"))


@pytest.mark.parametrize("name", EXPECTED)
def test_errors_with_the_observed_information_are_those_of_statsmodels(name):
    table, site, study = EXPECTED[name]
    rows = rows_of(table)
    model = fedshed.fit(tables_of(table, site), study, tol=1e-11, errors="HC0")
    family = sm.families.Gamma(sm.families.links.Log())
    if study.family == "probit":
        family = sm.families.Binomial(sm.families.links.Probit())
    names = R[name]["names"][1:]
    X = np.column_stack([rows[names], np.ones(len(rows))])
    theirs = sm.GLM(rows[study.target], X, family).fit(cov_type="HC0", tol=1e-14, maxiter=200).bse.to_numpy()
    np.testing.assert_allclose(model.inference.std_err(robust="HC0"), theirs, rtol=1e-6)
    assert np.abs(theirs[-1] / R[name]["HC0"][0] - 1) > 1e-3  # the two kinds are not the same


@pytest.mark.parametrize("family", ["poisson", "gamma", "logistic"])
@pytest.mark.parametrize("weights", ["frequency", "precision"])
def test_errors_by_rows_of_weighted_rows_are_the_formula_written_out(family, weights):
    """H^-1 (sum u u' / (1 - h)^2) H^-1 on the pooled rows; a row that counts twice is two rows."""
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=200), rng.integers(1, 4, 200).astype(float)
    mean = np.exp(0.4 * x)
    y = {"poisson": rng.poisson(mean), "gamma": rng.gamma(2.0, mean / 2), "logistic": rng.random(200) < 0.5}[
        family
    ]
    site = rng.integers(0, 3, 200)
    split = {str(i): {"x": x[site == i], "y": y[site == i], "w": w[site == i]} for i in range(3)}
    study = Study(family=family, target="y", weight="w", weight_type=weights)
    model = fedshed.fit(split, study, tol=1e-11, errors="HC3")
    X = np.column_stack([x, np.ones(200)])
    if weights == "frequency":
        X, y, w = np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int)), np.ones(int(w.sum()))
    z = X @ model.inference.coef
    slope, curvature, information = {
        "poisson": (np.exp(z) - y, np.exp(z), np.exp(z)),
        "gamma": (1 - y * np.exp(-z), y * np.exp(-z), np.ones_like(z)),
        "logistic": (1 / (1 + np.exp(-z)) - y, *[np.exp(-z) / (1 + np.exp(-z)) ** 2] * 2),
    }[family]
    h = w * information * (X @ np.linalg.inv(X.T @ (X * (w * information)[:, None])) * X).sum(axis=1)
    u = (w * slope / (1 - h))[:, None] * X
    half = np.linalg.inv(X.T @ (X * (w * curvature)[:, None]))
    expected = np.sqrt(np.diag(half @ u.T @ u @ half))
    np.testing.assert_allclose(model.inference.std_err(robust="HC3"), expected, rtol=1e-7)


def test_errors_by_rows_are_refused_where_there_are_none():
    every = tables(4, 30)
    model = fedshed.fit(every, Study(family="linear", target="y", columns=("x",)), errors="HC0")
    with pytest.raises(fedshed.ConfigError, match="fit the model with errors='HC3'"):
        model.summary(robust="HC3").to_frame()


def test_a_matrix_that_would_single_out_a_row_is_refused_at_the_site():
    """A Master could let one row's leverage near 1 drown all others; a true leverage stays within 0 and 1."""
    from fedshed.exchange.sites import LocalSites
    from fedshed.exchange.wire import Traffic
    from fedshed.linalg.arrays import pack
    from fedshed.objectives import local_objectives
    from fedshed.protocol.conversation import Problem
    from fedshed.solve.scatter import Scatter
    from fedshed.solve.stages import scatter

    x = np.arange(1.0, 31.0)[:, None]
    objectives = local_objectives(fedshed.Federation.from_arrays(x, x[:, 0]), "least-squares")
    problem = Problem(np.zeros(1), {i: o.weight for i, o in objectives.items()}, "least-squares", ("x",))
    for leverage, said in (
        (1.2, "not an inverse of the information"),
        (0.999, "a few rows would outweigh all"),
    ):
        asked = Scatter(np.zeros(1), pack(np.array([[leverage / 30**2]])), 2, True)
        with pytest.raises(fedshed.ProtocolError, match=said):
            scatter(LocalSites(objectives), problem, asked, Traffic())


def test_errors_by_a_cluster_column_within_sites_are_those_of_statsmodels():
    rng = np.random.default_rng(4)
    patient = rng.integers(0, 60, 300)
    x = rng.normal(size=300)
    y = 0.5 * x + rng.normal(size=60)[patient] + rng.normal(size=300)
    site = patient % 3
    split = {
        str(i): {"x": x[site == i], "y": y[site == i], "who": np.array([f"p{k}" for k in patient[site == i]])}
        for i in range(3)
    }
    study = Study(family="linear", target="y", columns=("x",), cluster="who")
    model = fedshed.fit(split, study, tol=1e-11, errors="cluster")
    theirs = sm.OLS(y, np.column_stack([x, np.ones(300)])).fit(
        cov_type="cluster", cov_kwds={"groups": patient}, use_t=True
    )
    np.testing.assert_allclose(model.inference.std_err(robust="cluster"), theirs.bse, rtol=1e-7)
    np.testing.assert_allclose(model.inference.p_values(robust="cluster"), theirs.pvalues, rtol=1e-6)
    assert f"{len(np.unique(patient))} clusters" in str(model.summary(robust="cluster"))
    with pytest.raises(fedshed.ConfigError, match="need a column of clusters"):
        fedshed.fit(split, Study(family="linear", target="y", columns=("x",)), errors="cluster")


def even_clusters(sites=3, clusters=6, seed=0):
    """Sites of the same size, which are evaluated together, and clusters with an effect of their own."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(sites):
        c = np.repeat(np.arange(clusters), 20)
        x = rng.normal(size=len(c))
        y = x + rng.normal(size=clusters)[c] + rng.normal(size=len(c))
        made[f"s{i}"] = {"x": x, "y": y, "c": np.array([f"{i}-{k}" for k in c])}
    return made


def test_sites_of_equal_size_keep_their_clusters():
    every = even_clusters()
    study = Study(family="linear", target="y", columns=("x",), cluster="c")
    model = fedshed.fit(every, study, errors="cluster")
    assert model.inference.row_clusters == 18
    assert np.isfinite(model.inference.std_err(robust="cluster")).all()


def test_a_coefficient_of_one_cluster_has_no_error_by_cluster_and_the_model_can_be_saved(tmp_path):
    """A dummy of the cluster itself would get an error near 0, as that of a site does."""
    every = even_clusters(sites=1)
    every["s0"]["d"] = every["s0"]["c"]
    study = Study(family="linear", formula="y ~ x + C(d)", cluster="c")
    model = fedshed.fit(every, study, errors="cluster")
    errors = model.inference.std_err(robust="cluster")
    assert np.isfinite(errors[0])
    assert np.isnan(errors[1:]).all()
    assert "No robust error is given for d[0-1]" in " ".join(str(model.summary(robust="cluster")).split())
    alone = {"s0": {**every["s0"], "c": np.full(120, "one")}}
    single = fedshed.fit(
        alone, Study(family="linear", target="y", columns=("x",), cluster="c"), errors="cluster"
    )
    assert np.isnan(single.inference.std_err(robust="cluster")).all()
    assert fedshed.Model.load(single.save(tmp_path / "model.json")).coefficients == single.coefficients


def test_a_term_of_as_many_columns_as_sites_has_no_robust_test():
    """Its covariance is singular: the statistic would be rounding, as large as 1e15."""
    rng = np.random.default_rng(0)
    every = {
        f"s{i}": {"g": rng.choice([f"g{k}" for k in range(13)], 80), "y": rng.normal(size=80)}
        for i in range(12)
    }
    model = fedshed.fit(every, Study(family="linear", target="y"))
    assert 0 < model.anova()["g"].p_value < 1
    assert np.isnan(model.anova(robust=True)["g"].p_value)
    assert "no test" in str(model.anova(robust=True))


def test_an_interval_is_withheld_where_the_errors_it_needs_are():
    every = tables()
    model = fedshed.fit(every, Study(family="linear", formula="y ~ x + C(s)"))
    found = model.predict_interval(every["s03"], robust=True)
    assert np.isnan(found.std_err).all()
    with pytest.raises(fedshed.ConfigError, match="level must be between"):
        model.predict_interval(every["s03"], level=1.5)


def test_squares_that_no_rows_can_have_are_refused():
    from fedshed.linalg.arrays import pack
    from fedshed.solve.scatter import Scattered

    with pytest.raises(ValueError, match="not negative in any direction"):
        Scattered(pack(np.array([[1.0, 0.0], [0.0, -1.0]])))
