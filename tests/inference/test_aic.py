"""Which constant the AIC has where the dispersion is estimated: R's values, and how they follow from ours."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from against_r import R, rows_of, tables_of
from fedshed import Study


@pytest.mark.parametrize(
    ("name", "table", "site", "formula"),
    [
        ("aic_linear_birthwt", "birthwt", "race", "bwt ~ age + lwt"),
        ("aic_linear_swiss", "swiss", "half", "Fertility ~ Education + Catholic"),
    ],
)
def test_rs_aic_of_a_linear_model_counts_the_dispersion(name, table, site, formula):
    half = {"half": np.arange(len(rows_of(table))) % 3 > 0} if site == "half" else {}
    model = fedshed.fit(tables_of(table, site, **half), Study(family="linear", formula=formula), tol=1e-10)
    assert R[name] == pytest.approx(model.inference.aic + 2, rel=1e-9)
    assert "R's AIC, which does, is larger by 2" in " ".join(str(model.summary()).split())


@pytest.mark.parametrize(
    ("name", "table", "site", "formula"),
    [
        ("aic_inverse_prestige", "prestige", "type", "income ~ education + women"),
        ("aic_inverse_birthwt", "birthwt", "race", "bwt ~ age + lwt"),
    ],
)
def test_rs_aic_of_an_inverse_gaussian_model_is_at_another_dispersion(name, table, site, formula):
    study = Study(family="inverse-gaussian", formula=formula)
    model = fedshed.fit(tables_of(table, site), study, tol=1e-10)
    it, theirs = model.inference, R[name]
    assert it.deviance == pytest.approx(theirs["deviance"], rel=1e-8)
    N, logs = it.observations, float(np.log(rows_of(table)[study.target]).sum())
    at_theirs = N * (np.log(2 * np.pi * it.deviance / N) + 1) + 3 * logs
    assert theirs["aic"] == pytest.approx(at_theirs + 2 * (it.parameters + 1), rel=1e-9)
    at_ours = N * np.log(2 * np.pi * it.dispersion) + it.deviance / it.dispersion + 3 * logs
    assert it.aic == pytest.approx(at_ours + 2 * it.parameters, rel=1e-9)
    assert "R's AIC counts it and is at the deviance" in " ".join(str(model.summary()).split())
