"""Cox regression at very unequal sites is that of statsmodels and lifelines with sites as strata."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_lung, load_rossi
from lifelines.utils import concordance_index
from msgspec.structs import replace
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedshed
from calls import call
from fedshed import ConfigError, DataError, FederatedCox, Model, Study, fit
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange.inprocess import InProcess
from fedshed.privacy.policy import Policy
from fedshed.tables.survival import survival
from naive_cox import partial_likelihood

NEAR = 1e-7
OPEN = Policy(
    min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_parameters_per_row=10.0, effective_rows=1,
    max_deviance=1e300, max_curvature=1e9, max_numbers=1e9,
)  # fmt: skip


def rossi():
    return load_rossi(), "week", "arrest"


def lung():
    return load_lung().drop(columns="inst").dropna().reset_index(drop=True), "time", "status"


def gbsg2():
    data = load_gbsg2()
    coded = data.assign(horTh=data.horTh == "yes", menostat=data.menostat == "Post").drop(columns="tgrade")
    return coded.astype(float), "time", "cens"


DATA = {"rossi": rossi, "lung": lung, "gbsg2": gbsg2}


def dealt(data, seed=0):
    """Three sites, of 5, 20 and 75 per cent of the rows; the first has no event."""
    return np.random.default_rng(seed).choice(["a", "b", "c"], len(data), p=[0.05, 0.2, 0.75])


def tables(data, sites):
    return {str(site): data[sites == site] for site in np.unique(sites)}


def lifelines_fit(data, time, event, sites, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CoxPHFitter()
        return model.fit(
            data.assign(site=sites), time, event, strata="site", fit_options={"precision": 1e-12}, **more
        )


@pytest.mark.parametrize(
    ("name", "ties"), [("rossi", "efron"), ("rossi", "breslow"), ("lung", "breslow"), ("gbsg2", "efron")]
)
def test_a_fit_is_that_of_statsmodels_with_sites_as_strata(name, ties):
    data, time, event = DATA[name]()
    sites = dealt(data)
    data.loc[sites == "a", event] = 0
    model = fit(tables(data, sites), Study(family="cox", time=time, event=event, ties=ties))
    X = data.drop(columns=[time, event])
    theirs = sm.PHReg(data[time], X, status=data[event], strata=sites, ties=ties).fit(tol=1e-13)
    scale = X.std().to_numpy()
    assert model.converged, model.run.reason
    np.testing.assert_allclose(model.inference.coef * scale, theirs.params * scale, atol=NEAR)
    np.testing.assert_allclose(model.inference.std_err(), theirs.bse, rtol=NEAR)
    np.testing.assert_allclose(model.inference.log_likelihood, theirs.llf, rtol=NEAR)
    assert model.inference.aic == -2 * model.inference.log_likelihood + 2 * X.shape[1]
    assert model.inference.survival.events == data[event].sum()


def test_entry_times_are_those_of_statsmodels():
    """Heart transplants: patients are under observation from their acceptance on."""
    heart = sm.datasets.heart.load_pandas()
    data = heart.data.rename(columns={"censors": "died"})
    data = data[data.survival > 0].reset_index(drop=True)
    rng = np.random.default_rng(1)
    data["entry"] = data.survival * rng.uniform(0, 0.9, len(data))  # never at the time of an event
    sites = dealt(data)
    study = Study(family="cox", time="survival", event="died", entry="entry", columns=("age",))
    model = fit(tables(data, sites), study)
    theirs = sm.PHReg(
        data.survival, data[["age"]], status=data.died, entry=data.entry, strata=sites, ties="efron"
    ).fit(tol=1e-13)
    np.testing.assert_allclose(model.inference.coef, theirs.params, atol=NEAR)
    np.testing.assert_allclose(model.inference.std_err(), theirs.bse, rtol=NEAR)
    np.testing.assert_allclose(model.inference.log_likelihood, theirs.llf, rtol=NEAR)


def test_weights_and_further_strata_are_those_of_lifelines():
    data, time, event = rossi()
    sites = dealt(data)
    data["w"] = np.random.default_rng(2).uniform(0.5, 3.0, len(data))
    study = Study(family="cox", time=time, event=event, weight="w", strata=("race", "mar"))
    model = fit(tables(data, sites), study)
    both = [f"{s}{r}{m}" for s, r, m in zip(sites, data.race, data.mar, strict=True)]
    theirs = lifelines_fit(data.drop(columns=["race", "mar"]), time, event, both, weights_col="w")
    np.testing.assert_allclose(model.inference.coef, theirs.params_, atol=NEAR)
    np.testing.assert_allclose(model.inference.log_likelihood, theirs.log_likelihood_, rtol=NEAR)


def test_robust_errors_are_those_of_lifelines():
    """lifelines counts tied events one by one in them, so the times have no ties here."""
    data, time, event = rossi()
    sites = dealt(data)
    data[time] += np.random.default_rng(3).uniform(0, 0.5, len(data))
    data["w"] = np.random.default_rng(2).uniform(0.5, 3.0, len(data))
    plain = Study(family="cox", time=time, event=event, weight="w")
    rows = fit(tables(data, sites), plain, errors="HC0").inference.std_err("HC0")
    theirs = lifelines_fit(data, time, event, sites, weights_col="w", robust=True)
    np.testing.assert_allclose(rows, theirs.standard_errors_, rtol=NEAR)
    data["id"] = [f"{site}{k // 2}" for k, site in enumerate(sites)]
    grouped = Study(family="cox", time=time, event=event, weight="w", cluster="id")
    ours = fit(tables(data, sites), grouped, errors="cluster").inference.std_err("cluster")
    theirs = lifelines_fit(data, time, event, sites, weights_col="w", cluster_col="id")
    np.testing.assert_allclose(ours, theirs.standard_errors_, rtol=NEAR)


@pytest.fixture(scope="module")
def rossi_fit():
    data, time, event = rossi()
    sites = dealt(data)
    return data, sites, fit(tables(data, sites), Study(family="cox", time=time, event=event))


def test_concordance_is_harrells_within_sites(rossi_fit):
    data, sites, model = rossi_fit
    risk = model.predict(data)
    pairs, right = 0.0, 0.0
    for site in np.unique(sites):
        mine = data[sites == site]
        events = mine.arrest.to_numpy() == 1
        for t, e in zip(mine.week.to_numpy()[events], risk[sites == site][events], strict=True):
            later = (mine.week > t) | ((mine.week == t) & (mine.arrest == 0))
            others = risk[sites == site][later]
            pairs += len(others)
            right += (e > others).sum() + 0.5 * (e == others).sum()
    np.testing.assert_allclose(model.inference.survival.concordance, right / pairs, rtol=1e-12)
    alone = fit({"c": data[sites == "c"]}, model.plan.study)
    mine = data[sites == "c"]
    theirs = concordance_index(mine.week, -alone.predict(mine), mine.arrest)
    np.testing.assert_allclose(alone.inference.survival.concordance, theirs, rtol=1e-12)


def test_the_test_of_proportional_hazards_is_a_score_test_of_pooled_rows(rossi_fit):
    """gamma = 0 in the hazard ratio theta + gamma t (Grambsch and Therneau 1994)."""
    data, sites, model = rossi_fit
    X, theta = data.drop(columns=["week", "arrest"]).to_numpy(float), model.inference.coef
    U, cross, square, information = np.zeros(7), np.zeros((7, 7)), np.zeros((7, 7)), np.zeros((7, 7))
    for site in np.unique(sites):
        mine = sites == site
        y = survival(data.week[mine], data.arrest[mine])
        _, _, H, sums = partial_likelihood(X[mine], y, np.ones(mine.sum()), X[mine] @ theta, g=float)
        U, cross, square = U + sums[0], cross + sums[1], square + sums[2]
        information = information + H
    facts = model.inference.survival
    within = square - cross @ np.linalg.solve(information, cross)
    np.testing.assert_allclose(facts.proportional_global.statistic, U @ np.linalg.solve(within, U), rtol=1e-6)
    np.testing.assert_allclose([t.statistic for t in facts.proportional], U**2 / np.diag(within), rtol=1e-6)


def test_a_summary_has_hazard_ratios_and_nothing_that_a_cox_model_lacks(rossi_fit, tmp_path):
    data, _, model = rossi_fit
    text = str(model.summary(exp=True))
    assert "hazard ratio" in text
    assert "Concordance" in text
    assert not any(word in text for word in ("Pearson", "Dispersion", "Df residuals"))
    rows = list(csv.DictReader(io.StringIO(model.to_csv())))
    assert [row["name"] for row in rows] == list(data.columns.drop(["week", "arrest"]))
    again = Model.load(model.save(tmp_path / "model.json"))
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    ratio = model.predict(data.iloc[:1].assign(prio=5)) / model.predict(data.iloc[:1].assign(prio=4))
    np.testing.assert_allclose(ratio, np.exp(model.coefficients["prio"]))
    assert str(again.summary()) == str(model.summary())


def test_a_formula_with_categories_and_standardized_columns_is_the_same_model():
    data, time, event = rossi()
    sites = dealt(data)
    named = data.assign(race=np.where(data.race == 1, "black", "other"))
    formula = Study(family="cox", formula="week ~ fin + age + C(race)", event="arrest", standardize=True)
    ours = fit(tables(named, sites), formula)
    plain = fit(
        tables(data, sites), Study(family="cox", time=time, event=event, columns=("fin", "age", "race"))
    )
    assert ours.plan.study.time == "week"
    assert ours.coefficients["race[other]"] == pytest.approx(-plain.coefficients["race"], abs=NEAR)
    assert ours.coefficients["age"] == pytest.approx(plain.coefficients["age"], abs=NEAR)


# --- commands, estimator, deployed, protected -----------------------------------------------------------


def test_the_command_line_fits_with_text_events_and_missing_rows(tmp_path):
    data, *_ = rossi()
    sites = dealt(data)
    text = data.assign(arrest=np.where(data.arrest == 1, "yes", "no"), entry=-1.0)
    text.loc[3, "arrest"] = np.nan
    files = []
    for site, table in tables(text, sites).items():
        files.append(tmp_path / f"{site}.csv")
        table.to_csv(files[-1], index=False)
    options = ["--family", "cox", "--time", "week", "--event", "arrest", "--positive", "yes"]
    more = ["--missing", "drop", "--entry", "entry", "--strata", "mar", "--exp", "--out", tmp_path / "out"]
    done = call("fit", *files, *options, *more)
    assert done.exit_code == 0, done.output
    assert "hazard ratio" in done.output
    assert (tmp_path / "out" / "report.html").exists()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "coefficients.csv").read_text())))
    kept = data.drop(index=3)
    study = Study(family="cox", time="week", event="arrest", strata=("mar",))
    want = fit(tables(kept, np.delete(sites, 3)), study).coefficients
    assert {row["name"]: float(row["estimate"]) for row in rows} == pytest.approx(want, abs=NEAR)
    assert call("fit", *files, "--family", "cox", "--time", "week").exit_code == 2


# With Efron's ties a row of weight 2 is not the row twice, as in R: its ties would be others.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([FederatedCox(ties="breslow")])
def test_scikit_learn_contract_of_cox(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def test_the_estimator_is_the_fit_whatever_the_form_of_its_responses(rossi_fit, tmp_path):
    data, sites, model = rossi_fit
    X = data.drop(columns=["week", "arrest"])
    pairs = data[["week", "arrest"]].to_numpy()
    records = np.array(list(zip(data.arrest == 1, data.week, strict=True)), dtype=[("e", bool), ("t", float)])
    late = np.column_stack([np.full(len(data), -1.0), pairs])
    fitted = [FederatedCox(l2=0.0, tol=1e-10).fit(X, y, sites=sites) for y in (pairs, records, late)]
    for one in fitted:
        np.testing.assert_allclose(one.coef_, model.inference.coef, atol=NEAR)
    again = fedshed.estimators.load(fitted[0].save(tmp_path / "cox.json"))
    assert again.score(X, pairs, sites=sites) == pytest.approx(model.inference.survival.concordance)
    assert again.score(X, pairs) == pytest.approx(
        concordance_index(data.week, -again.predict(X), data.arrest)
    )
    apart = FederatedCox(l2=0.0, tol=1e-10).fit(X, pairs, strata=sites)
    np.testing.assert_allclose(apart.coef_, model.inference.coef, atol=NEAR)
    with pytest.raises(DataError, match="must be 0 or 1"):
        FederatedCox().fit(X, np.column_stack([data.week, data.week]))
    with pytest.raises(ConfigError, match="ties must be"):
        FederatedCox(ties="exact").fit(X, pairs)


def deployed(folder, data, study, disclosure=OPEN):
    nodes = {}
    for site, table in data.items():
        table.to_csv(Path(folder) / f"{site}.csv", index=False)
        file = SiteFile(
            name=site, table=Source(csv=f"{site}.csv"), disclosure=disclosure, state=f"{site}.state",
            audit=f"{site}.log", any_study=True,
        )  # fmt: skip
        nodes[site] = Node(file, Path(folder))
    return conduct_study(StudyFile(study, tuple(data)), InProcess(nodes))[0]


def test_a_deployed_study_is_the_fit_and_the_default_policy_lets_it_pass(rossi_fit, tmp_path):
    data, _, _ = rossi_fit
    sites = np.random.default_rng(5).choice(["a", "b", "c"], len(data), p=[0.3, 0.3, 0.4])
    study = Study(family="cox", time="week", event="arrest", columns=("fin", "age", "prio"))
    plain = fit(tables(data, sites), study)
    model = deployed(tmp_path, tables(data, sites), study, Policy())
    np.testing.assert_allclose(model.inference.coef, plain.inference.coef, atol=NEAR)
    assert model.inference.survival.concordance == pytest.approx(plain.inference.survival.concordance)
    (tmp_path / "few").mkdir()
    few = data.copy()
    few.loc[(sites == "a") & (few.arrest == 1), "arrest"] = [1, 1] + [0] * (
        ((sites == "a") & (few.arrest == 1)).sum() - 2
    )
    with pytest.raises(fedshed.ProtocolError, match="min_rows_per_class"):
        deployed(tmp_path / "few", tables(few, sites), study, Policy())


def test_a_monotone_likelihood_of_a_deployed_study_is_not_called_converged(tmp_path):
    rng = np.random.default_rng(2)
    data = pd.DataFrame({"x": rng.normal(size=300), "level": (np.arange(300) % 10 == 0).astype(float)})
    data["t"] = rng.uniform(1, 9, 300)
    data["d"] = ((rng.random(300) < 0.7) & (data.level == 0)).astype(int)
    model = deployed(tmp_path, tables(data, np.array(["a", "b", "c"])[np.arange(300) % 3]), Study(
        family="cox", time="t", event="d"
    ))  # fmt: skip
    assert not model.converged
    assert "level" in model.run.reason


def test_a_protected_fit_is_the_plain_one(rossi_fit):
    data, _, _ = rossi_fit
    sites = np.array(["a", "b", "c"])[np.arange(len(data)) % 3]
    study = Study(family="cox", time="week", event="arrest", columns=("fin", "age", "prio"))
    plain = fit(tables(data, sites), study, algorithm="newton")
    masked = fit(tables(data, sites), replace(study, protected=True))
    np.testing.assert_allclose(masked.inference.coef, plain.inference.coef, atol=1e-6)
    np.testing.assert_allclose(masked.inference.std_err(), plain.inference.std_err(), rtol=1e-6)
    assert masked.inference.survival.concordance == pytest.approx(plain.inference.survival.concordance)
    assert masked.inference.log_likelihood == pytest.approx(plain.inference.log_likelihood)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"event": None}, "needs the column that says whether the event happened"),
        ({"time": None}, "names no time"),
        ({"target": "age"}, "give it once, as time"),
        ({"family": "linear", "target": "week", "time": None}, "event is for survival models"),
        ({"family": "linear", "target": "x", "time": None, "event": None, "ties": "breslow"}, "ties is for"),
        ({"ties": "exact"}, "ties cannot be 'exact'"),
        ({"exposure": "age"}, "has no exposure"),
        ({"entry": "week"}, "has two roles"),
    ],
)
def test_a_study_of_times_says_all_and_says_it_once(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Study(**{"family": "cox", "time": "week", "event": "arrest", **fields})


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("t", [-1.0, 2, 3, 4], "column 't' is negative in 1 of 4 rows, but a time must be at least 0"),
        ("d", [0, 1, 2, 1], "column 'd' is neither 0 nor 1 in 1 of 4 rows"),
        ("d", ["yes", "no", "no", "yes"], "column 'd' holds text; say which of its values are events"),
        ("e", [0.0, 2.0, 0, 0], "column 'e' is not below 't' in 1 of 4 rows"),
        ("d", [0, 1, np.nan, 1], "column 'd' is missing in 1 of 4 rows"),
        ("d", [0, 0, 0, 0], "no row of any site has an event"),
    ],
)
def test_times_and_events_that_cannot_be_are_refused_with_site_and_column(column, values, sentence):
    good = {"t": [1.0, 2, 3, 4], "d": [0, 1, 0, 1], "e": [0.0, 0, 0, 0], "x": [0.3, 0.1, 0.5, -0.2]}
    study = Study(family="cox", time="t", event="d", entry="e")
    bad = {**good, column: values}
    other = {**good, "d": [0, 0, 0, 0]} if "no row" in sentence else good
    with pytest.raises(DataError, match=sentence):
        fit({"north": bad, "south": other}, study)
