"""Cox regression is stratified by site, and says so: it is R's coxph with strata(site), not without."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedshed
from fedshed import Study

ROOT = Path(__file__).parents[2]
ORACLES = ROOT / "tests" / "oracles"
COXPH = json.loads((ORACLES / "proportional_hazards.json").read_text())
MORE = {"small_sites": {}, "pbc": {"ties": "breslow"}}


def tables(name):
    rows = pd.read_csv(ORACLES / f"{name}.csv")
    return {site: mine.drop(columns="site") for site, mine in rows.groupby("site")}


@pytest.fixture(scope="module", params=sorted(MORE))
def fitted(request):
    name = request.param
    columns = tuple(COXPH[name]["names"])
    study = Study(family="cox", time="time", event="status", columns=columns, **MORE[name])
    return fedshed.fit(tables(name), study), COXPH[name]


def test_estimates_and_errors_are_those_with_strata_and_not_those_without(fitted):
    model, coxph = fitted
    it, shared = model.inference, coxph["shared"]
    np.testing.assert_allclose(it.coef, coxph["coef"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(it.std_err(), coxph["se"], rtol=1e-6)
    assert (np.abs(it.coef - shared["coef"]) > 0.1 * it.std_err()).any()
    assert (it.std_err() > shared["se"]).all()


def test_the_summary_says_that_each_site_has_its_own_baseline_hazard(fitted):
    model, _ = fitted
    said = " ".join(str(model.summary()).split())
    assert "Baseline hazards: one per site" in said
    assert "The model is stratified by site: each site has its own baseline hazard" in said
    assert "one baseline hazard for the rows of all sites has other estimates" in said


def test_a_single_site_has_no_strata_to_speak_of():
    rows = pd.read_csv(ORACLES / "pbc.csv").drop(columns="site")
    study = Study(
        family="cox", time="time", event="status", ties="breslow", columns=tuple(COXPH["pbc"]["names"])
    )
    model = fedshed.fit({"one": rows}, study)
    np.testing.assert_allclose(model.inference.coef, COXPH["pbc"]["shared"]["coef"], rtol=1e-6, atol=1e-8)
    assert "stratified" not in str(model.summary())


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/survival.md", "docs/choose.md"])
def test_pages_that_speak_of_pooled_training_or_of_cox_name_the_exception(page):
    assert "stratified by site" in " ".join((ROOT / page).read_text().replace("[", "").split())
