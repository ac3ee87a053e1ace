"""What is written is private, and no name of a column, level, class or site commands what shows it."""

from __future__ import annotations

import csv
import stat
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedshed
from fedshed._utils.errors import Error
from fedshed._utils.files import append_whole, write_atomically
from fedshed._utils.names import printable, printable_lines
from fedshed._utils.notebook import html_table, preformatted
from fedshed.cli import app
from fedshed.solve.watching import RunLog

RED, BELL, BACK, TURN = "\x1b[31m", "\x1b]0;mine\x07", "\rconverged: yes", "\u202etxet"
NAMES = {"column": f"age{RED}", "other": f"b{TURN}", "level": f"north{BACK}", "site": f"s{BELL}\x9b2J"}


def harmful(text):
    """The characters of a text that a terminal or a page would obey."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def hostile_tables(rows=80):
    """Three sites whose columns, levels, classes and names hold control characters."""
    tables = {}
    for k, site in enumerate((NAMES["site"], "b", "c\u2066")):
        rng = np.random.default_rng(k)
        x = rng.normal(size=rows)
        tables[site] = {
            NAMES["column"]: x,
            NAMES["other"]: np.where(rng.random(rows) < 0.5, NAMES["level"], "south"),
            "y\x1b": np.where(rng.random(rows) < 1 / (1 + np.exp(-x)), f"ill{RED}", "well"),
        }
    return tables


STUDY = fedshed.Study(family="logistic", target="y\x1b")


@pytest.fixture(scope="module")
def model():
    return fedshed.fit(hostile_tables(), STUDY)


def test_summaries_and_notebooks_show_control_characters_as_codes(model):
    shown = [str(model.summary()), repr(model), repr(model.summary()), model._repr_html_()]
    for text in shown:
        assert harmful(text) == []
    for code in ("age\\x1b[31m", "\\u202e", "north\\r"):
        assert code in shown[0]


def test_the_command_line_shows_codes_and_writes_private_files(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["clinic", NAMES["column"], NAMES["other"], "y"])
        for site, table in hostile_tables().items():
            columns = list(table.values())
            writer.writerows([site, *row] for row in zip(*columns, strict=True))
    out = tmp_path / "out"
    arguments = [
        "fit",
        str(path),
        "--site",
        "clinic",
        "--target",
        "y",
        "--family",
        "logistic",
        "--out",
        str(out),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert harmful(done.output) == []
    written = [file for file in out.rglob("*") if file.is_file()]
    assert {"model.json", "summary.txt"} <= {file.name for file in written}
    for file in written:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert harmful((out / "summary.txt").read_text()) == []
    page = (out / "report.html").read_text()
    assert "age\\\\x1b[31m" in page  # a backslash in JSON
    assert not {"\x1b", "\u202e", "\x9b", "\u2066"} & set(page)
    as_json = CliRunner().invoke(app, ["fit", *arguments[1:-2], "--json"])
    assert harmful(as_json.output) == []


def test_an_error_that_quotes_a_name_is_shown_without_its_characters(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"y,{RED}x\n1,2\n3,4\n5,6\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["fit", str(path), "--target", f"z{RED}", "--family", "linear"])
    assert done.exit_code == 2
    assert harmful(done.output) == []


def test_what_a_site_says_of_its_refusal_is_shown_as_codes():
    tables = hostile_tables()
    tables["b"].pop(NAMES["column"])
    with pytest.raises(Error) as caught:
        fedshed.fit(tables, STUDY)
    assert harmful(str(caught.value)) == []


def test_files_are_private_from_the_first_byte_unless_they_are_public(tmp_path):
    assert stat.S_IMODE(write_atomically(tmp_path / "a", b"x").stat().st_mode) == 0o600
    assert stat.S_IMODE(write_atomically(tmp_path / "b", b"x", private=False).stat().st_mode) & 0o044
    (tmp_path / "a").chmod(0o644)  # a file that was public is private once it is written again
    assert stat.S_IMODE(write_atomically(tmp_path / "a", b"y").stat().st_mode) == 0o600
    append_whole(tmp_path / "log", b"x")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_the_log_of_a_run_is_private(tmp_path):
    fedshed.fit(hostile_tables(), STUDY, watch=RunLog(tmp_path))
    (log,) = tmp_path.iterdir()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert harmful(log.read_text()) == []


@given(st.text())
def test_no_text_commands_a_terminal_and_harmless_letters_stay(text):
    shown = printable(text)
    assert [c for c in harmful(shown) if c not in "\u200c\u200d"] == []
    assert "\n" not in shown
    assert "\n".join(map(printable, text.split("\n"))) == printable_lines(text)
    assert printable(shown) == shown
    for page in (html_table([{"name": text}], text), preformatted(text)):
        assert [c for c in harmful(page) if c not in "\u200c\u200d"] == []


@pytest.mark.parametrize("name", ["Größe", "年齢", "می\u200cخواهم", "a b", "x\u00a0y", "\\x1b"])
def test_names_in_any_script_are_shown_as_they_are(name):
    assert printable(name) == name
