"""Degrees of freedom of a linear model with a random intercept: by level, as R's nlme has them.

The values of nlme are those that tests/oracles/random_intercept.R wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student_t

import fedshed
from fedshed import Study
from fedshed.inference.random_linear import SiteSums
from fedshed.linalg.arrays import pack

ORACLES = Path(__file__).parents[1] / "oracles"
NLME = json.loads((ORACLES / "random_intercept.json").read_text())
SETS = {
    "orthodont": ("Subject", "distance ~ age + C(Sex)", {"Sex": "Male"}),
    "bodyweight": ("Rat", "weight ~ Time + C(Diet)", {"Diet": 1}),
}
NAMES = {
    "intercept": "(Intercept)", "C(Sex)[Female]": "SexFemale", "C(Diet)[2]": "Diet2", "C(Diet)[3]": "Diet3",
    "Sex[Female]": "SexFemale", "Diet[2]": "Diet2", "Diet[3]": "Diet3", "C(Sex)": "Sex", "C(Diet)": "Diet",
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(SETS))
def fitted(request):
    site, formula, references = SETS[request.param]
    rows = pd.read_csv(ORACLES / f"{request.param}.csv", dtype={site: str})
    tables = {name: rows[rows[site] == name].drop(columns=site) for name in rows[site].unique()}
    study = Study(family="linear", formula=formula, references=references, random_intercept=True)
    return fedshed.fit(tables, study), NLME[request.param], tables, study


def test_every_coefficient_has_the_t_and_the_p_value_of_nlme(fitted):
    model, nlme, *_ = fitted
    it = model.inference
    for name, row, df in zip(it.names, it.table().tolist(), it.freedoms(), strict=True):
        theirs = nlme["coefficients"][NAMES.get(name, name)]
        assert df == theirs["DF"]
        np.testing.assert_allclose(row[:2], [theirs["Value"], theirs["Std.Error"]], rtol=1e-6)
        assert row[3] == pytest.approx(theirs["p-value"], rel=2e-4)
        reach = student_t.ppf(0.975, theirs["DF"]) * theirs["Std.Error"]
        np.testing.assert_allclose(row[4:], theirs["Value"] + np.array([-reach, reach]), rtol=1e-5)


def test_terms_contrasts_and_the_summary_have_the_same_degrees(fitted):
    model, nlme, *_ = fitted
    for test in model.anova().tests:
        theirs = nlme["terms"][NAMES.get(test.name, test.name)]
        assert (test.df, test.df_resid) == (theirs["numDF"], theirs["denDF"])
        assert test.statistic == pytest.approx(theirs["F-value"], rel=1e-5)
    it = model.inference
    assert it.freedom() == min(it.freedoms())
    between = next(name for name in it.names if "[" in name)
    within = next(name for name in it.names if name in ("age", "Time"))
    row = np.array([[float(name in (between, within)) for name in it.names]])
    both = it.transformed(row, ["sum"])
    assert both.freedoms() == [it.freedom()]  # a combination has the smaller of the two
    said = " ".join(str(model.summary()).split())
    assert f"{it.freedom():.0f} for {between}" in said
    assert "as R's nlme does" in said
    assert f"{max(it.freedoms()):.0f} for the others" in said


def test_units_do_not_change_the_level_of_a_column(fitted):
    model, _, tables, study = fitted
    again = fedshed.fit(tables, fedshed.preparation.study_of({
        "family": "linear", "formula": study.formula, "references": dict(study.references),
        "random_intercept": True, "standardize": True,
    }))  # fmt: skip
    np.testing.assert_array_equal(again.inference.freedoms(), model.inference.freedoms())
    np.testing.assert_allclose(again.inference.p_values(), model.inference.p_values(), rtol=1e-6)


def test_too_few_sites_for_a_column_that_does_not_vary_within_them_give_no_test():
    rng = np.random.default_rng(0)
    tables = {
        site: pd.DataFrame({"x": rng.normal(size=9), "arm": float(k), "y": rng.normal(size=9) + k * k})
        for k, site in enumerate(("a", "b"))
    }
    it = fedshed.fit(tables, Study(family="linear", target="y", random_intercept=True)).inference
    assert dict(zip(it.names, it.freedoms(), strict=True)) == {"x": 15, "arm": 0, "intercept": 15}
    p = dict(zip(it.names, it.p_values(), strict=True))
    assert np.isnan(p["arm"])
    assert p["x"] <= 1


def test_predictions_without_degrees_of_freedom_say_why_they_have_no_intervals():
    tables = {site: table.drop(columns="stamp") for site, table in stamped("year", 0, 2).items()}
    model = fedshed.fit(tables, Study(family="linear", target="y", random_intercept=True))
    with pytest.warns(
        fedshed.inference.FewSitesWarning, match="constant at each site, and there are too few"
    ):
        told = model.predict_interval(tables["s0"])
    assert np.isnan(told.low).all()
    assert np.isfinite(told.mean).all()


def simulated(rng, tau, rows, arms):
    """What six sites or more say at theta = 0, without an effect of the arm, which is constant at each."""
    said = {}
    for k, (size, arm) in enumerate(zip(rows, arms, strict=True)):
        x = rng.normal(size=size)
        y = 0.5 * x + tau * rng.normal() + rng.normal(size=size)
        X = np.column_stack([x, np.full(size, arm), np.ones(size)])
        said[f"s{k}"] = SimpleNamespace(
            weight=float(size), information=pack(X.T @ X / size), gradient=-X.T @ y / size,
            loss=float(y @ y) / 2 / size,
        )  # fmt: skip
    return SiteSums(np.zeros(3), said, float(sum(rows)), np.array([True, False, False]))


def rejected(tau, rows, arms, freedom, draws=2000):
    """How often the effect of the arm is significant at 5 %, by degrees of freedom from the sums."""
    rng, count = np.random.default_rng(3), 0
    for _ in range(draws):
        sums = simulated(rng, tau, rows, arms)
        theta, Q, M = sums.best(sums.ratio)
        t = theta[1] / np.sqrt(Q / sums.freedom * np.linalg.inv(M)[1, 1])
        count += 2 * student_t.sf(abs(t), freedom(sums)) < 0.05
    return count / draws


@pytest.mark.parametrize(
    "rows", [(20,) * 6, (8, 12, 20, 30, 50, 80)], ids=["sites of one size", "sites of 8 to 80 rows"]
)
def test_a_covariate_of_six_sites_has_a_type_i_error_near_five_percent(rows):
    """The simulation has a standard error of 0.5 %; N - k degrees of freedom would give twice as much."""
    arms = (0.0, 1.0, 0.0, 1.0, 0.0, 1.0)
    by_level = rejected(1.0, rows, arms, lambda sums: sums.freedom_by_level()[1])
    assert 0.035 <= by_level <= 0.065
    assert rejected(1.0, rows, arms, lambda sums: sums.freedom) > 0.09


def stamped(kind, seed=1, sites=6):
    """Tables with a column that is large where it varies little, or that is constant at each site."""
    rng = np.random.default_rng(seed)
    tables = {}
    for k in range(sites):
        stamp = {
            "year": 2020.0 + rng.integers(0, 2, 30), "number": 1e7 * (k + 1) + rng.integers(-1, 2, 30),
            "time": 1.7e9 + rng.integers(-100, 101, 30), "place": np.full(30, 1e6 + k / 3),
        }[kind]  # fmt: skip
        x = rng.normal(size=30)
        y = x + rng.normal() + rng.normal(size=30)
        tables[f"s{k}"] = pd.DataFrame({"stamp": stamp, "arm": 0.1 * (k % 2), "x": x, "y": y})
    return tables


@pytest.mark.parametrize("kind", ["year", "number", "time", "place"])
@pytest.mark.parametrize("way", ["study", "estimator"])
def test_a_column_that_hardly_varies_or_is_large_is_at_the_right_level(kind, way):
    """The sums of squares at a site do not tell: 1e7 +- 1 has a variance below their rounding."""
    tables = stamped(kind)
    if way == "study":
        study = Study(family="linear", target="y", random_intercept=True, standardize=kind == "time")
        it = fedshed.fit(tables, study).inference
    else:
        X = np.vstack([table[["stamp", "arm", "x"]] for table in tables.values()])
        X[:, 0] = (X[:, 0] - X[:, 0].mean()) / X[:, 0].std()
        y, site = np.concatenate([t.y for t in tables.values()]), np.repeat(list(tables), 30)
        it = fedshed.FederatedLinearRegression(random_intercept=True).fit(X, y, sites=site).inference_
    if kind == "place":
        assert it.freedoms().tolist() == [3, 3, 173, 173]
    else:
        assert it.freedoms().tolist() == [172, 4, 172, 172]


def test_sites_that_the_columns_tell_apart_leave_nothing_for_tau():
    """Two sites and a column that is constant at each: tau has no information, whatever the data."""
    for seed in range(6):
        tables = {site: table.drop(columns="stamp") for site, table in stamped("year", seed, 2).items()}
        it = fedshed.fit(tables, Study(family="linear", target="y", random_intercept=True)).inference
        assert (it.nuisance.value, it.nuisance.interval) == (0.0, None)
        assert "nothing is left from which tau could be estimated" in it.nuisance.note
        pooled = pd.concat(tables.values())
        X = np.column_stack([pooled[["arm", "x"]], np.ones(len(pooled))])
        within = np.linalg.lstsq(X, pooled.y, rcond=None)[0]
        np.testing.assert_allclose(dict(zip(it.names, it.coef, strict=True))["x"], within[1], rtol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_an_interval_of_tau_has_an_end_or_a_reason(seed):
    """Three sites and a column that is constant at each leave one degree of freedom for tau."""
    tables = {site: table.drop(columns="stamp") for site, table in stamped("year", seed, 3).items()}
    own = fedshed.fit(tables, Study(family="linear", target="y", random_intercept=True)).inference.nuisance
    if own.interval is None:
        assert "tau has no interval" in own.note
    else:
        assert 0 <= own.interval[0] <= own.value < own.interval[1] < 1e6 * max(own.value, 1.0)
