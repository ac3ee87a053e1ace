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
    return SiteSums(np.zeros(3), said, float(sum(rows)))


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


def test_a_column_that_hardly_varies_or_is_large_is_at_the_right_level():
    rng = np.random.default_rng(1)
    said = {}
    for k in range(6):
        year = 2020.0 + rng.integers(0, 2, size=30)
        X = np.column_stack([year, np.full(30, 1e6 + k / 3), np.full(30, 0.1 * (k % 2)), np.ones(30)])
        said[f"s{k}"] = SimpleNamespace(
            weight=30.0, information=pack(X.T @ X / 30), gradient=np.zeros(4), loss=1.0
        )
    assert SiteSums(np.zeros(4), said, 180.0).freedom_by_level().tolist() == [173, 3, 3, 173]
