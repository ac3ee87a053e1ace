"""`fedshed fit` and `fedshed predict`: files in, a model out, and one line where that cannot be."""

from __future__ import annotations

import copy
import csv
import io
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.figure import Figure

import fedshed
from against_r import FOLDER
from calls import call, strict_json
from fedshed.inference import plot
from fedshed.tables import read_sites

FILES = {
    *("model.json", "summary.txt", "trace.csv", "report.html"),
    *("coefficients.csv", "coefficients.png", "coefficients.svg"),
}
SIZES = {"aachen": 30, "bonn": 60, "celle": 140}


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, smoker = rng.normal(50, 9, rows).round(1), rng.random(rows) < 0.4
    z = 0.05 * (age - 50) + 0.8 * smoker - 0.3 * seed
    return pd.DataFrame(
        {
            "age": age,
            "smoker": np.where(smoker, "yes", "no"),
            "years": rng.uniform(0.1, 2, rows).round(3),
            "visits": rng.poisson(np.exp(0.3 * z)),
            "ill": np.where(rng.random(rows) < 1 / (1 + np.exp(-z)), "yes", "no"),
        }
    )


@pytest.fixture
def frames():
    return {site: people(rows, k) for k, (site, rows) in enumerate(SIZES.items())}


@pytest.fixture
def files(frames, tmp_path):
    """A CSV file for each site."""
    for site, frame in frames.items():
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    return [tmp_path / f"{site}.csv" for site in frames]


ILL = ("--target", "ill", "--columns", "age,smoker")


