"""The command line: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

import fedshed
from calls import call, strict_json
from fedshed.algorithms import ALGORITHMS
from fedshed.datasets import names
from fedshed.experiments import Study
from fedshed.trace import COLUMNS

SMALL = ("--agents", "4", "--algorithms", "fib-shed,fib-shed+,newton", "--max-iterations", "8")
FILES = {"trace.csv", "trace.json", "comparison.png", "comparison.svg", "report.html"}


def rows_without_seconds(path):
    rows = list(csv.reader(path.read_text().splitlines()))
    k = rows[0].index("seconds")
    return [row[:k] + row[k + 1 :] for row in rows]


# compare


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The result of one small comparison, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("small") / "made" / "by it"
    return call("compare", *SMALL, "--out", folder), folder


def test_compare_prints_one_table_that_fits_100_columns(small):
    result, _ = small
    assert result.exit_code == 0
    assert result.stderr == ""
    table = result.stdout.split("\nwrote")[0].splitlines()
    assert max(map(len, table)) <= 100
    first = [line.split()[0] for line in table if line.strip()]
    assert [name for name in first if name.removesuffix("+") in ALGORITHMS][:3] == SMALL[3].split(",")


def test_compare_says_where_its_files_are(small):
    result, folder = small
    said = {line.removeprefix("wrote ") for line in result.stdout.splitlines() if line.startswith("wrote ")}
    assert said == {str(folder / name) for name in FILES}
    assert {path.name for path in folder.iterdir()} == FILES


def test_what_did_not_converge_is_regular_and_says_why(small):
    result, _ = small
    assert result.exit_code == 0
    assert "fib-shed stopped: max_iterations = 8 reached" in result.stdout


def test_compare_json_is_all_there_is_on_stdout(tmp_path):
    result = call("compare", *SMALL, "--out", tmp_path, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    report = strict_json(result.stdout)
    assert report["version"] == fedshed.__version__
    assert report["settings"]["partition"] == "two-class"
    assert [one["algorithm"] for one in report["summary"]] == report["settings"]["algorithms"]
    assert {path.rsplit("/", 1)[-1] for path in report["files"]} == FILES


def test_the_written_traces_agree(small):
    _, folder = small
    saved = strict_json((folder / "trace.json").read_text())
    rows = list(csv.DictReader((folder / "trace.csv").read_text().splitlines()))
    assert list(rows[0]) == ["algorithm", *COLUMNS]
    flat = [(name, row) for name, trace in saved["traces"].items() for row in trace]
    for (name, row), line in zip(flat, rows, strict=True):
        assert line["algorithm"] == name
        assert list(row) == list(COLUMNS)
        assert float(line["f"]) == row["f"]
        assert int(line["uplink_bytes"]) == row["uplink_bytes"]
    assert saved["settings"]["seed"] == 0
    assert len(saved["summary"]) == 3


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        call("compare", *SMALL, "--seed", seed, "--out", tmp_path / folder)
    a, b, c = (rows_without_seconds(tmp_path / name / "trace.csv") for name in "abc")
    assert a == b
    assert a != c


def test_options_reach_the_run(tmp_path):
    options = (
        "--budget",
        "rayleigh",
        "--line-search",
        "fused",
        "--intercept",
        "--l2",
        "0.01",
        "--target",
        "3",
    )
    result = call("compare", *SMALL, *options, "--partition", "iid", "--out", tmp_path, "--json")
    report = strict_json(result.stdout)
    settings, (fib, plus, _) = report["settings"], report["summary"]
    assert (settings["l2"], settings["target"], settings["intercept"]) == (0.01, 3, True)
    assert {**fib, "algorithm": "", "seconds": 0} == {**plus, "algorithm": "", "seconds": 0}
    assert fib["exchanges"] < fib["rounds"]


def test_nothing_but_the_answer_in_a_pipe(tmp_path):
    command = [sys.executable, "-m", "fedshed", "compare", *SMALL, "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(strict_json(done.stdout)["summary"]) == 3


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--algorithms", "fib-shed,nwton"), "did you mean 'newton'?"),
        (("--algorithms", "shed-ls"), "least-squares only"),
        (("--algorithms", ","), "at least one algorithm"),
        (("--dataset", "digts"), "did you mean 'digits'?"),
        (("--partition", "two-clas"), "did you mean 'two-class'?"),
        (("--loss", "logistics"), "did you mean 'logistic'?"),
        (("--line-search", "fusd"), "did you mean 'fused'?"),
        (("--budget", "many"), "'rayleigh'"),
        (("--l2", "-1"), "l2 must be"),
        (("--l2", "0"), "set l2 > 0"),
        (("--agents", "0"), "agents must be"),
        (("--target", "11"), "not a class"),
        (("--seed", "-1"), "seed must be"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path, arguments, message):
    result = call("compare", *arguments, "--out", tmp_path / "new")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Study, "run", lambda *_: pytest.fail("the work began"))
    (tmp_path / "file").write_text("")
    result = call("compare", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert "not a folder that can be written to" in result.stderr


def test_an_unknown_option_or_command_is_exit_code_2():
    assert call("compare", "--colour", "red").exit_code == 2
    assert call("comparison").exit_code == 2


def test_an_error_that_is_not_the_users_is_exit_code_1(monkeypatch):
    def fail(*_):
        raise fedshed.ProtocolError("agent 'a' answered 1 of 2 parts")

    monkeypatch.setattr(Study, "run", fail)
    result = call("compare")
    assert (result.exit_code, result.stderr) == (1, "error: agent 'a' answered 1 of 2 parts\n")


def test_ctrl_c_is_a_short_message_and_exit_code_130(monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "run", interrupt)
    result = call("compare", "--out", tmp_path / "new")
    assert (result.exit_code, result.stderr, result.stdout) == (130, "interrupted\n", "")
    assert not (tmp_path / "new").exists()


# Lists, help, version


def test_algorithms_are_listed():
    table, rows = call("algorithms").stdout, strict_json(call("algorithms", "--json").stdout)
    assert max(map(len, table.splitlines())) <= 100
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert all(name in table for name in ALGORITHMS)
    budgets = {row["name"]: row["budget"] for row in rows}
    assert (budgets["fib-shed"], budgets["mont-dec"]) == (1, "rayleigh")
    assert {row["name"]: row["losses"] for row in rows}["shed-ls"] == "least-squares"


def test_data_sets_are_listed_with_how_to_get_those_that_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table, rows = call("datasets").stdout, strict_json(call("datasets", "--json").stdout)
    assert max(map(len, table.splitlines())) <= 100
    assert [row["name"] for row in rows] == list(names())
    found = {row["name"]: row for row in rows}
    assert found["digits"]["found"] == "in scikit-learn"
    assert found["w8a"]["found"] is None
    assert "FEDSHED_DATA" in found["w8a"]["how"]
    assert "w8a: data file libsvm/w8a.bz2 not found" in table


def test_version_and_help():
    assert call("--version").stdout == f"fedshed {fedshed.__version__}\n"
    assert "compare" in call("--help").stdout
    assert "Example: fedshed compare" in call("compare", "--help").stdout


def test_help_does_not_import_what_only_the_work_needs():
    code = (
        "import sys, fedshed.cli; print([m for m in ('sklearn', 'matplotlib', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
