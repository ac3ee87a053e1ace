"""Missing predictors: filled in with what all sites agree on, as scikit-learn does with all rows at hand."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.impute import SimpleImputer

import fedshed
from embedded import marriages
from fedshed import ConfigError, DataError, Model, Study
from fedshed._utils.errors import DisclosureError, ProtocolError
from fedshed.exchange import InProcess
from fedshed.preparation.approved import listed
from fedshed.preparation.derived import check_plan
from fedshed.preparation.guarded import GuardedPreparer
from fedshed.preparation.protocol import prepare
from fedshed.privacy.audit import Audit
from fedshed.privacy.gate import Gate
from fedshed.privacy.policy import Policy
from fedshed.tables.frames import Frame

COLUMNS = ("age", "yrs_married", "religious")


def spoilt(seed=0):
    """The survey with holes: age at every site but one, religious at one only, the target in a few rows."""
    rng, tables = np.random.default_rng(seed), {}
    for k, (site, table) in enumerate(sorted(marriages().items())):
        table = table.reset_index(drop=True).copy()
        table["work"] = np.array(["a", "b", "c"])[(table["occupation_husb"].astype(int) % 3).to_numpy()]
        if k:
            table.loc[rng.random(len(table)) < 0.1 * k, "age"] = np.nan
            table.loc[rng.random(len(table)) < 0.02, "affair"] = np.nan
            table.loc[rng.random(len(table)) < 0.1, "work"] = None
        if k == 2:
            table.loc[rng.random(len(table)) < 0.3, "religious"] = np.nan
        tables[str(site)] = table
    return tables


def whole(tables):
    """All rows of all sites that have a target."""
    rows = pd.concat([tables[site] for site in sorted(tables)], ignore_index=True)
    return rows[rows["affair"].notna()].reset_index(drop=True)


def pooled(X, y, family=None):
    family = family or sm.families.Binomial()
    return sm.GLM(y, np.column_stack([X, np.ones(len(X))]), family=family).fit(tol=1e-14, maxiter=100)


def study(missing, **more):
    return Study(**{"family": "logistic", "target": "affair", "columns": COLUMNS, "missing": missing, **more})


@pytest.mark.parametrize("missing", ["impute", "indicator"])
def test_coefficients_are_those_of_the_pooled_rows_that_scikit_learn_fills_in(missing):
    tables = spoilt()
    rows = whole(tables)
    filler = SimpleImputer(add_indicator=missing == "indicator")
    them = pooled(filler.fit_transform(rows[list(COLUMNS)]), rows["affair"])
    model = fedshed.fit(tables, study(missing))
    assert model.converged
    np.testing.assert_allclose(model.inference.coef, them.params, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.inference.std_err(), them.bse, rtol=1e-6)
    np.testing.assert_allclose([model.plan.fills[c] for c in COLUMNS], filler.statistics_, rtol=1e-12)
    marks = ("age[missing]", "religious[missing]") if missing == "indicator" else ()
    assert model.inference.names == (*COLUMNS, *marks, "intercept")


def test_categories_take_the_commonest_level_or_one_of_their_own():
    tables, columns = spoilt(), (*COLUMNS, "work")
    rows = whole(tables)
    numbers = SimpleImputer().fit_transform(rows[list(COLUMNS)])
    words = rows[["work"]].astype(object).where(rows[["work"]].notna(), np.nan)
    mode = SimpleImputer(strategy="most_frequent").fit_transform(words)[:, 0]
    X = np.column_stack([numbers, mode == "b", mode == "c"]).astype(float)
    model = fedshed.fit(tables, study("impute", columns=columns))
    np.testing.assert_allclose(model.inference.coef, pooled(X, rows["affair"]).params, rtol=1e-7, atol=1e-9)
    own = rows["work"].fillna("missing")
    marks = rows[["age", "religious"]].isna()
    X = np.column_stack([numbers, *(own == level for level in ("b", "c", "missing")), marks]).astype(float)
    model = fedshed.fit(tables, study("indicator", columns=columns))
    np.testing.assert_allclose(model.inference.coef, pooled(X, rows["affair"]).params, rtol=1e-7, atol=1e-9)
    assert "work[missing]" in model.inference.names


def test_transforms_see_the_filled_column():
    tables = spoilt()
    rows = whole(tables)
    X = SimpleImputer().fit_transform(rows[list(COLUMNS)])
    X = np.column_stack([np.log(X[:, 0]), X[:, 1] - X[:, 1].mean(), X[:, 1], rows["age"].isna()])
    formula = "affair ~ log(age) + center(yrs_married) + C(work)"
    model = fedshed.fit(tables, Study(family="logistic", formula=formula, missing="indicator"))
    own = rows["work"].fillna("missing")
    levels = [own == level for level in ("b", "c", "missing")]
    X = np.column_stack([X[:, :2], *levels, X[:, 3]]).astype(float)
    found = dict(zip(model.inference.names, model.inference.coef, strict=True))
    them = pooled(X, rows["affair"]).params
    names = (
        "log(age)",
        "center(yrs_married)",
        "work[b]",
        "work[c]",
        "work[missing]",
        "age[missing]",
        "intercept",
    )
    np.testing.assert_allclose([found[name] for name in names], them, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("missing", ["impute", "indicator"])
def test_what_was_filled_in_is_counted_by_site_and_column_and_said(missing, tmp_path):
    tables = spoilt()
    model = fedshed.fit(tables, study(missing))
    for site, table in tables.items():
        used = table[table["affair"].notna()]
        assert model.rows[site].used == len(used)
        assert model.rows[site].dropped == len(table) - len(used)
        lost = {c: int(used[c].isna().sum()) for c in COLUMNS}
        assert model.rows[site].filled == {c: n for c, n in lost.items() if n}
    text = " ".join(str(model.summary()).split())
    assert (
        f"Missing values were filled in: age in {sum(r.filled.get('age', 0) for r in model.rows.values()):,}"
        in text
    )
    assert "standard errors are too small" in text
    again = Model.load(model.save(tmp_path / "model.json"))
    assert again.rows == model.rows
    assert again.plan == model.plan


def test_predictions_fill_new_rows_with_the_same_numbers_and_say_so(caplog):
    model = fedshed.fit(spoilt(), study("indicator"))
    new = pd.DataFrame({"age": [30.0, np.nan], "yrs_married": [np.nan, 5.0], "religious": [2.0, 2.0]})
    with caplog.at_level(logging.WARNING, logger="fedshed"):
        found = model.predict_proba(new)[:, 1]
    assert "age in 1 row (" in caplog.text
    c, fills = model.coefficients, model.plan.fills
    z = [
        c["age"] * 30 + c["yrs_married"] * fills["yrs_married"] + c["religious"] * 2 + c["intercept"],
        c["age"] * fills["age"]
        + c["age[missing]"]
        + c["yrs_married"] * 5
        + c["religious"] * 2
        + c["intercept"],
    ]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-np.array(z))), rtol=1e-12)


@pytest.mark.parametrize(("missing", "level"), [("impute", "'c'"), ("indicator", "'missing'")])
def test_predictions_say_which_level_stands_for_a_missing_one(missing, level, caplog):
    tables = {
        site: table.assign(work=table["work"].where(table.index % 3 > 0, "c"))
        for site, table in spoilt().items()
    }
    model = fedshed.fit(tables, study(missing, columns=("age", "work")))
    new = pd.DataFrame({"age": [30.0, 30.0], "work": ["b", None]})
    with caplog.at_level(logging.WARNING, logger="fedshed"):
        model.predict_proba(new)
    assert f"missing values were filled in as in the fit: work in 1 row ({level})" in caplog.text


def test_a_column_that_one_site_misses_altogether_is_filled_in_there():
    tables = {site: spoilt()[site] for site in ("2", "3")}
    tables["3"]["religious"] = np.nan
    tables["3"]["work"] = None
    columns = (*COLUMNS, "work")
    rows = whole(tables)
    words = rows[["work"]].astype(object).where(rows[["work"]].notna(), np.nan)
    mode = SimpleImputer(strategy="most_frequent").fit_transform(words)[:, 0]
    X = np.column_stack([SimpleImputer().fit_transform(rows[list(COLUMNS)]), mode == "b", mode == "c"])
    model = fedshed.fit(tables, study("impute", columns=columns))
    np.testing.assert_allclose(
        model.inference.coef, pooled(X.astype(float), rows["affair"]).params, rtol=1e-7, atol=1e-9
    )
    assert model.rows["3"].filled["work"] == model.rows["3"].used


@pytest.mark.parametrize("missing", ["impute", "indicator"])
def test_a_column_that_all_sites_miss_is_refused_by_name(missing):
    tables = {site: table.assign(age=np.nan) for site, table in spoilt().items()}
    with pytest.raises(DataError, match="'age' is missing in every row of every site"):
        fedshed.fit(tables, study(missing))


def test_a_level_called_missing_beside_missing_values_is_refused():
    tables = spoilt()
    tables["2"]["work"] = pd.Categorical(
        tables["2"]["work"].replace({"a": "missing"}), categories=["b", "c", "missing"]
    )
    with pytest.raises(DataError, match="a level 'missing' too"):
        fedshed.fit(tables, study("indicator", columns=(*COLUMNS, "work")))


@pytest.mark.parametrize("missing", ["impute", "indicator"])
def test_a_protected_study_fills_in_the_same(missing):
    tables = {site: spoilt()[site] for site in ("1", "2", "6")}
    plain = study(missing, columns=(*COLUMNS, "work"))
    model = fedshed.fit(tables, plain)
    hidden = listed(plain, prepare(tables, plain).plan)
    hidden = msgspec.structs.replace(hidden, levels={"work": ("a", "b", "c")})
    masked = fedshed.fit(tables, hidden)
    np.testing.assert_allclose(masked.inference.coef, model.inference.coef, rtol=1e-6, atol=1e-7)


def test_a_study_that_does_not_ask_costs_no_byte_and_keeps_its_plan():
    tables = {site: table.dropna() for site, table in spoilt().items()}
    plain, dropped, filled = (prepare(tables, study(how)) for how in ("refuse", "drop", "impute"))
    assert b"fills" not in plain.plan.to_json()
    assert b"indicators" not in plain.plan.to_json()
    assert plain.traffic.exchanges == dropped.traffic.exchanges == filled.traffic.exchanges - 1
    for site in plain.federation.tables:
        np.testing.assert_array_equal(plain.federation.tables[site].X, filled.federation.tables[site].X)


@pytest.mark.parametrize(
    "change",
    [
        {"fills": {"age": 1.0}},
        {"fills": {"age": "x", "yrs_married": 1.0, "religious": 1.0}},
        {"indicators": ("age", "elsewhere")},
        {"indicators": ()},
    ],
)
def test_a_site_refuses_a_plan_that_fills_in_something_else(change):
    tables = spoilt()
    asked = study("indicator")
    plan = msgspec.structs.replace(prepare(tables, asked).plan, warnings=())
    check_plan(asked, Frame(tables["4"]), plan)
    with pytest.raises(ProtocolError, match="missing values"):
        check_plan(asked, Frame(tables["4"]), msgspec.structs.replace(plan, **change))


def test_a_term_and_its_indicator_are_left_out_together():
    tests = fedshed.drop_one(
        {site: table.dropna(subset="affair") for site, table in spoilt().items()}, study("indicator")
    )
    assert {one.name: one.df for one in tests.tests} == {"age": 2, "yrs_married": 1, "religious": 2}


def test_privacy_and_words_that_are_none():
    with pytest.raises(ConfigError, match="missing"):
        study("fill")


@pytest.mark.parametrize(("lost", "allowed"), [(0, True), (3, False), (6, True), (57, False), (60, True)])
@pytest.mark.parametrize("missing", ["impute", "indicator"])
def test_a_guarded_site_fills_in_no_few_rows_and_sums_up_no_few(tmp_path, lost, allowed, missing):
    """Neither the rows that miss a value nor those that have one may be few."""
    asked = Study(family="linear", target="y", columns=("x", "z"), missing=missing)
    tables = {
        site: {"x": np.arange(60) + 0.5, "z": np.arange(60.0) % 7, "y": np.arange(60.0) % 11} for site in "ab"
    }
    tables["b"]["x"][:6] = np.nan
    tables["a"]["x"][:lost] = np.nan
    gate = Gate(Policy(), Audit(tmp_path / "audit"), "study")

    def connect(sites):
        return InProcess({**sites, "a": GuardedPreparer(sites["a"], gate)})

    if allowed:
        assert prepare(tables, asked, connect=connect).plan.fills
        return
    with pytest.raises(DisclosureError, match="min_rows_per_level"):
        prepare(tables, asked, connect=connect)
