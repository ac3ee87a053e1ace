"""Sites behind their policies: their own estimates and missing values, in a study that they approved."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import fedshed
from fedshed._utils.errors import ProtocolError
from fedshed.deployment.approval import approve_study
from fedshed.deployment.config import StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.deployment.review import review
from fedshed.exchange import InProcess
from fedshed.preparation import Study
from fedshed.privacy.audit import entries
from fedshed.tables import read_table

SIZES = {"a": 60, "b": 90, "c": 120}
MODEL = Study(family="logistic", target="y", missing="impute", site_estimates=True)
POLICY = "[disclosure]\nmax_curvature = 10\nmax_numbers = 50\n"


@pytest.fixture
def folder(tmp_path):
    """Three sites, two of which miss values of u in 8 rows."""
    rng = np.random.default_rng(0)
    for site, rows in SIZES.items():
        (tmp_path / site).mkdir()
        X = rng.normal(size=(rows, 2))
        y = np.where(X @ [1.0, -1.0] + rng.logistic(size=rows) > 0, 1, 0)
        X[:8, 0] = np.nan if site != "a" else 0.5
        pd.DataFrame(X, columns=list("uv")).assign(y=y).to_csv(tmp_path / site / "table.csv", index=False)
        text = f'name = "{site}"\n[table]\ncsv = "table.csv"\n{POLICY}'
        (tmp_path / site / "site.toml").write_text(text)
    return tmp_path


def conducted(folder, study):
    file = StudyFile(study, tuple(SIZES), algorithm="newton")
    for site in SIZES:
        approve_study(folder / site / "site.toml", file.terms.digest.hex(), file.terms.in_words())
    made = {site: Node.at(folder / site / "site.toml") for site in SIZES}
    return conduct_study(file, InProcess(made))[0]


def test_an_approved_study_ends_as_a_meta_analysis_and_a_fit_here(folder):
    tables = {site: read_table(folder / site / "table.csv") for site in SIZES}
    model, here = conducted(folder, MODEL), fedshed.fit(tables, MODEL, algorithm="newton")
    assert np.array_equal(model.inference.coefficients, here.inference.coefficients)
    assert model.plan.fills == here.plan.fills
    assert {site: count.filled for site, count in model.rows.items()} == {
        "a": {},
        "b": {"u": 8},
        "c": {"u": 8},
    }
    for site in SIZES:
        np.testing.assert_allclose(model.estimates[site].estimate, here.estimates[site].estimate, rtol=1e-9)
        assert any("SiteEstimate" in entry.what for entry in entries(folder / site / "audit.jsonl"))


def test_a_study_that_does_not_ask_is_another_and_never_sends_an_estimate(folder):
    plain = replace(MODEL, site_estimates=False)
    assert StudyFile(plain, tuple(SIZES)).terms.digest != StudyFile(MODEL, tuple(SIZES)).terms.digest
    model = conducted(folder, plain)
    assert not model.estimates
    for site in SIZES:
        assert not any("SiteEstimate" in entry.what for entry in entries(folder / site / "audit.jsonl"))


def test_few_missing_values_are_refused_by_the_site(folder):
    table = pd.read_csv(folder / "a" / "table.csv")
    table.loc[:1, "v"] = np.nan
    table.to_csv(folder / "a" / "table.csv", index=False)
    with pytest.raises(ProtocolError, match="min_rows_per_level"):
        conducted(folder, MODEL)


def test_a_site_sees_before_it_approves_that_its_own_estimate_would_leave(folder):
    shown = review(folder / "b" / "site.toml", StudyFile(MODEL, tuple(SIZES)))
    assert not shown.broken
    said = {item.what: item.numbers for item in shown.items}
    assert said["its own estimate and covariance (SiteEstimate)"] == 3 + 6
    assert said["sums (Tallies)"] == 2 * 2
    plain = review(folder / "b" / "site.toml", StudyFile(replace(MODEL, site_estimates=False), tuple(SIZES)))
    assert not any("SiteEstimate" in item.what for item in plain.items)
