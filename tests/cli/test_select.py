"""`fedshed select` and `fedshed fit --l1`, as typed."""

from __future__ import annotations

import csv
import json

import pytest
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from fedshed import Model
from fedshed.cli import app


@pytest.fixture
def tables(tmp_path):
    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 8, -1]]
    frame = frame.rename(columns=lambda name: name.replace(" ", "_"))
    places = [tmp_path / f"{name}.csv" for name in ("north", "south")]
    frame[:60].to_csv(places[0], index=False)
    frame[60:].to_csv(places[1], index=False)
    return [str(place) for place in places]


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_select_writes_the_path_the_figure_and_the_model(tables, tmp_path):
    out = tmp_path / "out"
    asked = ("--target", "target", "--values", "8", "--folds", "3", "--rule", "1se", "--json")
    shown = run("select", *tables, *asked, "--out", str(out))
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["chosen"] in found["path"]
    rows = list(csv.DictReader((out / "path.csv").read_text().splitlines()))
    assert len(rows) == len(found["path"]) == 8
    model = Model.load(out / "model.json")
    assert model.plan.study.standardize
    assert model.plan.study.l1 == pytest.approx(found["chosen"]["l1"])
    assert {path.name for path in out.iterdir()} == {
        "path.csv", "model.json", "coefficients.csv", "path.svg", "path.png"
    }  # fmt: skip


def test_a_fit_with_an_absolute_penalty_says_so(tables, tmp_path):
    shown = run(
        "fit", *tables, "--target", "target", "--standardize", "--l1", "0.1", "--out", str(tmp_path / "fit")
    )
    assert shown.exit_code == 0, shown.output
    assert "No standard errors" in shown.output
    assert "0.1 (1 free)" in shown.output


def test_what_cannot_be_selected_is_refused_in_one_line(tables, tmp_path):
    shown = run("select", *tables, "--target", "target", "--folds", "1", "--out", str(tmp_path / "out"))
    assert shown.exit_code == 2
    assert "folds must be 0, or from 2" in shown.output
