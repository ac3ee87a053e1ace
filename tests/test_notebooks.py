"""Notebooks are kept without outputs and begin by saying what they are for; `make docs` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text())["cells"]


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["compare", "hospitals", "own_algorithm"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_its_cells_printed(path):
    """So that nothing in it can be out of date; the site shows what the cells print when it is built."""
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_what_the_reader_will_be_able_to_do(path):
    first = "".join(cells(path)[0]["source"])
    assert first.startswith("# ")
    assert "In this notebook you " in first
