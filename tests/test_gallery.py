"""The scripts of the gallery run, each on embedded data, and each makes one figure."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder, and no screen."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    yield tmp_path
    plt.close("all")


def test_there_are_enough_examples():
    assert 8 <= len(EXAMPLES) <= 14


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_saves_one_figure(path, elsewhere):
    runpy.run_path(str(path), run_name="__main__")
    assert [file.name for file in elsewhere.iterdir()] == [f"{path.stem}.svg"]
    assert (elsewhere / f"{path.stem}.svg").stat().st_size > 5000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path):
    source = path.read_text()
    title, blank, *text = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    assert title[-1] in ".?"
    assert blank == ""
    assert text
    assert 10 <= len(source.splitlines()) <= 35
