"""CSV files as people have them: what other programs write is read, or refused by name with what to do."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from calls import call
from fedshed import ConfigError, DataError, Study
from fedshed.preparation import prepare
from fedshed.tables import CsvFormat, read_sites, read_table
from fedshed.tables.frames import Frame

FRAME = pd.DataFrame(
    {"town": ["Köln", "Bonn", "Ulm", "Köln"], "größe": [1.5, -2.25, 1e-3, 4.0], "n": [1, 2, 3, 4]}
)


def same(table, frame=FRAME):
    found = table.to_pandas()
    assert list(found.columns) == list(frame.columns)
    for name in frame.columns:
        assert list(found[name]) == list(frame[name]), name


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_separator_decimal_mark_and_encoding_are_found_out(tmp_path, sep, decimal, encoding, newline):
    path = tmp_path / "t.csv"
    text = FRAME.to_csv(index=False, sep=sep, decimal=decimal, lineterminator=newline)
    path.write_bytes(text.encode(encoding))
    same(read_table(path))


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=20),
    sep=st.sampled_from(",;\t|"),
    decimal=st.sampled_from(".,"),
)
@settings(deadline=None, max_examples=60)
def test_any_numbers_are_read_as_they_were_written(tmp_path_factory, values, sep, decimal):
    """Whatever the marks, the numbers are the same, for none of them can be mistaken for another."""
    frame = pd.DataFrame({"a": values, "b": np.arange(len(values)) + 0.5})
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    frame.to_csv(path, index=False, sep=sep, decimal=decimal)
    found = read_table(path).to_pandas()
    np.testing.assert_array_equal(found["a"].to_numpy(float), values)
    np.testing.assert_array_equal(found["b"].to_numpy(float), frame["b"])


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (lzma.compress, "xz")])
def test_a_packed_file_is_read_alike(tmp_path, pack, ending):
    path = tmp_path / f"t.csv.{ending}"
    path.write_bytes(pack(FRAME.to_csv(index=False, sep=";", decimal=",").encode("latin-1")))
    same(read_table(path))


def test_what_is_given_is_not_found_out(tmp_path, caplog):
    """A file that could be read in two ways: by commas into two columns, or by semicolons into one."""
    path = tmp_path / "t.csv"
    path.write_text("a;b,c\n1;2,3\n4;5,6\n")
    assert read_table(path, CsvFormat(sep=",")).column_names == ["a;b", "c"]
    assert read_table(path, CsvFormat(sep=";")).column_names == ["a", "b,c"]
    assert read_table(path, CsvFormat(sep=";", decimal=".")).column("b,c").to_pylist() == ["2,3", "5,6"]
    assert read_table(path, CsvFormat(sep=";", decimal=",")).column("b,c").to_pylist() == [2.3, 5.6]
    path.write_bytes("name\nкот\n".encode("koi8-r"))
    assert read_table(path, CsvFormat(encoding="koi8-r")).to_pydict() == {"name": ["кот"]}
    assert not [record for record in caplog.records if "UTF-8" in record.getMessage()]


def test_what_may_surprise_is_said(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_bytes("town;x\nKöln;1,5\nBonn;2,5\n".encode("latin-1"))
    read_table(path)
    notes = [record.getMessage() for record in caplog.records]
    assert any("not in UTF-8 and was read as Windows-1252" in note for note in notes)
    assert any("commas were read as decimal marks in column 'x'" in note for note in notes)
    caplog.clear()
    path.write_text("a,b\n1,2\n")
    read_table(path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sep": ";;"}, "one character"),
        ({"decimal": "·"}, r"'\.' or ','"),
        ({"encoding": "latin-99"}, "unknown encoding 'latin-99'"),
    ],
)
def test_a_format_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        CsvFormat(**wrong)


# --- columns without a name ----------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, ["r1", "r2", "r3", "r4"]])  # pandas' numbers, R's names
def test_row_numbers_are_left_out_with_a_note(tmp_path, caplog, index):
    path = tmp_path / "t.csv"
    FRAME.set_axis(index or range(4)).to_csv(path)
    same(read_table(path))
    assert "the first column has no name; it was taken for row numbers and left out" in caplog.text


@pytest.mark.parametrize("write", ["csv", "parquet"])
def test_row_numbers_that_pandas_read_back_are_left_out_too(tmp_path, caplog, write):
    if write == "csv":
        frame = pd.read_csv(io.StringIO(FRAME.to_csv()))  # "Unnamed: 0"
    else:
        FRAME.iloc[[0, 2, 3]].to_parquet(tmp_path / "t.parquet")  # __index_level_0__
        frame = read_table(tmp_path / "t.parquet")
    assert Frame(frame).names == ("town", "größe", "n")
    assert "row numbers that pandas wrote" in caplog.text


def test_columns_without_a_name_are_empty_or_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,\n1,2,\n3,4,\n")  # a spreadsheet's empty last column
    assert read_table(path).column_names == ["a", "b"]
    path.write_text("a,,b\n1,2,3\n")
    with pytest.raises(DataError, match="column 2 has no name"):
        read_table(path)


# --- what is no table, or holds no numbers -------------------------------------------------------


def test_a_folder_a_workbook_and_other_files_are_refused_by_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "sheet.xlsx", "w") as book:
        book.writestr("xl/workbook.xml", "<workbook/>")
    (tmp_path / "renamed.csv").write_bytes((tmp_path / "sheet.xlsx").read_bytes())
    (tmp_path / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    (tmp_path / "study.dta").write_bytes(b"<stata_dta>")
    (tmp_path / "blob.csv").write_bytes(b"a,b\n\0\0\0\n")
    (tmp_path / "empty.csv").write_bytes(b"")
    for name, message in (
        ("", "is a folder; name the files in it"),
        ("sheet.xlsx", r"sheet.xlsx is an Excel workbook; save its table as CSV"),
        ("renamed.csv", "is an Excel workbook or a zip archive"),
        ("old.xls", "Excel workbook"),
        ("study.dta", "is a Stata file"),
        ("blob.csv", "is not a text file"),
        ("empty.csv", "the file is empty"),
        ("absent.csv", "there is no such file"),
    ):
        with pytest.raises(DataError, match=message):
            read_table(tmp_path / name)


def test_a_parquet_file_is_known_whatever_its_name(tmp_path):
    FRAME.to_parquet(tmp_path / "t.csv")
    same(read_table(tmp_path / "t.csv"))


@pytest.mark.parametrize("text", ["x,y\n1,2\n3\n", "x,y\n1,2\n3,4,5\n"])
def test_a_row_of_another_length_is_refused_without_quoting_it(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text.replace("3", "secret"))
    with pytest.raises(DataError, match="fields where the first has 2") as refused:
        read_table(path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("points", [("1.5", "2.5"), ("100.000", "200.000")])
def test_decimal_points_beside_commas_are_refused_where_they_are_used(tmp_path, points, caplog):
    path = tmp_path / "t.csv"
    path.write_text(f"a;b;y\n1,5;{points[0]};0\n2,5;{points[1]};1\n3,5;{points[1]};0\n")
    table = read_table(path)
    assert "column 'a' has decimal commas and column 'b' points" in caplog.text
    assert table.column("a").to_pylist() == [1.5, 2.5, 3.5]
    logistic = {"family": "logistic", "target": "y"}
    assert prepare({"s": table}, Study(**logistic, columns=("a",))).plan.columns == ("a",)
    with pytest.raises(DataError, match=r"'b' is text.*because of --decimal or of another column"):
        prepare({"s": table}, Study(**logistic, columns=("b",)))
    with pytest.raises(DataError, match="'b' is text at every site"):
        prepare({"s": table}, Study(family="linear", target="b", columns=("a",)))


@pytest.mark.parametrize("rows", [12, 60])
def test_thousands_marks_among_decimal_commas_are_no_levels(tmp_path, rows):
    path = tmp_path / "t.csv"
    doses = [f"{k},5" for k in range(rows - 2)] + ["1.210,5", "12.001,0"]
    path.write_text("dose;y\n" + "".join(f"{dose};{k % 2}\n" for k, dose in enumerate(doses)))
    study = Study(family="logistic", target="y", columns=("dose",), max_levels=1000)
    for table in (read_table(path), pd.DataFrame({"dose": doses, "y": [k % 2 for k in range(rows)]})):
        with pytest.raises(
            DataError, match=f"{rows} of its {rows} different values look like numbers"
        ) as said:
            prepare({"s": table}, study)
        assert "no thousands marks" in str(said.value)
        assert "12.001,0" not in str(said.value)


def test_a_named_decimal_mark_that_a_file_does_not_have_is_blamed(tmp_path, caplog):
    """`--decimal ,` holds for all files; one with points is then text, which every use refuses."""
    rng = np.random.default_rng(0)
    for site, mark in (("a", ","), ("b", ".")):
        doses = [f"{value:.3f}".replace(".", mark) for value in rng.uniform(1, 9, 30)]
        lines = (f"{dose};{k % 2}\n" for k, dose in enumerate(doses))
        (tmp_path / f"{site}.csv").write_text("dose;y\n" + "".join(lines))
    tables = read_sites([tmp_path / "a.csv", tmp_path / "b.csv"], csv=CsvFormat(decimal=","))
    assert "b.csv: column 'dose' does not have the decimal comma that was named" in caplog.text
    assert "leave the option out" in caplog.text
    study = Study(family="logistic", target="y", columns=("dose",))
    with pytest.raises(DataError, match=r"'dose' is text, though all its .*because of --decimal"):
        prepare(tables, study)
    caplog.clear()
    read_table(tmp_path / "a.csv", CsvFormat(decimal="."))
    assert "does not have the decimal point that was named" in caplog.text


def study(**more):
    return Study(family="linear", target="y", **more)


def rows(**columns):
    rng = np.random.default_rng(0)
    return {"a": pd.DataFrame({"x": rng.normal(size=60), "y": rng.normal(size=60), **columns})}


@pytest.mark.parametrize("large", [2**53 + 60, 2**63 - 1, -(2**60), 2**64 - 1, 10**25])
def test_whole_numbers_that_would_be_rounded_are_refused_by_name(tmp_path, large):
    numbers = [large - k if large > 0 else large + k for k in range(60)]
    if large < 2**64:
        with pytest.raises(DataError, match="column 'id' holds whole numbers beyond 2"):
            prepare(rows(id=np.array(numbers)), study())
    path = tmp_path / "t.csv"
    path.write_text("id,y\n" + "".join(f"{number},{number % 7}\n" for number in numbers))
    with pytest.raises(
        DataError, match=r"column 'id' (holds whole numbers beyond|looks like|has 60 different)"
    ):
        prepare(read_sites([path]), study())
    left_out = study(exclude=("id",))
    assert prepare(read_sites([path]), left_out).plan.columns == ()


def test_whole_numbers_up_to_the_limit_are_numbers(tmp_path):
    numbers = [2**53 - k for k in range(60)]
    prepare(rows(id=np.array(numbers)), study(columns=("id",)))
    path = tmp_path / "t.csv"
    path.write_text("id,y\n" + "".join(f"{number},{number % 7}\n" for number in numbers))
    assert read_table(path).to_pydict()["id"] == numbers


def test_lists_in_a_column_are_refused_by_name():
    with pytest.raises(DataError, match="column 'codes' holds values of type list; turn it into"):
        prepare(rows(codes=[[1, 2]] * 60), study())
    import pyarrow as pa

    table = pa.table({"codes": [[1], [2]] * 30, "y": np.arange(60.0)})
    with pytest.raises(DataError, match="column 'codes' holds values of type list"):
        prepare({"a": table}, study())


# --- identifiers ---------------------------------------------------------------------------------

NAMES = [f"P{k:03}" for k in range(60)]


def test_identifiers_are_refused_before_they_are_sent_with_how_to_leave_them_out():
    tables = rows(patient_id=NAMES)
    with pytest.raises(DataError, match=r"site 'a': column 'patient_id' has 60 .*--exclude patient_id") as no:
        prepare(tables, study())
    assert "P007" not in str(no.value)
    assert prepare(tables, study(exclude=("patient_id",))).plan.columns == ("x",)
    assert prepare(tables, study(columns=("x",))).plan.columns == ("x",)
    assert len(prepare(tables, study(categories=("patient_id",))).plan.names) == 60


def test_an_identifier_at_one_site_only_is_called_one():
    whole = rows(patient_id=NAMES)["a"]
    with pytest.raises(DataError, match="site 'a': column 'patient_id' has 40 different values"):
        prepare({"a": whole[:40], "b": whole[40:].drop(columns="patient_id")}, study())


def test_sites_too_small_to_see_an_identifier_see_it_together():
    whole = rows(patient_id=NAMES)["a"]
    tables = {f"s{k}": whole[15 * k : 15 * (k + 1)] for k in range(4)}
    with pytest.raises(DataError, match="'patient_id' has 60 different values in 60 rows"):
        prepare(tables, study())


def test_a_category_of_many_levels_is_no_identifier():
    tables = rows(town=[f"town {k % 30}" for k in range(60)])
    assert len(prepare(tables, study()).plan.levels["town"]) == 30


def test_what_is_excluded_must_be_somewhere_and_said_once():
    whole = rows(patient_id=NAMES)["a"]
    apart = {"a": whole[:30], "b": whole[30:].drop(columns="patient_id")}
    assert prepare(apart, study(exclude=("patient_id",))).plan.columns == ("x",)
    with pytest.raises(ConfigError, match="exclude names 'patient', which no site has"):
        prepare(apart, study(exclude=("patient_id", "patient")))
    for more in ({"columns": ("x",)}, {"formula": "y ~ x"}):
        with pytest.raises(ConfigError, match="exclude is for studies without columns and formula"):
            study(exclude=("patient_id",), **more)
    with pytest.raises(ConfigError, match="'y' has two roles"):
        study(exclude=("y",))


# --- on the command line -------------------------------------------------------------------------


def test_a_file_of_a_european_spreadsheet_is_fitted_and_predicted(tmp_path):
    frame = pd.concat(rows(patient=NAMES).values()).assign(ort="Köln")
    frame.loc[::2, "ort"] = "Ulm"
    frame.to_csv(tmp_path / "plain.csv", index=False)
    (tmp_path / "euro.csv").write_bytes(frame.to_csv(sep=";", decimal=",").encode("latin-1"))
    found = []
    for name in ("plain", "euro"):
        arguments = ("--family", "linear", "--target", "y", "--exclude", "patient", "--no-report")
        done = call("fit", tmp_path / f"{name}.csv", *arguments, "--out", tmp_path / name)
        assert done.exit_code == 0, done.stderr
        predicted = call("predict", tmp_path / name / "model.json", tmp_path / f"{name}.csv")
        found.append((fedshed.Model.load(tmp_path / name / "model.json").coefficients, predicted.stdout))
    assert found[0] == found[1]
    assert "note: " in done.stderr
    assert "was taken for row numbers and left out" in done.stderr
    assert "ort[Ulm]" in found[0][0]


def test_marks_can_be_given_on_the_command_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(
        "y\tx\tort\n1,5\t2\tKöln\n2,5\t4\tUlm\n0,5\t1\tUlm\n3,0\t2\tKöln\n".encode("cp850")
    )
    arguments = (
        "--sep",
        "tab",
        "--decimal",
        ",",
        "--encoding",
        "cp850",
        "--family",
        "linear",
        "--target",
        "y",
    )
    done = call("fit", tmp_path / "t.csv", *arguments, "--reference", "ort=Köln", "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    assert '"ort[Ulm]"' in done.stdout
    refused = call("fit", tmp_path / "t.csv", *arguments[:2], "--decimal", ";", "--target", "y")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "decimal must be" in refused.stderr


@pytest.mark.parametrize("sep", [",", ";"])
def test_commas_between_thousands_are_not_read_as_decimals(tmp_path, sep, caplog):
    """1,234 is no 1.234: a number a thousand times too small would go unseen."""
    path = tmp_path / "t.csv"
    path.write_text(f'income{sep}y\n"76,586"{sep}1\n200{sep}0\n"1,234,567"{sep}1\n')
    table = read_table(path)
    assert "'income' seems to have commas between thousands" in caplog.text
    with pytest.raises(DataError, match="'income' is text, though 3 of its 3 different values look like num"):
        prepare({"a": table}, Study(family="logistic", target="y", columns=("income",)))
    assert prepare({"a": table}, Study(family="logistic", target="y", columns=())).plan.columns == ()
    path.write_text(f'income{sep}y\n"76,586"{sep}1\n"0,5"{sep}0\n')
    assert read_table(path).column("income").to_pylist() == [76.586, 0.5]
    path.write_text(f'income{sep}y\n"76,586"{sep}1\n')
    assert read_table(path, CsvFormat(decimal=",")).column("income").to_pylist() == [76.586]


@pytest.mark.parametrize("rows", ["1,5;2,5;3", "1;2;3", f"{10**25};2;3"])
def test_two_columns_of_one_name_are_refused(tmp_path, rows):
    path = tmp_path / "t.csv"
    path.write_text(f"age;age;y\n{rows}\n")
    with pytest.raises(DataError, match="two columns are called 'age'"):
        read_table(path)
