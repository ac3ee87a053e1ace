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
from fedshed.preparation.row_numbers import numbers_rows

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
    assert caplog.text.count("looks like an identifier") == 1
    assert "site 's0' and 2 more: column 'year' has a different whole number in each row" in caplog.text


@pytest.mark.parametrize(("rows", "count"), [(500, 10), (600, 20), (200, 5), (2000, 40)])
def test_numbers_of_rows_that_are_dealt_over_many_sites_are_refused(rows, count):
    """No site alone can tell: of 50 numbers among 1 to 500 it has 2.5 pairs that would agree by chance."""
    rng = np.random.default_rng(rows)
    frame = pd.DataFrame({"age": rng.normal(50, 9, rows), "y": rng.normal(size=rows)})
    frames = sites_of(frame.assign(row=rng.permutation(rows) + 1), count)
    said = sentence(frames, family="linear", target="y")
    assert f"site 's0' and {count - 1} more: column 'row' has a different whole number in each row" in said
    assert "exclude = ['row'], --exclude row" in said
    assert fedshed.fit(frames, Study(family="linear", target="y", exclude=("row",))).converged


@pytest.mark.parametrize("seed", range(20))
def test_measurements_in_whole_numbers_at_many_sites_are_no_identifiers(seed):
    """Of incomes some agree; of few values among many none does, which is chance."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"income": rng.integers(0, 400, 500), "wide": rng.permutation(10**6)[:500]})
    frame = frame.assign(normal=np.round(rng.normal(0, 150, 500)), y=rng.normal(size=500))
    assert prepare(sites_of(frame, 10), Study(family="linear", target="y")).plan.columns == (
        "income", "wide", "normal",
    )  # fmt: skip


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
    how = {"Age ": "case and blanks", " age": "blanks", "AGE": "case", "a ge": "blanks"}[name]
    assert f"site 's1' {name!r}: names that differ in {how} only; rename one of the columns" in said or (
        f"site 's1' has column {name!r}, and site 's0' 'age': names that differ in {how} only; rename" in said
    )
    said = sentence(frames, family="linear", target="affairs", columns=("age",))
    assert f"site 's1': there is no column 'age'; rename {name!r} to 'age'" in said


@pytest.mark.parametrize("name", ["Age ", " age", "AGE", "a ge"])
def test_a_name_that_differs_in_blanks_is_shown_where_columns_are_named_and_in_predictions(name):
    """Difflib sees no likeness between 'age' and 'Age '."""
    frames = sites_of(FAIR)
    study = Study(family="linear", target="affairs", columns=("age", "children"))
    model = fedshed.fit(frames, study)
    frames["s1"] = frames["s1"].rename(columns={"age": name})
    said = f"there is no column 'age'; rename {name!r} to 'age'"
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


@pytest.mark.parametrize("study", [{"categories": ("flag",)}, {"formula": "affairs ~ C(flag) + age"}])
@pytest.mark.parametrize("words", [(False, True), ("FALSE", "TRUE")])
def test_true_and_1_are_never_two_levels_of_one_category(study, words):
    frames = sites_of(FAIR.assign(flag=np.arange(len(FAIR)) // 3 % 2))
    frames["s1"]["flag"] = np.array(words)[frames["s1"]["flag"]]
    said = sentence(frames, family="linear", target="affairs", **study)
    assert "site 's1': column 'flag' holds True and False, where site 's0' has 1 and 0; write 1 for" in said
    frames["s1"]["flag"] = (frames["s1"]["flag"] == words[1]).astype(int)
    assert prepare(frames, Study(family="linear", target="affairs", **study)).plan.levels["flag"] == (
        "0", "1",
    )  # fmt: skip


@pytest.mark.parametrize("every", [1, 7])
def test_decimal_commas_are_told_about_decimal_marks_not_about_categories(every):
    frames = sites_of(DIABETES)
    texts = [f"{value:.4f}" for value in frames["s1"]["bmi"]]
    frames["s1"]["bmi"] = [t.replace(".", ",") if k % every == 0 else t for k, t in enumerate(texts)]
    said = sentence(frames, family="linear", target="progress")
    assert "\n" not in said
    assert "column 'bmi' is text, because its numbers have a comma" in said
    assert "--decimal ," in said
    assert "categories" not in said


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


def messy() -> dict[str, pd.DataFrame]:
    """Three sites with the same faults, in columns of their own."""
    frames = sites_of(FAIR)
    rng = np.random.default_rng(0)
    for site, frame in frames.items():
        frames[site] = frame.assign(
            **{"admission date": pd.Timestamp("2020-01-01"), "row": rng.permutation(len(frame)) + 1},
            person=[f"{site}-{k}" for k in range(len(frame))], huge=1e300,
        )  # fmt: skip
    return frames


FAULTS = (
    "column 'admission date' holds values of type Timestamp; turn it into numbers or text, or leave it out "
    "(exclude = ['admission date'], --exclude 'admission date')",
    "column 'row' has a different whole number in each of",
    "column 'person' has",
    "'huge' is beyond 1e+60 in",
)


@pytest.mark.parametrize("dates", ["at all sites", "at one site", "nowhere"])
def test_faults_of_single_columns_are_found_in_one_round_and_said_once(dates):
    """Also where only one site cannot read a column, and the others can describe theirs."""
    frames = messy()
    for site in {"at all sites": (), "at one site": ("s1", "s2"), "nowhere": tuple(frames)}[dates]:
        frames[site]["admission date"] = 1.5
    lines = sentence(frames, family="linear", target="affairs").split("\n")
    faults = FAULTS if dates != "nowhere" else FAULTS[1:]
    assert len(lines) == len(faults)
    for fault in faults:
        (line,) = (line for line in lines if fault in line)
        alone = dates == "at one site" and "date" in fault
        assert line.startswith("site 's0': " if alone else "site 's0' and 2 more: ")
    left_out = ("admission date", "row", "person", "huge")
    assert fedshed.fit(frames, Study(family="linear", target="affairs", exclude=left_out)).converged
