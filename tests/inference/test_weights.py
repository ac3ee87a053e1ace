"""What weights mean, and which distribution errors are judged by: against statsmodels on pooled rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from msgspec.structs import replace

import fedshed
from against_r import R, rows_of, tables_of
from fedshed import ConfigError, DataError, Study
from fedshed.exchange.sites import LocalSites
from fedshed.inference import infer
from fedshed.solve.optimize import build_problem

RNG = np.random.default_rng(7)
N = 400
X = RNG.normal(size=(N, 2))
SITES = RNG.choice(["a", "b", "c", "d", "e", "f"], size=N, p=[0.02, 0.08, 0.1, 0.2, 0.25, 0.35])
WEIGHTS = RNG.uniform(0.2, 5.0, N)
FULL = np.column_stack([X, np.ones(N)])


def by_site(**columns):
    """A table for each site."""
    every = {"x1": X[:, 0], "x2": X[:, 1], **columns}
    return {
        site: {name: values[site == SITES] for name, values in every.items()} for site in np.unique(SITES)
    }


def fit(study, **columns):
    return fedshed.fit(by_site(**columns), study, tol=1e-11)


RESPONSES = {
    "linear": (X @ [1.0, -0.5] + RNG.normal(size=N) / np.sqrt(WEIGHTS), sm.families.Gaussian()),
    "gamma": (RNG.gamma(4.0, np.exp(X @ [0.3, -0.2]) / 4), sm.families.Gamma(sm.families.links.Log())),
    "poisson": (RNG.poisson(WEIGHTS * np.exp(X @ [0.3, -0.2])) / WEIGHTS, sm.families.Poisson()),
}


@pytest.mark.parametrize("family", RESPONSES)
@pytest.mark.parametrize("kind", ["precision", "frequency"])
def test_errors_by_the_type_of_weights_are_those_of_statsmodels(family, kind):
    y, theirs = RESPONSES[family]
    weights = WEIGHTS if kind == "precision" else np.ceil(WEIGHTS)
    study = Study(family=family, target="y", weight="w", weight_type=kind)
    ours = fit(study, y=y, w=weights).inference
    name = "var_weights" if kind == "precision" else "freq_weights"
    pooled = sm.GLM(y, FULL, theirs, **{name: weights}).fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose(ours.coef, pooled.params, rtol=1e-7)
    np.testing.assert_allclose(ours.std_err(), pooled.bse, rtol=1e-7)
    np.testing.assert_allclose([ours.df_resid, ours.df_model], [pooled.df_resid, pooled.df_model])
    np.testing.assert_allclose([ours.dispersion, ours.deviance], [pooled.scale, pooled.deviance], rtol=1e-7)
    assert ours.weight_type == kind


def test_weighted_least_squares_has_the_likelihood_and_p_values_of_wls():
    y, _ = RESPONSES["linear"]
    ours = fit(
        Study(family="linear", target="y", weight="w", weight_type="precision"), y=y, w=WEIGHTS
    ).inference
    theirs = sm.WLS(y, FULL, weights=WEIGHTS).fit()
    np.testing.assert_allclose([ours.log_likelihood, ours.aic], [theirs.llf, theirs.aic], rtol=1e-10)
    np.testing.assert_allclose(ours.bic, theirs.bic, rtol=1e-10)
    np.testing.assert_allclose(ours.p_values(), theirs.pvalues, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose(ours.conf_int(), theirs.conf_int(), rtol=1e-7)


def test_weights_that_are_no_whole_numbers_are_precisions_unless_said_otherwise():
    y, _ = RESPONSES["gamma"]
    study = Study(family="gamma", target="y", weight="w")
    assert fit(study, y=y, w=WEIGHTS).inference.weight_type == "precision"
    assert fit(study, y=y, w=np.ones(N)).inference.weight_type == "none"
    with pytest.raises(ConfigError, match="may be precisions or count rows"):
        fit(study, y=y, w=np.ceil(WEIGHTS))


WHOLE = {
    "birthwt": ("birthwt", "race", "bwt", ("age", "lwt"), lambda rows: 100 + 50 * rows["ftv"]),
    "mtcars": ("mtcars", "cyl", "mpg", ("wt", "hp"), lambda rows: rows["carb"]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_type_of_whole_number_weights_is_asked_for_with_both_meanings(name):
    """R's lm(weights =) of the rows, and lm of rows that are repeated."""
    table, site, target, columns, weights = WHOLE[name]
    tables, theirs = tables_of(table, site, w=weights), R[f"weights_{name}"]
    study = Study(family="linear", target=target, columns=columns, weight="w")
    with pytest.raises(ConfigError) as error:
        fedshed.fit(tables, study)
    observations = f"{theirs['df_frequency'] + 3:,}", f"{theirs['df_precision'] + 3:,}"
    assert all(f"({count} observations)" in str(error.value) for count in observations)
    for kind in ("precision", "frequency"):
        ours = fedshed.fit(tables, replace(study, weight_type=kind), tol=1e-11).inference
        np.testing.assert_allclose(ours.coef[[2, 0, 1]], theirs["coef"], rtol=1e-8)
        np.testing.assert_allclose(ours.std_err()[[2, 0, 1]], theirs[kind], rtol=1e-8)
        assert ours.df_resid == theirs[f"df_{kind}"]


