"""What the estimate would be without a site: one Newton step, and exactly."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import fedshed
from embedded import claims, firms, hospitals, marriages
from fedshed import ConfigError, Model, Study
from fedshed.inference.influence import Influence

INVEST = Study(family="linear", target="invest", columns=("value", "capital"))


def refitted(tables, study):
    whole = fedshed.fit(tables, study)
    for site in tables:
        others = {name: table for name, table in tables.items() if name != site}
        yield str(site), whole, fedshed.fit(others, study)


@pytest.mark.parametrize("more", [{}, {"standardize": True}, {"l2": 0.5, "intercept": False}])
def test_one_step_is_exact_for_least_squares(more):
    study = Study(family="linear", target="invest", columns=("value", "capital"), **more)
    for site, whole, others in refitted(dict(list(firms().items())[:4]), study):
        moved = np.array(whole.influence().changes[site])
        np.testing.assert_allclose(moved, whole.inference.coef - others.inference.coef, rtol=1e-7, atol=1e-9)


def test_one_step_is_close_for_a_logistic_model_and_the_exact_one_is_the_refit():
    study = Study(family="logistic", target="affair", columns=("age", "yrs_married", "religious"))
    tables = dict(list(marriages().items())[1:5])
    exact, whole = fedshed.influence(tables, study), fedshed.fit(tables, study)
    one_step = whole.influence()
    assert exact.exact
    for site in exact.changes:
        apart = np.abs(exact.standardised(site) - one_step.standardised(site))
        assert apart.max() <= 0.1 * max(1.0, np.abs(exact.standardised(site)).max())
    assert exact.largest()[0][0] == one_step.largest()[0][0]
    site, *others = tables
    refit = fedshed.fit({name: tables[name] for name in others}, study).inference.coef
    np.testing.assert_allclose(np.array(exact.coefficients) - exact.changes[site], refit, rtol=1e-9)


def test_it_costs_no_exchange_and_is_kept_in_the_file(tmp_path):
    study = Study(family="poisson", target="claims", columns=("age", "bonus"), exposure="years")
    model = fedshed.fit(claims(), study)
    again = Model.load(model.save(tmp_path / "model.json"))
    assert again.influence() == model.influence()
    assert set(model.influence().changes) == set(claims())
    rows = list(csv.DictReader(io.StringIO(model.influence().to_csv())))
    assert len(rows) == len(claims()) * 3
    assert max(map(len, str(model.influence()).splitlines())) <= 80


def test_a_site_that_alone_has_a_level_cannot_be_left_out():
    tables = hospitals()
    for name, table in tables.items():
        table["ward"] = np.where(np.arange(len(table)) % 2, "a", "c" if name == "west" else "b")
    study = Study(family="logistic", target="malignant", columns=("radius", "ward"))
    model = fedshed.fit(tables, study)
    assert set(model.influence().without) == {"west"}
    exact = fedshed.influence(tables, study)
    assert "ward[c]" in exact.without["west"]
    assert set(exact.changes) == {"north", "south"}


def test_a_protected_study_shows_no_site():
    study = Study(family="linear", target="invest", columns=("value", "capital"), protected=True)
    with pytest.raises(ConfigError, match="protected"):
        fedshed.influence(firms(), study)
    tables = dict(list(firms().items())[:3])
    with pytest.raises(ConfigError, match="sums over all sites"):
        fedshed.fit(tables, study).influence()
    with pytest.raises(ConfigError, match="one site"):
        fedshed.fit({"a": tables[next(iter(tables))]}, INVEST).influence()


def test_the_summary_shows_it_on_request():
    model = fedshed.fit(firms(), INVEST)
    site, name, _, moved = model.influence().largest()[0]
    text = " ".join(str(model.summary(influence=True)).split())
    assert f"Without site {site!r} {name} would be {abs(moved):.2f} standard errors" in text
    assert "would be" not in str(model.summary())


def test_a_coefficient_without_an_error_is_not_said_to_move():
    found = Influence(("flat", "x"), (0.0, 1.0), (0.0, 0.5), {"north": (0.0, 0.25)})
    np.testing.assert_array_equal(found.standardised("north"), [np.nan, 0.5])
    assert found.largest() == [("north", "x", 0.25, 0.5)]
