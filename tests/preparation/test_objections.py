"""What is wrong with tables is said together, with a remedy that does no harm."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_diabetes

import fedshed
from fedshed import ConfigError, DataError, Study
from fedshed.preparation import prepare
from fedshed.preparation.describe import numbers_rows

FAIR = sm.datasets.fair.load_pandas().data[["age", "children", "affairs"]].iloc[::20]
DIABETES = pd.DataFrame(load_diabetes().data[:300, :3], columns=["age", "sex", "bmi"]).assign(
    progress=load_diabetes().target[:300]
)
TABLES = {"fair": (FAIR, "affairs"), "diabetes": (DIABETES, "progress")}


def sites_of(frame: pd.DataFrame, count: int = 3) -> dict[str, pd.DataFrame]:
    return {f"s{k}": frame.iloc[k::count].reset_index(drop=True) for k in range(count)}


def sentence(frames, **fields) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        prepare(frames, Study(**fields))
    return str(caught.value)


# --- numeric identifiers -------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["rows", "shuffled", "of all sites", "from 5000"])
@pytest.mark.parametrize("data", TABLES)
def test_numbers_of_rows_are_refused_in_any_order(data, order):
    frame, target = TABLES[data]
    rng = np.random.default_rng(0)
    frames = sites_of(frame.assign(**{"patient no": rng.permutation(len(frame)) + 1}))
    if order != "of all sites":
        for site, mine in frames.items():
            numbers = np.arange(len(mine)) + (5000 if order == "from 5000" else 1)
            frames[site] = mine.assign(
                **{"patient no": numbers if order == "rows" else rng.permutation(numbers)}
            )
    said = sentence(frames, family="linear", target=target)
    assert "looks like an identifier; leave it out (exclude = ['patient no'], --exclude 'patient no')" in said
    model = fedshed.fit(frames, Study(family="linear", target=target, exclude=("patient no",)))
    assert model.converged


def test_a_column_that_the_study_names_is_fitted_with_a_note(caplog):
    frame = DIABETES.assign(year=np.arange(len(DIABETES)))
    prepare(sites_of(frame), Study(family="linear", formula="progress ~ age + year"))
    assert "column 'year' has a different whole number in each of 100 rows" in caplog.text


def test_measurements_are_no_identifiers():
    rng = np.random.default_rng(0)
    assert not numbers_rows(np.round(rng.normal(60, 15, 200)))
    assert not numbers_rows(rng.permutation(10_000)[:50].astype(float))
    assert not numbers_rows(rng.normal(size=200))
    assert not numbers_rows(np.arange(10.0))
    assert all(not numbers_rows(rng.integers(0, 100, 40).astype(float)) for _ in range(200))


# --- remedies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [(1, 2), (0, 2)])
def test_events_of_other_codes_are_not_to_be_dropped(codes):
    rng = np.random.default_rng(0)
    frames = {
        s: {"t": rng.exponential(5, 40), "status": rng.choice(codes, 40), "x": rng.normal(size=40)}
        for s in "ab"
    }
    said = sentence(frames, family="cox", time="t", event="status", columns=("x",))
    assert "drop" not in said
    assert ("--positive 2" if codes == (1, 2) else "--positive)") in said
    study = Study(family="cox", time="t", event="status", columns=("x",), positive=(2,))
    assert fedshed.fit(frames, study).converged


@pytest.mark.parametrize(
    ("family", "here"), [("gaussian", "linear"), ("Gaussian", "linear"), ("coxph", "cox")]
)
def test_a_family_of_other_programs_is_named_as_here(family, here):
    with pytest.raises(ConfigError, match=f"that family is called '{here}' here"):
        Study(family=family, target="y")


def test_an_identifier_with_a_blank_is_quoted_for_the_shell():
    frame = FAIR.assign(**{"admission date": [f"2020-{k}" for k in range(len(FAIR))]})
    assert "--exclude 'admission date'" in sentence(sites_of(frame), family="linear", target="affairs")
    large = FAIR.assign(**{"social security": 2**60 + np.arange(len(FAIR))})
    assert "--exclude 'social security'" in sentence(sites_of(large), family="linear", target="affairs")


@pytest.mark.parametrize(
    ("spellings", "option"),
    [
        ((("ja", "nein"), ("yes", "no"), ("Y", "N")), "--positive ja,yes,Y"),
        ((("ja", "nein", "yes", "no", "Y", "N"),), "--positive ja,yes,Y"),
        ((("oui", "non"), ("TRUE", "FALSE")), "--positive oui,TRUE"),
        ((("red", "blue"), ("green", "blue")), "--positive)"),
    ],
)
def test_spellings_of_two_classes_are_told_how_to_become_two(spellings, option):
    rng = np.random.default_rng(0)
    frames = {
        f"s{k}": {"x": rng.normal(size=36), "ill": np.resize(words, 36)} for k, words in enumerate(spellings)
    }
    said = sentence(frames, family="logistic", target="ill")
    assert "positive" in said
    found = said.partition("--positive ")[2].partition(")")[0].split(",")
    if option != "--positive)":
        assert sorted(found) == sorted(option.removeprefix("--positive ").split(","))
        study = Study(family="logistic", target="ill", positive=tuple(found))
        assert fedshed.fit(frames, study).converged


@pytest.mark.parametrize("name", ["Age ", " age", "AGE", "a ge"])
def test_a_name_that_differs_in_blanks_is_shown(name):
    frames = sites_of(FAIR)
    frames["s1"] = frames["s1"].rename(columns={"age": name})
    said = sentence(frames, family="linear", target="affairs")
    assert f"(its column {name!r} differs in case" in said or "(its column 'age' differs in case" in said


@pytest.mark.parametrize("name", ["Age ", " age", "AGE", "a ge"])
def test_a_name_that_differs_in_blanks_is_shown_where_columns_are_named_and_in_predictions(name):
    """Difflib sees no likeness between 'age' and 'Age '."""
    frames = sites_of(FAIR)
    study = Study(family="linear", target="affairs", columns=("age", "children"))
    model = fedshed.fit(frames, study)
    frames["s1"] = frames["s1"].rename(columns={"age": name})
    said = f"there is no column 'age'; a column differs only in case or blanks: {name!r}"
    with pytest.raises(DataError, match=re.escape(f"site 's1': {said}")):
        prepare(frames, study)
    with pytest.raises(DataError, match=re.escape(said)):
        model.predict(frames["s1"])


@pytest.mark.parametrize("ages", [["31", "?", "44.5"], ["?", "?", "?"]])
def test_a_mark_among_the_numbers_of_a_prediction_is_named(ages):
    study = Study(family="linear", target="affairs", columns=("age", "children"))
    model = fedshed.fit(sites_of(FAIR), study)
    with pytest.raises(DataError, match=r"'age'.*'\?' is not.*na_values \(--na-values\)"):
        model.predict(pd.DataFrame({"age": ages, "children": [0.0, 1.0, 2.0]}))


def test_booleans_and_numbers_get_the_remedy():
    rng = np.random.default_rng(0)
    frames = {
        s: {"smoker": rng.integers(0, 2, 40), "ill": rng.integers(0, 2, 40), "x": rng.normal(size=40)}
        for s in "abc"
    }
    frames["b"] = {**frames["b"], "smoker": frames["b"]["smoker"] == 1, "ill": frames["b"]["ill"] == 1}
    said = sentence(frames, family="logistic", target="ill")
    assert (
        "'smoker': booleans where 2 sites (such as 'a') have numbers; convert it there: write 1 for" in said
    )
    assert "positive = [1], --positive 1" in said
    frames["b"]["smoker"] = frames["b"]["smoker"].astype(int)
    assert fedshed.fit(frames, Study(family="logistic", target="ill", positive=(1,))).converged


# --- together ------------------------------------------------------------------------------------


def test_all_objections_to_schemas_are_printed_together():
    frames = sites_of(FAIR.assign(ward="A", sex="f", code=[f"P{k}" for k in range(len(FAIR))]))
    frames["s1"]["age"] = "about 40"
    frames["s2"]["children"] = frames["s2"]["children"] > 1
    lines = sentence(frames, family="linear", target="affairs", exclude=("gone",)).split("\n")
    for words in (
        "site 's1', column 'age': text", "site 's2', column 'children': booleans", "column 'code' has",
        "exclude names 'gone'", "column 'ward' has one level", "column 'sex' has one level",
    ):  # fmt: skip
        assert any(words in line for line in lines), words


def test_refusals_of_all_sites_and_of_all_columns_of_a_site_are_printed_together():
    frames = sites_of(FAIR)
    frames["s0"]["age"] = pd.Timestamp("2020-01-01")
    frames["s0"]["children"] = 2**60
    frames["s2"] = frames["s2"].drop(columns="children")
    said = sentence(frames, family="linear", target="affairs", columns=("age", "children"))
    lines = said.split("\n")
    assert len(lines) == 3
    assert [line.partition(":")[0] for line in lines] == ["site 's0'", "site 's0'", "site 's2'"]
    assert all(line.isprintable() for line in lines)
