"""Before a release: one version everywhere, and recorded results of today's code, or said to be stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.figures import command, stale, tables
from benchmarks.figures.steps import STEPS
from benchmarks.rivals import page
from benchmarks.rivals.page import Medians
from benchmarks.rivals.problems import HELD_OUT
from benchmarks.rivals.runs import Cell, Outcome

from fedshed.experiments.provenance import code_hash
from gates import disagreeing

ROOT = Path(__file__).parent.parent
VERSIONED = {
    "CHANGELOG.md": "# Changelog\n\n## {}\n\n- new\n\n## 1.0\n\n- old\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: {}\n",
    "src/fedshed/_utils/version.py": '"""The version."""\n\n__version__ = "{}"\n',
}


def write(folder, **versions):
    """A tree with the files that have a version: 1.2 unless another is given."""
    for name, text in VERSIONED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(versions.get(Path(name).stem, "1.2")))
    return folder


def test_a_version_is_the_same_everywhere_or_the_file_is_named(tmp_path):
    assert disagreeing(write(tmp_path)) == ""
    said = disagreeing(write(tmp_path, CHANGELOG="Unreleased"))
    assert said == "CHANGELOG.md begins with 'Unreleased'; its newest heading must be '1.2', the package's"
    said = disagreeing(write(tmp_path, CITATION="1.1"))
    assert said == "CITATION.cff has version 1.1, the package 1.2"
    assert "the package 1.3" in disagreeing(write(tmp_path, version="1.3"))


def test_the_files_of_this_tree_have_versions():
    for name in VERSIONED:
        assert (ROOT / name).is_file()
    assert disagreeing(ROOT, released=False) == ""


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """Pages and a figure that were recorded with today's code, and a figure that was drawn by hand."""
    (tmp_path / "docs/figures").mkdir(parents=True)
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "DOCS", tmp_path / "docs")
    for name in stale.PAGES:
        code = stale.runs.code() if "rivals" in name else code_hash()
        (tmp_path / "docs" / name).write_text(f"Recorded at commit `1`, code `{code}`; fedshed.\n")
    (tmp_path / "docs/figures/w8a.svg").write_text(f"<svg>code {code_hash()}</svg>")
    (tmp_path / "docs/figures/how.svg").write_text("<svg></svg>")
    return tmp_path / "docs"


def test_results_of_other_code_are_named(docs, capsys):
    assert not command.checked()
    other = 24 * "0"
    (docs / "results.md").write_text(f"code `{other}`")
    (docs / "figures/rivals.md").write_text(f"code `{code_hash()}`")  # without the code of the rivals' runs
    (docs / "figures/w8a.svg").write_text(f"<svg>code {other}</svg>")
    assert command.checked()
    said = capsys.readouterr().out
    assert f"stale: docs/results.md was recorded with code {other}" in said
    assert "docs/figures/rivals.md" in said
    assert "1 figures were recorded with other code: docs/figures/w8a.svg" in said
    assert "how.svg" not in said


def test_the_check_is_an_error_only_if_asked_to_be(monkeypatch):
    monkeypatch.setattr(command, "checked", lambda: True)
    for words, code in (([], 0), (["--strict"], 1)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "figures", "--check", *words])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert int(ended.value.code) == code


def test_the_command_needs_data_and_known_steps():
    def said(*words):
        python = [sys.executable, "-m", "benchmarks", "figures", *words]
        done = subprocess.run(python, cwd=ROOT, capture_output=True, text=True, check=False, env={"PATH": ""})
        assert done.returncode != 0
        return done.stderr

    assert "FEDSHED_DATA is not set" in said()
    assert all(name in said("--steps", "nothing") for name in STEPS)


def test_a_table_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- rounds -->\n| old |\n<!-- /rounds -->\nafter\n")
    tables.fill(page, "rounds", "| new |")
    assert page.read_text() == "before\n<!-- rounds -->\n| new |\n<!-- /rounds -->\nafter\n"
    with pytest.raises(SystemExit, match="has no <!-- rivals -->"):
        tables.fill(page, "rivals", "")


@pytest.mark.parametrize(
    ("page", "name"),
    [("beyond.md", "rivals"), ("beyond.md", "least"), ("choose.md", "rivals"), ("choose.md", "rounds")],
)
def test_pages_have_the_marks_of_their_tables(page, name):
    text = (ROOT / "docs" / page).read_text()
    assert text.index(f"<!-- {name} -->") < text.index(f"<!-- /{name} -->")


def outcome(problem, name, exchanges, up, down=1.0):
    return Outcome(Cell(problem, 0, name, ""), True, 1e-12, exchanges, up, down, 0.0)


def test_where_a_rival_sends_less_than_pen_is_said_first_and_from_the_runs():
    problems = list(HELD_OUT)
    found = {(p, "pen"): Medians([outcome(p, "pen", 10, 20.0)]) for p in problems}
    found |= {
        (p, "lbfgs-coded"): Medians([outcome(p, "lbfgs-coded", 60, 5.0 if p == problems[0] else 30.0)])
        for p in problems
    }
    sentence, _, *rows = page.least(found).splitlines()
    assert sentence.startswith(
        f"**Coded L-BFGS sends fewer bytes up than PEN on 1 of the {len(problems)} problems that were held "
        f"out** ({problems[0]}: 5.0 KB in 60 exchanges, PEN 20.0 KB in 10), with 6.0 to 6.0 times"
    )
    assert rows[2] == f"| {problems[0]} | `pen`: 10 | `lbfgs-coded`: 5.0 KB | `lbfgs-coded`: 6.0 KB |"
    assert rows[3] == f"| {problems[1]} | `pen`: 10 | `pen`: 20.0 KB | `pen`: 21.0 KB |"
