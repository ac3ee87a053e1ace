"""The profile interval of the spread of a random intercept: R, with the likelihood written out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fitting.test_random_intercept import herds

import fedshed
from against_r import R, rows_of, tables_of
from fedshed import Study
from fedshed.tables import split


@pytest.mark.parametrize(
    ("name", "table", "site", "formula"),
    [
        ("tau_orthodont", "orthodont", "Subject", "distance ~ age + Sex"),
        ("tau_dyestuff2", "dyestuff2", "Batch", "Yield ~ 1"),
        ("tau_birthwt", "birthwt", "race", "bwt ~ age + lwt"),
    ],
)
def test_the_interval_of_tau_of_a_linear_model_is_that_of_the_restricted_profile_likelihood(
    name, table, site, formula
):
    study = Study(family="linear", formula=formula, random_intercept=True)
    tau = fedshed.fit(tables_of(table, site), study, tol=1e-10).inference.nuisance
    theirs = R[name]
    np.testing.assert_allclose(tau.value, theirs["tau"], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(tau.interval, [theirs["low"], theirs["high"]], rtol=1e-5, atol=1e-9)
    assert any(
        "by profile restricted likelihood" in words and "from the same." in words for words in tau.in_words()
    )


def test_the_interval_of_tau_of_a_binomial_model_is_that_of_lme4s_profile():
    """confint(glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, nAGQ = 25))."""
    study = Study(
        family="binomial", target="incidence", trials="size", columns=("period",), random_intercept=True
    )
    tau = fedshed.fit(herds(), study).inference.nuisance
    theirs = R["tau_cbpp"]
    np.testing.assert_allclose(
        [tau.value, *tau.interval], [theirs[k] for k in ("tau", "low", "high")], rtol=1e-3
    )


def test_the_interval_of_a_tau_of_0_begins_at_0():
    """confint(glmer(work ~ hincome + children + (1 | region), Womenlf, binomial, nAGQ = 25))."""
    rows = rows_of("womenlf")
    tables = split(rows.assign(work=(rows["partic"] != "not.work").astype(int)), "region")
    study = Study(family="logistic", target="work", columns=("hincome", "children"), random_intercept=True)
    model = fedshed.fit(tables, study)
    tau = model.inference.nuisance
    assert tau.value == 0.0
    np.testing.assert_allclose(tau.interval, [0.0, R["tau_womenlf"]["high"]], rtol=1e-3)
    assert "95 % interval 0 to 0.446" in " ".join(str(model.summary()).split())