def written(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


# --- a fit ---------------------------------------------------------------------------------------


def test_a_fit_prints_its_summary_and_says_where_its_files_are(files, tmp_path):
    out = tmp_path / "out"
    result = call("fit", *files, *ILL, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert written(out) == FILES
    said = {line.removeprefix("wrote ") for line in result.stdout.splitlines() if line.startswith("wrote ")}
    assert said == {str(out / name) for name in FILES}
    model = fedshed.Model.load(out / "model.json")
    assert result.stdout.startswith(f"{model.summary()}\n")
    assert (out / "summary.txt").read_text() == f"{model.summary()}\n"
    assert list(model.inference.sites) == list(SIZES)


def test_the_command_is_the_function(frames, files, tmp_path):
    call("fit", *files, *ILL, "--l2", "0.01", "--standardize", "--out", tmp_path)
    study = fedshed.Study(
        family="logistic", target="ill", columns=("age", "smoker"), l2=0.01, standardize=True
    )
    model = fedshed.fit(frames, study)
    found = fedshed.Model.load(tmp_path / "model.json")
    assert (found.plan, found.inference, found.run) == (model.plan, model.inference, model.run)


def test_json_holds_the_table_and_is_all_there_is_on_stdout(files, tmp_path):
    result = call("fit", *files, *ILL, "--out", tmp_path / "out", "--json", "--level", "0.9")
    assert (result.exit_code, result.stderr) == (0, "")
    report = strict_json(result.stdout)
    frame = fedshed.Model.load(tmp_path / "out" / "model.json").summary(level=0.9).to_frame()
    table = pd.DataFrame(report["coefficients"]).set_index("name")
    pd.testing.assert_frame_equal(table, frame, check_names=False, check_exact=True)
    assert report["run"]["converged"] is True
    assert {path.rsplit("/", 1)[-1] for path in report["files"]} == FILES


@pytest.mark.parametrize("kind", ["parquet", "polars", "csv.gz"])
def test_any_file_gives_the_same_model(frames, files, tmp_path, kind):
    call("fit", *files, *ILL, "--out", tmp_path / "expected")
    whole = pd.concat([frame.assign(hospital=site) for site, frame in frames.items()], ignore_index=True)
    path = tmp_path / f"all.{'parquet' if kind == 'polars' else kind}"
    if kind == "csv.gz":
        whole.to_csv(path, index=False)
    elif kind == "polars":
        pl.from_pandas(whole).write_parquet(path)
    else:
        whole.to_parquet(path)
    result = call("fit", path, "--site", "hospital", *ILL, "--out", tmp_path / "found")
    assert result.exit_code == 0
    one, other = (fedshed.Model.load(tmp_path / name / "model.json") for name in ("expected", "found"))
    assert one.inference == other.inference


def test_one_table_without_a_site_column_is_said_to_be_one_site(files, tmp_path):
    result = call("fit", files[2], *ILL, "--out", tmp_path)
    assert result.exit_code == 0
    assert "celle.csv is treated as one site" in result.stderr


@pytest.mark.parametrize("command", ["fit", "compare", "select", "meta"])
@pytest.mark.parametrize("name", [".", "absent.csv"])
def test_an_error_about_the_path_comes_without_that_note(tmp_path, command, name):
    result = call(command, tmp_path / name, *ILL, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("how", [("--formula", "ill ~ age + C(hospital)"), ("--columns", "age,hospital")])
@pytest.mark.parametrize("names", [{}, {"aachen": 3, "bonn": 1, "celle": 2}])
def test_each_site_may_have_its_own_intercept(frames, tmp_path, how, names):
    """The column of sites, of text or numbers, is a category of the model if it is asked for."""
    whole = pd.concat([frame.assign(hospital=names.get(site, site)) for site, frame in frames.items()])
    whole.to_csv(tmp_path / "all.csv", index=False)
    result = call(
        "fit", tmp_path / "all.csv", "--site", "hospital", "--target", "ill", *how, "--out", tmp_path
    )
    assert result.exit_code == 0, result.stderr
    model = fedshed.Model.load(tmp_path / "model.json")
    assert set(model.coefficients) == {"age", "intercept"} | {
        f"hospital[{names.get(site, site)}]" for site in SIZES if names.get(site, site) not in ("aachen", 1)
    }
    found = np.array([(model.predict_proba(whole)[:, 1]), whole["ill"] == "yes"], dtype=float).T
    for site in set(whole["hospital"]):  # with an intercept of its own a site's mean is fitted exactly
        mine = found[whole["hospital"] == site].mean(axis=0)
        np.testing.assert_allclose(mine[0], mine[1], atol=1e-8)


def test_robust_errors_of_few_sites_are_a_note_of_the_summary_and_no_traceback(files, tmp_path):
    result = call("fit", *files, *ILL, "--robust", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "No robust error is given: the effective number of sites" in result.stdout


def test_marks_of_missing_values_are_besides_nothing(frames, tmp_path):
    frame = frames["celle"].astype(object)
    frame.loc[3, "age"], frame.loc[5, "age"] = "?", None
    frame.to_csv(tmp_path / "celle.csv", index=False)
    given = ("fit", tmp_path / "celle.csv", *ILL, "--missing", "drop", "--out", tmp_path)
    assert call(*given).exit_code == 2
    assert call(*given, "--na-values", "?").exit_code == 0
    assert fedshed.Model.load(tmp_path / "model.json").inference.rows == 138


# --- a study in a file -----------------------------------------------------------------------------


def test_a_study_in_a_file_is_the_options(files, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'family = "poisson"\nformula = "visits ~ age + smoker"\nexposure = "years"\n'
        '[references]\nsmoker = "yes"\n'
    )
    options = ("--family", "poisson", "--formula", "visits ~ age + smoker", "--exposure", "years")
    call("fit", *files, "--study", study, "--out", tmp_path / "a")
    call("fit", *files, *options, "--reference", "smoker=yes", "--out", tmp_path / "b")
    one, other = (fedshed.Model.load(tmp_path / name / "model.json") for name in "ab")
    assert (one.plan, one.inference) == (other.plan, other.inference)


@pytest.mark.parametrize("option", [("--family", "poisson"), ("--l2", "0.1"), ("--reference", "a=b")])
def test_what_a_study_says_is_not_said_twice(files, tmp_path, option):
    (tmp_path / "study.toml").write_text('family = "logistic"\ntarget = "ill"')
    result = call("fit", *files, "--study", tmp_path / "study.toml", *option, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{option[0]} cannot be combined with --study" in result.stderr
    assert not (tmp_path / "out").exists()


# --- what goes wrong -------------------------------------------------------------------------------


def test_a_fit_that_does_not_converge_says_so_everywhere_and_exits_1(files, tmp_path):
    result = call("fit", *files, *ILL, "--max-iterations", "1", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("not converged: max_iterations = 1 reached; ")
    assert "NOT CONVERGED: max_iterations = 1 reached" in result.stdout
    assert not fedshed.Model.load(tmp_path / "out" / "model.json").converged


def test_separated_classes_are_named_and_exit_1(frames, tmp_path):
    frame = frames["celle"].assign(mark=lambda f: (f["ill"] == "yes") * 1.0 + f["age"] / 1e4)
    frame.to_csv(tmp_path / "celle.csv", index=False)
    result = call(
        "fit", tmp_path / "celle.csv", "--target", "ill", "--columns", "age,mark", "--out", tmp_path
    )
    assert result.exit_code == 1
    assert "not converged: separated" in result.stderr
    assert "mark" in result.stderr
    assert "l2 > 0" in result.stderr
    assert "NOT CONVERGED" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "il"), "did you mean 'ill'?"),
        ((), "names no target"),
        ((*ILL, "--family", "logit"), "family cannot be 'logit'; did you mean 'logistic'? known: binomial, "),
        ((*ILL, "--level", "95"), "--level must be between 0 and 1"),
        ((*ILL, "--algorithm", "nwton"), "did you mean 'newton'?"),
        ((*ILL, "--l2", "-1"), "l2 must be"),
        ((*ILL, "--reference", "smoker"), "write it as COLUMN=LEVEL"),
        ((*ILL, "--reference", "smoker=maybe"), "does not occur at any site"),
        ((*ILL, "--site", "hospital"), "no column 'hospital'"),
        ((*ILL, "--missing", "ignore"), "missing cannot be 'ignore'; known: drop, impute, indicator, refuse"),
        ((*ILL, "--study", "absent.toml"), "--target cannot be combined with --study"),
        (("--study", "absent.toml"), "no such file"),
        (("--formula", "ill ~ __import__('os')"), "unknown function"),
        (("--formula", "ill ~ age**2"), "I(x^2)"),
        (("--target", "age", "--family", "logistic"), "exactly two classes"),
        (("--target", "visits", "--family", "gamma", "--columns", "age"), "'visits' is 0 or negative"),
    ],
)
def test_wrong_use_is_a_line_for_each_objection_and_exit_code_2_and_nothing_is_written(
    files, tmp_path, arguments, message
):
    result = call("fit", *files, *arguments, "--out", tmp_path / "new")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    lines = result.stderr.splitlines()
    assert len(lines) == 1 or all("site '" in line for line in lines), "several only of several sites"
    assert message in result.stderr
    assert not (tmp_path / "new").exists()


def test_robust_errors_of_one_site_are_refused_before_the_work(files, tmp_path):
    result = call("fit", files[0], *ILL, "--robust", "--out", tmp_path / "new")
    assert result.exit_code == 2
    assert "need at least two sites" in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_absent_or_no_table_is_named(files, tmp_path):
    (tmp_path / "bad.parquet").write_text("no")
    for path in ("absent.csv", "bad.parquet"):
        result = call("fit", tmp_path / path, *ILL, "--out", tmp_path / "new")
        assert result.exit_code == 2
        assert path in result.stderr
        assert not (tmp_path / "new").exists()


def test_a_model_file_that_was_cut_is_refused(files, tmp_path):
    """Whatever is lost or changed, it is a sentence and no traceback."""
    call("fit", *files, *ILL, "--no-report", "--out", tmp_path)
    path = tmp_path / "model.json"
    whole = json.loads(path.read_text())
    changes = {
        "coefficients": lambda model: model["inference"]["coefficients"].pop(),
        "covariance": lambda model: model["inference"]["model_covariance"].pop(),
        "loss": lambda model: model["inference"].update(loss="poisson"),
        "classes": lambda model: model["plan"].update(classes=None),
        "names": lambda model: model["plan"]["names"].pop(),
    }
    for change in changes.values():
        model = copy.deepcopy(whole)
        change(model)
        path.write_text(json.dumps(model))
        with pytest.raises(fedshed.ConfigError, match="not a model that fedshed wrote"):
            fedshed.Model.load(path)


def test_a_folder_that_cannot_be_written_to_is_found_out_before_the_work(files, tmp_path):
    result = call("fit", *files, *ILL, "--out", files[0] / "folder")
    assert result.exit_code == 1
    assert "not a folder; name another place" in result.stderr


def test_the_figure_shows_every_interval_whatever_the_units(frames):
    """One panel in the table's units, one in standard errors, where all are equally long and none a point."""
    tables = {site: table.assign(age=table["age"] * 1e6) for site, table in frames.items()}
    inference = fedshed.fit(tables, fedshed.Study(family="logistic", target="ill")).inference
    units, errors = (np.array(_segments(axes)) for axes in plot.draw(inference, "title").axes)
    covered = [(ends[:, 0] < 0) & (ends[:, 1] > 0) for ends in (units, errors)]
    np.testing.assert_array_equal(*covered)
    np.testing.assert_allclose(np.diff(errors), 2 * 1.959964, rtol=1e-6)
    expected = inference.conf_int()[[j for j, name in enumerate(inference.names) if name != "intercept"]]
    np.testing.assert_allclose(units, expected, rtol=1e-9)


def _segments(axes):
    """The ends of the intervals, from top to bottom."""
    (bars,) = axes.collections
    return [segment[:, 0] for segment in bars.get_segments()]


def test_the_interval_of_a_huge_ratio_is_drawn_from_its_own_ends(tmp_path):
    """1.2e42 with 4.4e22 to 3.4e61 was drawn from below 0.001: 1.2e42 - (1.2e42 - 4.4e22) is 0 or less."""
    assert call("example", "hospitals", tmp_path).exit_code == 0
    tables = read_sites(sorted(tmp_path.glob("*.csv")))
    inference = fedshed.fit(tables, fedshed.Study(family="logistic", target="malignant")).inference
    left, _ = plot.draw(inference, "", exp=True).axes
    ends = inference.conf_int()[:-1]
    assert inference.names[-1] == "intercept"
    assert ends.max() > 100
    np.testing.assert_allclose(np.log(_segments(left)), ends, rtol=1e-9)
    caps = np.array([line.get_xdata() for line in left.lines[2:]]).T
    np.testing.assert_allclose(np.log(caps), ends, rtol=1e-9)
    low, high = left.get_xlim()
    assert low <= np.exp(ends.min()) < np.exp(ends.max()) <= high


def test_a_ratio_beyond_all_numbers_is_drawn_without_a_cap():
    figure = Figure()
    axes = figure.subplots()
    drawn = plot._ratios(np.array([[30.0, -9000.0, 9060.0], [0.1, 0.0, 0.2]]))
    plot._intervals(axes, drawn, ("x", "z"), True)
    figure.savefig(io.BytesIO(), format="svg")
    assert [len(line.get_xdata()) for line in axes.lines[2:]] == [1, 1]


def test_a_figure_that_fails_costs_neither_summary_nor_model(files, tmp_path, monkeypatch):
    def fail(*_):
        raise fedshed.ConfigError("no figure")

    monkeypatch.setattr(plot, "draw", fail)
    failed = call("fit", *files, *ILL, "--out", tmp_path / "new")
    assert failed.exit_code == 2
    assert "Federated regression of ill" in failed.stdout
    assert fedshed.Model.load(tmp_path / "new" / "model.json").converged
    assert written(tmp_path / "new") == {"model.json", "summary.txt", "coefficients.csv", "trace.csv"}


def test_exponentials_are_in_the_summary_the_figure_and_the_report(files, tmp_path):
    """`--exp` changed the summary only."""
    for name, more in (("plain", ()), ("exp", ("--exp",))):
        call("fit", *files, *ILL, *more, "--out", tmp_path / name)
    model = fedshed.Model.load(tmp_path / "exp" / "model.json")
    table = model.inference.table()[:-1]
    left, right = plot.draw(model.inference, "", exp=True).axes
    assert left.get_xscale() == "log"
    assert "odds ratio" in left.get_xlabel()
    np.testing.assert_allclose(left.lines[1].get_xdata(), np.exp(table[:, 0]))
    np.testing.assert_allclose(right.lines[1].get_xdata(), table[:, 0] / table[:, 1])
    plain, exp = ((tmp_path / name / "coefficients.svg").read_bytes() for name in ("plain", "exp"))
    assert plain != exp
    plain, exp = ((tmp_path / name / "report.html").read_text() for name in ("plain", "exp"))
    assert '"ratio":"odds ratio","exp":false' in plain
    assert '"ratio":"odds ratio","exp":true' in exp


# --- predictions -----------------------------------------------------------------------------------


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_are_those_of_the_model_in_the_order_of_the_rows(frames, files, tmp_path):
    call("fit", *files, *ILL, "--out", tmp_path)
    result = call("predict", tmp_path / "model.json", files[1])
    found, model = rows_of(result.stdout), fedshed.Model.load(tmp_path / "model.json")
    assert list(found[0]) == ["prediction", "p[no]", "p[yes]"]
    assert [row["prediction"] for row in found] == model.predict(frames["bonn"]).tolist()
    p = [[float(row["p[no]"]), float(row["p[yes]"])] for row in found]
    np.testing.assert_array_equal(p, model.predict_proba(frames["bonn"]))
    again = call("predict", tmp_path / "model.json", files[1], "--out", tmp_path / "deep" / "p.csv")
    assert again.stdout == f"wrote {tmp_path / 'deep' / 'p.csv'}\n"
    assert (tmp_path / "deep" / "p.csv").read_text() == result.stdout


def test_predictions_of_counts_grow_with_the_exposure_and_need_no_target(frames, files, tmp_path):
    options = ("--family", "poisson", "--target", "visits", "--columns", "age", "--exposure", "years")
    call("fit", *files, *options, "--out", tmp_path)
    new = frames["bonn"][["age", "years"]]
    for name, table in (("once", new), ("twice", new.assign(years=2 * new["years"]))):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    one, two = (
        [float(row["prediction"]) for row in rows_of(call("predict", tmp_path / "model.json", path).stdout)]
        for path in (tmp_path / "once.csv", tmp_path / "twice.csv")
    )
    np.testing.assert_allclose(two, 2 * np.array(one), rtol=1e-12)
    new[["age"]].to_csv(tmp_path / "none.csv", index=False)
    result = call("predict", tmp_path / "model.json", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "'years'" in result.stderr


def test_rows_that_are_not_complete_are_refused_or_left_empty(frames, files, tmp_path):
    call("fit", *files, *ILL, "--out", tmp_path)
    full = call("predict", tmp_path / "model.json", files[1]).stdout.splitlines()
    frame = frames["bonn"].copy()
    frame.loc[[2, 7], "age"], frame.loc[7, "smoker"] = np.nan, None
    frame.to_csv(tmp_path / "holes.csv", index=False)
    refused = call("predict", tmp_path / "model.json", tmp_path / "holes.csv")
    assert refused.exit_code == 2
    assert "'age' is missing in 2 of 60 rows" in refused.stderr
    assert "--missing empty" in refused.stderr
    found = call("predict", tmp_path / "model.json", tmp_path / "holes.csv", "--missing", "empty")
    full[3] = full[8] = ",,"
    assert found.stdout.splitlines() == full
    assert found.stderr == "2 of 60 rows have no prediction (missing: age in 2, smoker in 1)\n"


def test_evaluate_has_the_rule_of_predict_for_rows_that_are_not_complete(frames, files, tmp_path):
    """It left them out without a word where the model was fitted with --missing drop."""
    call("fit", *files, *ILL, "--missing", "drop", "--out", tmp_path)
    frame = frames["bonn"].copy()
    frame.loc[[2, 7], "age"], frame.loc[7, "smoker"], frame.loc[9, "ill"] = np.nan, None, None
    frame.to_csv(tmp_path / "holes.csv", index=False)
    frame.drop([2, 7, 9]).to_csv(tmp_path / "whole.csv", index=False)
    for command in ("predict", "evaluate"):
        refused = call(command, tmp_path / "model.json", tmp_path / "holes.csv")
        assert refused.exit_code == 2
        assert "--missing empty" in refused.stderr
    assert "3 of 60 rows miss a value" in refused.stderr
    assert "'ill' in 1" in refused.stderr
    found, known = (
        json.loads(call("evaluate", tmp_path / "model.json", tmp_path / name, *more, "--json").stdout)
        for name, more in (("holes.csv", ("--missing", "empty")), ("whole.csv", ()))
    )
    assert found["evaluation"]["pooled"] == known["evaluation"]["pooled"]
    assert "dropped: 3; 57 were used" in found["evaluation"]["notes"][0]
    assert known["evaluation"]["notes"] == []


def test_a_model_that_fills_in_leaves_no_prediction_empty(frames, files, tmp_path):
    """`--missing empty` left rows empty whose values the model fills in."""
    frame = frames["bonn"].copy()
    frame.loc[[2, 7], "age"] = np.nan
    frame.to_csv(tmp_path / "holes.csv", index=False)
    call("fit", *files, *ILL, "--missing", "impute", "--out", tmp_path)
    found = call("predict", tmp_path / "model.json", tmp_path / "holes.csv", "--missing", "empty")
    assert all(row["prediction"] for row in rows_of(found.stdout))
    assert "no prediction" not in found.stderr


def test_predictions_carry_the_column_that_is_named(frames, files, tmp_path):
    call("fit", *files, *ILL, "--out", tmp_path)
    frame = frames["bonn"].assign(patient=[f"{k:04d}" for k in range(60)])
    frame.loc[2, "age"] = np.nan
    frame.to_csv(tmp_path / "new.csv", index=False)
    given = tmp_path / "model.json", tmp_path / "new.csv", "--missing", "empty"
    plain, found = (rows_of(call("predict", *given, *more).stdout) for more in ((), ("--id", "patient")))
    assert [row.pop("patient") for row in found] == list(frame["patient"])  # with their zeros
    assert found == plain
    assert next(iter(rows_of(call("predict", *given, "--id", "patient").stdout)[0])) == "patient"
    wrong = call("predict", *given, "--id", "pateint")
    assert wrong.exit_code == 2
    assert "did you mean 'patient'" in wrong.stderr


def test_wrong_predictions_are_one_line(files, tmp_path):
    call("fit", *files, *ILL, "--out", tmp_path)
    (tmp_path / "no.json").write_text("{}")
    (tmp_path / "other.csv").write_text("age,smoker\n50,perhaps\n")
    model, good = tmp_path / "model.json", files[0]
    for given, message in (
        ((tmp_path / "absent.json", good), "no such file"),
        ((tmp_path / "no.json", good), "schema None"),
        ((files[0], good), "is not a model"),
        ((model, tmp_path / "absent.csv"), "no such file"),
        ((model, tmp_path / "other.csv"), "level 'perhaps'"),
        ((model, good, "--missing", "drop"), "refuse or empty"),
    ):
        result = call("predict", *given, "--out", tmp_path / "new.csv")
        assert result.exit_code == 2, given
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new.csv").exists()


def test_help_says_what_the_arguments_are():
    assert "one file per site, or one file with --site" in " ".join(call("fit", "--help").stdout.split())
    assert "MODEL is what `fedshed fit` wrote" in " ".join(call("predict", "--help").stdout.split())


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_a_report_that_is_a_folder_is_found_out_before_the_work(files, tmp_path, command):
    result = call(command, *files, *ILL, "--out", tmp_path / "out", "--report", tmp_path)
    assert (result.exit_code, result.stderr) == (
        1,
        f"error: {tmp_path}: it is a folder, not a file; name a file\n",
    )
    assert not (tmp_path / "out").exists()


def test_the_reference_class_of_a_multinomial_model_and_the_sum_to_zero_form(tmp_path):
    given = [FOLDER / "womenlf.csv", "--site", "region", "--columns", "hincome,children", "--no-report"]
    model = ["--family", "multinomial", "--target", "partic", "--exp"]
    named = call("fit", *given, *model, "--reference", "partic=not.work", "--out", tmp_path / "named")
    assert named.exit_code == 0, named.output
    assert "Reference class: not.work" in named.stdout
    assert "odds ratio" in named.stdout
    assert "[not.work]" not in (tmp_path / "named" / "coefficients.csv").read_text()
    sums = call("fit", *given, *model, "--sum-to-zero", "--out", tmp_path / "sums")
    assert sums.exit_code == 0, sums.output
    assert "sum to 0 over the classes" in " ".join(sums.stdout.split())
    assert "odds ratio" not in sums.stdout
    assert "hincome [not.work]" in (tmp_path / "sums" / "coefficients.csv").read_text()
    linear = ["--family", "linear", "--target", "hincome", "--columns", "children", "--sum-to-zero"]
    refused = call("fit", *given[:3], *linear)
    assert refused.exit_code != 0
    assert "--sum-to-zero needs a model of several classes" in " ".join(refused.output.split())