def test_an_estimator_with_whole_number_weights_has_no_summary_until_their_type_is_given():
    rows = rows_of("mtcars")
    X, y, w = rows[["wt", "hp"]].to_numpy(float), rows["mpg"], rows["carb"]
    given = fedshed.FederatedLinearRegression(l2=0.0, weight_type="frequency").fit(X, y, sample_weight=w)
    unclear = fedshed.FederatedLinearRegression(l2=0.0).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(unclear.coef_, given.coef_, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"sample_weight.*'frequency'.*'precision'"):
        unclear.summary()
    with pytest.raises(ConfigError, match="weight_type"):
        fedshed.FederatedLinearRegression(inference=True).fit(X, y, sample_weight=w)
    assert "Weights are frequencies" in str(given.summary())
    assert unclear.fit(X, y).summary() is not None


def test_weights_whose_sum_is_whole_are_not_said_to_be_whole_numbers():
    """Sites say the sum of their weights before the fit, and no more."""
    x, y = [0.0, 1.0, 2.0, 4.0] * 3, [1.0, 2.0, 0.0, 5.0] * 3
    tables = {site: pd.DataFrame({"x": x, "y": y, "w": [0.5, 2.5] * 6}) for site in "ab"}
    study = Study(family="linear", target="y", columns=("x",), weight="w")
    with pytest.raises(ConfigError, match="may be precisions or count rows: they sum to 36 over 24") as error:
        fedshed.fit(tables, study)
    assert "whole" not in str(error.value)
    assert fedshed.fit(tables, replace(study, weight_type="precision")).inference.observations == 24


