"""What the command line shows of a fit for its readers: ratios, errors, tests, intervals, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from tests.cli.test_cli_fit import people

import fedshed
from calls import call

SIZES = {"aachen": 60, "bonn": 90, "celle": 140}


@pytest.fixture
def files(tmp_path):
    paths = []
    for k, (site, rows) in enumerate(SIZES.items()):
        frame = people(rows, k)
        frame["who"] = np.arange(rows) // 3
        frame.loc[: 5 + k, "age"] = np.nan
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
        paths.append(tmp_path / f"{site}.csv")
    return paths


def fit(files, out, *more):
    return call("fit", *files, "--target", "ill", "--missing", "drop", "--no-report", "--out", out, *more)


SMALL, LARGE = ("--columns", "age"), ("--columns", "age,smoker")


def test_ratios_are_printed_and_in_the_csv_file(files, tmp_path):
    result = fit(files, tmp_path / "out", *LARGE, "--exp")
    assert result.exit_code == 0, result.stderr
    assert "odds ratio" in result.stdout
    assert "Modelled: the probability that ill is yes, not no" in result.stdout
    assert "Reference levels: smoker = no" in result.stdout
    text = (tmp_path / "out" / "coefficients.csv").read_text()
    rows = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    model = fedshed.Model.load(tmp_path / "out" / "model.json")
    assert float(rows["smoker[yes]"]["exp_estimate"]) == np.exp(model.coefficients["smoker[yes]"])
    line = next(line for line in result.stdout.splitlines() if line.startswith("smoker[yes]"))
    assert f"{np.exp(model.coefficients['smoker[yes]']):.4f}" in line


def test_rows_dropped_are_counted_for_readers_and_programs(files, tmp_path):
    result = fit(files, tmp_path / "out", *LARGE, "--json")
    facts = json.loads(result.stdout)
    assert {site: each["dropped"] for site, each in facts["rows"].items()} == {
        "aachen": 6,
        "bonn": 7,
        "celle": 8,
    }
    assert facts["rows"]["bonn"]["missing"] == {"age": 7}
    assert (facts["modelled"], facts["reference"]) == ("yes", "no")
    assert facts["references"] == {"smoker": "no"}
    for name in ("deviance", "aic", "bic", "sites", "heterogeneity", "df_resid"):
        assert facts["fit"][name] is not None, name
    text = (tmp_path / "out" / "summary.txt").read_text()
    assert "were dropped: 21; 269 were used" in text


@pytest.mark.parametrize("kind", ["HC0", "HC3", "cluster"])
def test_errors_by_rows_and_clusters_are_shown_on_request(files, tmp_path, kind):
    more = ("--cluster", "who") if kind == "cluster" else ()
    result = fit(files, tmp_path / "out", *LARGE, "--errors", kind, *more)
    assert result.exit_code == 0, result.stderr
    assert ("robust, by cluster" if kind == "cluster" else f"robust, by rows ({kind})") in result.stdout
    model = fedshed.Model.load(tmp_path / "out" / "model.json")
    assert (model.inference.std_err(robust=kind) != model.inference.std_err()).all()


def test_nested_models_are_compared_and_others_are_not(files, tmp_path):
    for name, columns in (("small", SMALL), ("large", LARGE)):
        assert fit(files, tmp_path / name, *columns).exit_code == 0
    small, large = (tmp_path / name / "model.json" for name in ("small", "large"))
    result = call("test", small, large)
    assert result.exit_code == 0, result.stderr
    assert "chi2(1) = " in result.stdout
    found = json.loads(call("test", small, large, "--json").stdout)
    models = [fedshed.Model.load(path) for path in (small, large)]
    assert found["p_value"] == pytest.approx(fedshed.likelihood_ratio(*models).p_value)
    wrong = call("test", large, small)
    assert wrong.exit_code == 2
    assert "not nested" in wrong.stderr


def test_predictions_have_intervals_and_unknown_levels_may_be_left_empty(files, tmp_path):
    assert fit(files, tmp_path / "out", *LARGE).exit_code == 0
    new = pd.DataFrame({"age": [40.0, 50.0, 60.0], "smoker": ["yes", "often", "no"]})
    new.to_csv(tmp_path / "new.csv", index=False)
    model = tmp_path / "out" / "model.json"
    refused = call("predict", model, tmp_path / "new.csv")
    assert refused.exit_code == 2
    assert "the level 'often' is none of the study's" in refused.stderr
    result = call("predict", model, tmp_path / "new.csv", "--on-unknown-level", "missing", "--interval")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == ["prediction", "p[no]", "p[yes]", "p[yes] std_err", "p[yes] low", "p[yes] high"]
    assert set(rows[1].values()) == {""}
    assert all(
        float(row["p[yes] low"]) < float(row["p[yes]"]) < float(row["p[yes] high"])
        for row in (rows[0], rows[2])
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--errors", "HC9"), "write one of model, site, HC0"),
        (("--errors", "HC3", "--robust"), "give only one of them"),
        (("--weight-type", "precision"), "the study names no weight"),
        (("--trials", "age"), "trials are for the binomial families"),
    ],
)
def test_wrong_use_is_one_sentence(files, tmp_path, more, said):
    result = fit(files, tmp_path / "out", *LARGE, *more)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


COMMAS = "age;ill\n" + "".join(f"4{k % 10},{k % 7};{'yes' if k % 3 else 'no'}\n" for k in range(30))


@pytest.mark.parametrize("columns", ["60", "80", "200", None])
def test_notes_and_errors_fit_the_terminal_and_stay_whole_in_a_pipe(tmp_path, monkeypatch, columns):
    """They were 82, 151 and 330 characters wide on a terminal of 80."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    for site in ("north", "south", "west"):
        (tmp_path / f"{site}.csv").write_text(COMMAS)
    files = [str(tmp_path / f"{site}.csv") for site in ("north", "south", "west")]
    result = call("fit", *files, "--target", "ill", "--columns", "agee", "--out", tmp_path / "out")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    if columns is None:
        assert all(line.startswith(("note: ", "error: ")) for line in lines)
    else:
        assert max(len(line) for line in lines if "/" not in line) <= int(columns)
    said = " ".join(result.stderr.split())
    assert said.count("commas were read as decimal marks") == 1  # for the three files together
    assert all(file in said for file in files)
