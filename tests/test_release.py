"""Before a release: one version everywhere, and recorded results are not stale, or said to be."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from benchmarks.figures import command, recorded, tables
from benchmarks.figures.steps import STEPS
from benchmarks.rivals import page
from benchmarks.rivals.page import Medians
from benchmarks.rivals.problems import HELD_OUT
from benchmarks.rivals.runs import Cell, Outcome
from msgspec.structs import replace

from fedshed.experiments import runs
from fedshed.experiments.plan import Problem, Run
from fedshed.experiments.runs import Spec
from gates import disagreeing

ROOT = Path(__file__).parent.parent
DIGITS = Problem("digits", 1e-2)
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
def figures(tmp_path, monkeypatch):
    """A folder of figures, and two that it should have: one of PEN, and one of PEN and Newton."""
    now = {name: runs.behaviour_of(Spec(DIGITS, Run(name), 0.0)) for name in ("pen", "newton")}
    does = {name: partial(now.get, name) for name in now}
    made = {
        "pen.svg": recorded.Source("one", {"pen": does["pen"]}),
        "both.svg": recorded.Source("two", does),
    }
    monkeypatch.setattr(recorded, "FIGURES", tmp_path)
    monkeypatch.setattr(recorded, "sources", lambda: made)
    return now, made


def test_stale_results_are_named_with_the_reason(figures, capsys):
    now, made = figures
    recorded.note(made)
    assert not command.checked()
    now["newton"] = replace(now["newton"], rows=now["pen"].rows)
    made["pen.svg"].settings = "others"
    made["new.svg"] = made["both.svg"]
    assert command.checked()
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "stale: docs/figures/pen.svg: its settings have changed",
        "stale: docs/figures/both.svg: other behaviour of newton",
        "stale: docs/figures/new.svg: what it was recorded with is not known",
    ]
    recorded.note(["both.svg"])
    assert [line.split(":")[0] for line in recorded.stale()] == [
        "docs/figures/pen.svg",
        "docs/figures/new.svg",
    ]


def test_every_drawn_figure_of_the_documentation_has_a_source():
    folder = ROOT / "docs/figures"
    drawn = {path.name for path in folder.glob("*.svg") if b"Recorded at" in path.read_bytes()}
    assert drawn <= recorded.sources().keys()


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
