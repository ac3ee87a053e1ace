"""`fedshed evaluate`, and `fedshed fit` with rows or sites left out, as they are typed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd
import pytest
from benchmarks.auc import simulated
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

import fedshed
from fedshed.cli import app
from fedshed.report import Report, Rerun
from fedshed.report.page import page


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three sites with three columns of the breast cancer data."""
    place = tmp_path_factory.mktemp("sites")
    frame = load_breast_cancer(as_frame=True).frame
    frame = frame[["mean texture", "mean smoothness", "mean symmetry", "target"]]
    frame.columns = ["texture", "smoothness", "symmetry", "target"]
    for site, rows in {"a": slice(60), "b": slice(60, 220), "c": slice(220, None)}.items():
        frame[rows].to_csv(place / f"{site}.csv", index=False)
    return place


def typed(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_fit_with_rows_held_out_prints_saves_and_reports_the_evaluation(folder, tmp_path) -> None:
    tables = [folder / f"{site}.csv" for site in "abc"]
    said = typed("fit", *tables, "--target", "target", "--holdout", "0.3", "--out", tmp_path)
    assert "Evaluation: 30% of rows, held out" in said
    model = fedshed.Model.load(tmp_path / "model.json")
    assert model.evaluation.rows == 18 + 48 + 105
    frame = pd.read_csv(tmp_path / "evaluation.csv", keep_default_na=False)
    area = frame[(frame["measure"] == "auc") & (frame["site"] == "")]["value"].item()
    assert float(area) == pytest.approx(model.evaluation.pooled["auc"].value)
    html = (tmp_path / "report.html").read_text()
    assert '"evaluation":{"text":"Evaluation: 30%' in html
    assert (tmp_path / "evaluation.svg").exists()


def test_evaluate_prints_what_the_function_finds_and_leave_one_site_out_too(folder, tmp_path) -> None:
    tables = [folder / f"{site}.csv" for site in "abc"]
    said = typed(
        "fit", *tables, "--target", "target", "--leave-one-site-out", "--no-report", "--out", tmp_path
    )
    assert "Evaluation: each site by a model of the others" in said
    found = msgspec.json.decode(
        typed("evaluate", tmp_path / "model.json", *tables, "--json", "--bins", "500", "--least", "5")
    )["evaluation"]
    expected = fedshed.evaluate(
        fedshed.Model.load(tmp_path / "model.json"), {s: pd.read_csv(folder / f"{s}.csv") for s in "abc"},
        bins=500, least=5,
    )  # fmt: skip
    assert found["pooled"]["auc"]["value"] == expected.pooled["auc"].value
    assert found["pooled"]["auc"]["bound"] == expected.pooled["auc"].bound > 0
    text = typed(
        "evaluate", tmp_path / "model.json", tables[0], "--threshold", "0.3", "--out", tmp_path / "x"
    )
    assert "at probability 0.3" in text
    assert (tmp_path / "x" / "evaluation.txt").read_text() in text + "\n"


def test_a_wrong_threshold_or_fraction_is_told_in_one_line(folder, tmp_path) -> None:
    for words in (("--holdout", "1.5"), ("--holdout", "no-such-column")):
        table = folder / "c.csv"
        result = CliRunner().invoke(
            app, ["fit", str(table), "--target", "target", *words, "--out", str(tmp_path)]
        )
        assert result.exit_code == 2
        assert result.output.splitlines()[-1].startswith("error:")


def test_a_report_without_an_evaluation_has_none() -> None:
    assert '"evaluation":null' in page(Report("t", (), Rerun("c", 0)))


def test_auc_from_bins_of_simulated_federations_is_within_its_bound() -> None:
    for seed in range(15):
        case = simulated(seed, bins=200)
        assert case.error <= case.found.bound + 1e-12
        assert case.found.bound < 0.35
