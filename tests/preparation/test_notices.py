"""Tables that look wrong: what would give a wrong number is refused, or noted with its column and level."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.formula.api as smf

import fedshed
from calls import call
from fedshed import ConfigError, DataError, Study
from fedshed.exchange import InProcess
from fedshed.preparation import DesignPlan, prepare
from fedshed.preparation.messages import CODEC
from fedshed.tables.frames import Frame, common_order


def site(seed: int, rows: int = 40, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = {"x": rng.normal(size=rows), "y": rng.normal(size=rows)}
    return pd.DataFrame(made | {name: np.resize(values, rows) for name, values in columns.items()})


def linear(**more: object) -> Study:
    return Study(**{"family": "linear", "target": "y", **more})


# --- codes with leading zeros --------------------------------------------------------------------


def written(folder, tables: dict[str, pd.DataFrame]) -> list:
    paths = [folder / f"{name}.csv" for name in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        table.to_csv(path, index=False)
    return paths


@pytest.mark.parametrize("how", [("--categories", "ward"), ("--formula", "y ~ x + C(ward)")])
def test_codes_keep_their_zeros_on_the_command_line_and_in_predictions(tmp_path, how):
    """As pooled training on the text: one site's file has zeros, another's has letters beside them."""
    tables = {"a": site(0, ward=["01", "02", "10"]), "b": site(1, ward=["01", "02", "K1"])}
    paths = written(tmp_path, tables)
    arguments = ("--family", "linear", "--target", "y", *how, "--no-report", "--out", tmp_path)
    done = call("fit", *paths, *arguments)
    assert done.exit_code == 0, done.stderr
    model = fedshed.Model.load(tmp_path / "model.json")
    assert model.plan.levels["ward"] == ("01", "02", "10", "K1")
    expected = smf.ols("y ~ x + C(ward)", pd.concat(tables.values())).fit().params
    np.testing.assert_allclose(model.coefficients["ward[K1]"], expected["C(ward)[T.K1]"], rtol=1e-6)
    (path,) = written(tmp_path, {"new": tables["b"][:2]})  # its codes are all digits
    predicted = call("predict", tmp_path / "model.json", path)
    assert predicted.exit_code == 0, predicted.stderr


def test_sites_named_by_codes_keep_their_zeros(tmp_path):
    table = site(0, hospital=["01", "02"])
    paths = written(tmp_path, {"all": table})
    assert sorted(fedshed.tables.read_sites(paths, site="hospital")) == ["01", "02"]


@pytest.mark.parametrize("numbers", [[1, 2], [1.0, 2.0], [3, 12]])
def test_numbers_where_another_site_has_codes_with_zeros_are_refused_with_both_named(numbers):
    """Also where no code occurs at both sites: 3 may be 03."""
    tables = {"a": site(0, ward=["01", "02"]), "b": site(1, ward=numbers)}
    with pytest.raises(
        DataError, match=r"'ward': site 'a' has the code '01', and site 'b' has '[13]'.*dtype=str"
    ):
        prepare(tables, linear(categories=("ward",)))
    with pytest.raises(DataError, match="'01', and site 'b' has '1'"):
        prepare({**tables, "b": site(1, ward=["1", "2"])}, linear(categories=("ward",)))


def test_codes_that_one_site_tells_apart_are_noted_only():
    tables = {"a": site(0, ward=["01", "1"]), "b": site(1, ward=["01", "1"])}
    plan = prepare(tables, linear(categories=("ward",))).plan
    assert plan.levels["ward"] == ("01", "1")
    assert any("'01' (site 'a'), '1' (site 'a') differ only in how a number" in note for note in plan.notes)


def test_numbers_as_levels_are_the_same_whether_written_with_a_decimal_or_not(tmp_path):
    """A column with missing values is written 1.0, 2.0 by pandas: the level stays 1."""
    whole, gaps = site(0, grade=[1, 2, 3]), site(1, grade=[1.0, 2.0, None])
    paths = written(tmp_path, {"a": whole, "b": gaps})
    csv = fedshed.tables.CsvFormat(text=("grade",))
    found = prepare(fedshed.tables.read_sites(paths, csv=csv), linear(categories=("grade",), missing="drop"))
    assert found.plan.levels["grade"] == ("1", "2", "3")


# --- marks for missing values, and levels that look alike ----------------------------------------

PANDAS = sorted(pd._libs.parsers.STR_NA_VALUES)  # what read_csv of pandas takes as missing


@pytest.mark.parametrize("mark", PANDAS)
def test_the_marks_of_pandas_are_missing_in_files_and_in_frames(tmp_path, mark, caplog):
    (tmp_path / "t.csv").write_text(f'drug,n\nA,1\n"{mark}",{mark}\nB,3\n')
    table = fedshed.tables.read_table(tmp_path / "t.csv")
    expected = pd.read_csv(tmp_path / "t.csv")
    assert table["drug"].is_null().to_pylist() == expected["drug"].isna().tolist() == [False, True, False]
    assert table["n"].to_pylist() == [1, None, 3]
    assert ("'drug'" in caplog.text) == bool(mark)
    caplog.clear()
    frame = Frame(pd.DataFrame({"drug": ["A", mark, "B", f" {mark} "]}))
    assert frame.column("drug").missing.tolist() == [False, True, False, True]
    assert "column 'drug'" in caplog.text
    assert "in 2 rows" in caplog.text


def test_a_mark_is_no_level_and_no_reference():
    """As pooled training on the rows without it; a level of that name is one where the frame declares it."""
    tables = {name: site(k, drug=["NA", "b", "c"]) for k, name in enumerate("ab")}
    with pytest.raises(DataError, match="'drug' is missing in 14 of 40 rows"):
        prepare(tables, linear())
    plan = prepare(tables, linear(missing="drop")).plan
    assert plan.levels["drug"] == ("b", "c")
    declared = {name: table.astype({"drug": "category"}) for name, table in tables.items()}
    plan = prepare(declared, linear()).plan
    assert plan.levels["drug"] == ("NA", "b", "c")
    assert any("level 'NA' at site 'a' looks like a mark" in note for note in plan.notes)


def test_marks_among_numbers_leave_a_column_of_numbers():
    column = Frame({"n": np.array([1, "NA", 2.5, None], dtype=object)}).column("n")
    assert column.kind == "number"
    np.testing.assert_array_equal(column.values, [1, np.nan, 2.5, np.nan])


def test_named_marks_are_added_to_the_usual_ones(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n?,x\n1,NA\n2,y\n")
    csv = fedshed.tables.CsvFormat(na_values=("?",))
    assert fedshed.tables.read_table(tmp_path / "t.csv", csv).to_pydict() == {
        "a": [None, 1, 2],
        "b": ["x", None, "y"],
    }


def test_levels_that_look_alike_or_occur_at_one_site_are_noted_in_log_and_summary(caplog):
    tables = {
        "a": site(0, smokes=["Yes", "no"]),
        "b": site(1, smokes=["yes", "no "]),
        "c": site(2, smokes=["Yes", "no"]),
    }
    model = fedshed.fit(tables, linear())
    for sentence in (
        "column 'smokes': the levels 'Yes' (site 'a'), 'yes' (site 'b') differ only by case or spaces",
        "column 'smokes': the levels 'no' (site 'a'), 'no ' (site 'b') differ only by case or spaces",
        "column 'smokes': the levels 'no ' (site 'b'), 'yes' (site 'b') occur at one site only",
    ):
        assert any(note.startswith(sentence) for note in model.plan.notes), sentence
        assert sentence in caplog.text
        assert sentence in " ".join(str(model.summary()).split())
    assert DesignPlan.from_json(model.plan.to_json()).notes == model.plan.notes


def test_classes_that_look_alike_are_noted():
    tables = {name: site(k) for k, name in enumerate("ab")}
    for name, yes in (("a", "Yes"), ("b", "yes")):
        tables[name]["ill"] = np.resize([yes, "no"], 40)
    plan = prepare(tables, Study(family="multinomial", target="ill", columns=("x",))).plan
    assert any("column 'ill': the levels 'Yes' (site 'a'), 'yes'" in note for note in plan.notes)


def test_ordinary_tables_have_no_notes_and_sites_are_not_told_any(caplog):
    tables = {name: site(k, smokes=["yes", "no"]) for k, name in enumerate("abc")}
    assert prepare(tables, linear()).plan.notes == ()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    tables["b"]["smokes"] = np.resize(["yes", "never"], 40)
    sent: list[bytes] = []

    class Heard(InProcess):
        def exchange(self, payloads):
            sent.extend(payloads.values())
            return super().exchange(payloads)

    found = prepare(tables, linear(standardize=True), connect=Heard)
    assert found.plan.notes
    assert not any(b"one site only" in payload for payload in sent)
    plans = [
        part.plan
        for payload in sent
        for part in CODEC.decode_request(payload).parts[:1]
        if hasattr(part, "plan")
    ]
    assert plans
    assert all(plan.notes == () for plan in plans)


# --- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "values", "what"),
    [
        (
            "logistic",
            np.arange(40) + 0.5,
            "has 40 different values, but the logistic family needs exactly two",
        ),
        ("logistic", np.arange(40) % 3, "has 3 different values, but the logistic family needs exactly two"),
        ("multinomial", np.arange(40) % 3 + 0.25, "numbers that are not whole, which are no classes"),
        ("multinomial", np.arange(40) * 1000, None),
    ],
)
def test_a_target_that_measures_something_is_refused_at_the_site_without_its_values(family, values, what):
    rows = 120
    table = site(0, rows, z=values)
    if what is None:
        table["z"], what = np.arange(rows) * 1000, "has 120 different values, too many for classes"
    study = Study(family=family, target="z", columns=("x",))
    answers: list[bytes] = []

    class Heard(InProcess):
        def exchange(self, payloads):
            for name, reply in super().exchange(payloads):
                answers.append(reply)
                yield name, reply

    with pytest.raises(DataError, match=what) as refused:
        prepare({"a": table}, study, connect=Heard)
    assert str(table["z"].iloc[7]) not in str(refused.value).replace("different values", "")
    (answer,) = CODEC.decode_reply(answers[0]).parts
    assert type(answer).__name__ == "Refused"


def test_classes_over_all_sites_are_counted_and_numbers_not_quoted():
    tables = {"a": site(0, z=[0, 4711]), "b": site(1, z=[0, 815])}
    with pytest.raises(
        DataError, match="needs exactly two classes over all sites, but there are 3;"
    ) as refused:
        prepare(tables, Study(family="logistic", target="z", columns=("x",)))
    assert "4711" not in str(refused.value)
    for table in tables.values():
        table["z"] = table["z"].astype(str)
    with pytest.raises(DataError, match=r"there are 3 \(0, 4711, 815\)"):
        prepare(tables, Study(family="logistic", target="z", columns=("x",)))


def test_a_positive_value_that_no_site_has_is_named():
    """One that some site has is enough; one in rows that are left out is none."""
    tables = {"a": site(0, z=["mild", "none"]), "b": site(1, z=["severe", "none"])}
    tables = {name: table.astype({"z": "category"}) for name, table in tables.items()}
    study = Study(family="logistic", target="z", columns=("x",), positive=("mild", "severe"))
    assert prepare(tables, study).plan.classes == (False, True)
    with pytest.raises(ConfigError, match="positive names 'sever', which no site has in column 'z'"):
        prepare(tables, msgspec.structs.replace(study, positive=("mild", "sever")))
    tables["b"].loc[tables["b"]["z"] == "severe", "x"] = None
    with pytest.raises(ConfigError, match="positive names 'severe'"):
        prepare(tables, msgspec.structs.replace(study, missing="drop"))


# --- columns -------------------------------------------------------------------------------------


def test_a_column_called_intercept_is_refused_where_the_model_has_one():
    tables = {"a": site(0).rename(columns={"x": "intercept"})}
    for study in (linear(), linear(formula="y ~ intercept")):
        with pytest.raises(
            ConfigError,
            match=r"a column is called 'intercept', which is the name of the model's intercept; rename",
        ):
            prepare(tables, study)
    assert prepare(tables, linear(intercept=False)).plan.coefficients == ("intercept",)
    X, y = tables["a"][["intercept"]], tables["a"]["y"]
    with pytest.raises(ConfigError, match="rename it"):
        fedshed.optimize(fedshed.Federation.from_sites({"a": (X, y)}), loss="least-squares", intercept=True)


def test_text_that_is_all_numbers_is_refused_unless_it_is_called_a_category():
    tables = {name: site(k, age=[str(20 + j) for j in range(20)]) for k, name in enumerate("ab")}
    with pytest.raises(
        DataError, match="'age' is text, though all its 20 different values are numbers; convert"
    ):
        prepare(tables, linear())
    assert len(prepare(tables, linear(categories=("age",))).plan.levels["age"]) == 20
    assert len(prepare(tables, linear(formula="y ~ C(age)")).plan.levels["age"]) == 20
    declared = {name: table.astype({"age": "category"}) for name, table in tables.items()}
    assert len(prepare(declared, linear()).plan.levels["age"]) == 20


GRADES = ["low", "mid", "high"]


def ordered(kind: str, table: pd.DataFrame):
    if kind == "polars":
        return pl.from_pandas(table).with_columns(pl.col("grade").cast(pl.Enum(GRADES)))
    return table.assign(grade=pd.Categorical(table["grade"], GRADES, ordered=kind == "ordered"))


@pytest.mark.parametrize("kind", ["ordered", "given", "polars"])
def test_the_order_that_frames_declare_is_that_of_the_levels(kind):
    """And so the reference is that of statsmodels on the pooled table; sites may lack levels or an order."""
    tables = {
        "a": site(0, grade=["mid", "high"]),
        "b": site(1, grade=["low", "mid"]),
        "c": site(2, grade=GRADES),
    }
    given = {name: ordered(kind, table) for name, table in tables.items()} | {"c": tables["c"]}
    model = fedshed.fit(given, linear())
    assert model.plan.levels["grade"] == tuple(GRADES)
    pooled = pd.concat(tables.values()).assign(grade=lambda f: pd.Categorical(f["grade"], GRADES))
    expected = smf.ols("y ~ x + grade", pooled).fit().params
    np.testing.assert_allclose(model.coefficients["grade[high]"], expected["grade[T.high]"], rtol=1e-6)
    plan = prepare(given, linear(references={"grade": "mid"})).plan
    assert plan.levels["grade"] == ("mid", "low", "high")
    assert prepare(tables, linear()).plan.levels["grade"] == ("high", "low", "mid")


def test_an_order_survives_the_way_to_another_process():
    from fedshed.tables.frozen import arrow_table, freeze, thaw

    for kind in ("ordered", "given", "polars"):
        frame = ordered(kind, site(0, grade=["high", "low"]))
        column = Frame(thaw(freeze(arrow_table("a", frame)))).column("grade")
        assert (column.levels, column.ordered) == (("low", "high"), True)
        np.testing.assert_array_equal(column.values, Frame(frame).column("grade").values)


def test_orders_that_contradict_are_noted_and_not_used():
    tables = {"a": ordered("ordered", site(0, grade=GRADES)), "b": site(1, grade=GRADES)}
    tables["b"]["grade"] = pd.Categorical(tables["b"]["grade"], GRADES[::-1], ordered=True)
    plan = prepare(tables, linear()).plan
    assert plan.levels["grade"] == ("high", "low", "mid")
    assert any("'grade': the sites declare its levels in different orders" in note for note in plan.notes)
    assert common_order([("a", "c"), ("b", "c"), ("a", "b")]) == ("a", "b", "c")
    assert common_order([("a", "b"), ("b", "c"), ("c", "a")]) is None
    assert common_order([]) == ()