def survival_table(seed: int = 4) -> pd.DataFrame:
    """Ninety rows with whole-number weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=90)
    return pd.DataFrame({
        "x": x, "t": rng.exponential(np.exp(-x)), "d": rng.integers(0, 2, 90), "w": rng.integers(1, 5, 90),
        "site": np.repeat(["a", "b", "c"], 30),
    })  # fmt: skip


def test_a_survival_model_is_asked_for_the_type_only_where_errors_depend_on_it():
    rows = survival_table()
    tables = {site: part.drop(columns="site") for site, part in rows.groupby("site")}
    study = Study(family="cox", time="t", event="d", columns=("x",), weight="w")
    unsaid = fedshed.fit(tables, study).inference
    for kind in ("precision", "frequency"):
        said = fedshed.fit(tables, replace(study, weight_type=kind)).inference
        np.testing.assert_array_equal(unsaid.std_err(), said.std_err())
        np.testing.assert_array_equal(unsaid.p_values(), said.p_values())
        assert unsaid.log_likelihood == said.log_likelihood
    assert "the same if weights count rows" in " ".join(str(fedshed.fit(tables, study).summary()).split())
    with pytest.raises(ConfigError, match="weight_type"):
        fedshed.fit(tables, study, errors="HC0")
    y = np.array(list(zip(rows.d > 0, rows.t, strict=True)), dtype=[("event", bool), ("time", float)])
    estimator = fedshed.FederatedCox().fit(rows[["x"]], y, sites=rows.site, sample_weight=rows.w)
    assert estimator.summary() is not None


def test_the_statistics_of_whole_number_weights_are_refused_without_their_type():
    federation = fedshed.Federation.from_arrays(
        X, RESPONSES["linear"][0], SITES, sample_weight=np.ceil(WEIGHTS)
    )
    objectives, problem = build_problem(federation, "least-squares", 0.0, intercept=True)
    with pytest.raises(ConfigError, match="weight_type"):
        infer(LocalSites(objectives), problem, np.zeros(3))


def test_rates_weighted_by_exposure_are_counts_with_an_offset():
    """The same estimates, errors, likelihood and no false overdispersion."""
    exposure = RNG.uniform(0.05, 0.6, N)
    counts = RNG.poisson(exposure * np.exp(1.0 + X @ [0.3, -0.2])).astype(float)
    rates = fit(Study(family="poisson", target="y", weight="t"), y=counts / exposure, t=exposure)
    offset = fit(Study(family="poisson", target="y", exposure="t"), y=counts, t=exposure)
    for name in ("coef", "deviance", "pearson", "log_likelihood", "aic", "bic", "df_resid"):
        np.testing.assert_allclose(
            getattr(rates.inference, name), getattr(offset.inference, name), rtol=1e-8, err_msg=name
        )
    np.testing.assert_allclose(rates.inference.std_err(), offset.inference.std_err(), rtol=1e-7)
    theirs = sm.GLM(counts, FULL, sm.families.Poisson(), offset=np.log(exposure)).fit(tol=1e-14)
    np.testing.assert_allclose(rates.inference.log_likelihood, theirs.llf, rtol=1e-9)
    assert "errors from the model are too small" not in str(rates.summary())
    estimator = fedshed.FederatedPoissonRegressor(l2=0.0).fit(X, counts / exposure, SITES, exposure)
    assert "errors from the model are too small" not in str(estimator.summary())


def test_successes_among_trials_are_statsmodels_binomial():
    trials = RNG.integers(1, 30, N).astype(float)
    successes = RNG.binomial(trials.astype(int), 1 / (1 + np.exp(-X @ [0.8, -0.4]))).astype(float)
    ours = fit(Study(family="binomial", target="s", trials="n"), s=successes, n=trials).inference
    theirs = sm.GLM(np.column_stack([successes, trials - successes]), FULL, sm.families.Binomial()).fit(
        tol=1e-14
    )
    np.testing.assert_allclose(ours.coef, theirs.params, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(ours.std_err(), theirs.bse, rtol=1e-7)
    for name, value in (("deviance", theirs.deviance), ("null_deviance", theirs.null_deviance),
                        ("pearson", theirs.pearson_chi2), ("log_likelihood", theirs.llf),
                        ("df_resid", theirs.df_resid)):  # fmt: skip
        np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-8, err_msg=name)
    rows = np.repeat(np.arange(N), 2)
    long = fedshed.FederatedLogisticRegression(l2=0.0, tol=1e-11, weight_type="frequency").fit(
        X[rows], np.tile([1, 0], N), SITES[rows], np.column_stack([successes, trials - successes]).ravel()
    )
    np.testing.assert_allclose(ours.coef, np.append(long.coef_, long.intercept_), rtol=1e-7, atol=1e-10)


def test_more_successes_than_trials_are_refused_by_name():
    study = Study(family="binomial", target="s", trials="n")
    with pytest.raises(DataError, match=r"site 'a' and 5 more: column 's' exceeds its trials in .* rows"):
        fit(study, s=np.full(N, 3.0), n=np.full(N, 2.0))
    with pytest.raises(ConfigError, match="trials are for the binomial families"):
        Study(family="poisson", target="s", trials="n")
    with pytest.raises(ConfigError, match="give trials or weight, not both"):
        Study(family="binomial", target="s", trials="n", weight="w")


@pytest.mark.parametrize("family", ["quasi-poisson", "quasi-binomial"])
def test_quasi_families_scale_the_errors_by_pearsons_dispersion(family):
    """statsmodels' scale="X2", whose p-values are Student's where the dispersion is estimated."""
    if family == "quasi-poisson":
        y = RNG.negative_binomial(2, 0.3, N).astype(float)
        theirs = sm.GLM(y, FULL, sm.families.Poisson()).fit(scale="X2", tol=1e-14, use_t=True)
        ours = fit(Study(family=family, target="y"), y=y).inference
    else:
        y, n = RNG.integers(0, 11, N).astype(float), np.full(N, 10.0)
        shares = sm.GLM(y / n, FULL, sm.families.Binomial(), var_weights=n)
        theirs = shares.fit(scale="X2", tol=1e-14, use_t=True)
        ours = fit(Study(family=family, target="y", trials="n"), y=y, n=n).inference
    np.testing.assert_allclose(ours.std_err(), theirs.bse, rtol=1e-7)
    np.testing.assert_allclose(ours.p_values(), theirs.pvalues, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose(ours.dispersion, theirs.scale, rtol=1e-8)
    assert ours.log_likelihood is None
    assert ours.aic is None


def test_longley_has_the_p_values_of_ordinary_least_squares():
    data = sm.datasets.longley.load_pandas()
    tables = {
        site: data.data[data.data.index % 2 == k].reset_index(drop=True)
        for k, site in enumerate(("even", "odd"))
    }
    columns = tuple(data.exog.columns)
    study = Study(family="linear", target="TOTEMP", columns=columns, standardize=True)
    model = fedshed.fit(tables, study, tol=1e-6, algorithm="newton")
    theirs = sm.OLS(data.endog, sm.add_constant(data.exog)[[*columns, "const"]]).fit()
    np.testing.assert_allclose(model.inference.p_values(), theirs.pvalues, rtol=1e-4)
    assert "t" in model.summary().columns
    normal = model.inference.p_values(distribution="normal")
    assert (normal < model.inference.p_values()).all()


def test_whole_exposures_of_rates_and_trials_of_shares_are_precisions_too():
    exposure = RNG.integers(1, 9, N).astype(float)
    counts = RNG.poisson(exposure * np.exp(X @ [0.3, -0.2])).astype(float)
    rates = fit(
        Study(family="quasi-poisson", target="y", weight="t", weight_type="precision"),
        y=counts / exposure,
        t=exposure,
    )
    offset = fit(Study(family="quasi-poisson", target="y", exposure="t"), y=counts, t=exposure)
    assert rates.inference.weight_type == "precision"
    np.testing.assert_allclose(rates.inference.std_err(), offset.inference.std_err(), rtol=1e-7)
    successes = RNG.binomial(exposure.astype(int), 0.4).astype(float)
    shares = fit(
        Study(family="quasi-binomial", target="y", weight="n", weight_type="precision"),
        y=successes / exposure,
        n=exposure,
    )
    trials = fit(Study(family="quasi-binomial", target="y", trials="n"), y=successes, n=exposure)
    np.testing.assert_allclose(shares.inference.std_err(), trials.inference.std_err(), rtol=1e-7)


def test_trials_are_counted():
    with pytest.raises(DataError, match="column 'n' is no whole number in"):
        fit(Study(family="binomial", target="s", trials="n"), s=np.ones(N), n=np.full(N, 2.7))
