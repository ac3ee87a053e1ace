"""The command line: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

import fedshed
from calls import call, strict_json
from fedshed.algorithms import ALGORITHMS
from fedshed.datasets import names
from fedshed.datasets.examples import write_example
from fedshed.datasets.images import EMNIST_SUBSET
from fedshed.experiments import ComparisonSpec
from fedshed.solve.trace import COLUMNS

SMALL = ("--agents", "4", "--algorithms", "fib-shed,fib-shed+,newton", "--max-iterations", "8")
FILES = {"trace.csv", "trace.json", "comparison.png", "comparison.svg", "report.html"}


def rows_without_seconds(path):
    rows = list(csv.reader(path.read_text().splitlines()))
    k = rows[0].index("seconds")
    return [row[:k] + row[k + 1 :] for row in rows]


# compare


def on_a_terminal(columns, *arguments, folder):
    """What a command prints on a terminal so wide, line by line, without what moves the cursor."""
    pid, screen = pty.fork()
    if pid == 0:  # pragma: no cover
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [sys.executable, "-m", "fedshed", *arguments])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    printed = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(screen, 1 << 16):
            printed += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, printed
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode())
    return [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").split("\n")]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_fits_the_terminal_and_nothing_in_it_breaks(tmp_path, columns):
    lines = on_a_terminal(columns, "compare", *SMALL, "--l2", "1e-5", folder=tmp_path)
    table = lines[: next(k for k, line in enumerate(lines) if line.startswith("wrote"))]
    assert max(map(len, table)) <= columns
    for name in SMALL[3].split(","):
        (row,) = (line.split() for line in table if line.split()[:1] == [name] and "stopped:" not in line)
        assert row[-1] in ("converged", "stopped")
        assert any(re.fullmatch(r"-?\d\.\de[-+]\d\d", word) for word in row)  # the gap
    (head,) = (line for line in table if line.startswith(" algorithm"))
    assert {"algorithm", "exch.", "up", "Hess.", "gap", "ended"} <= set(head.split())
    assert ("vectors" in head.split()) == (columns == 120)
    assert any(line.startswith("not shown: ") for line in table) == (columns < 120)


@pytest.mark.parametrize("columns", [66, 80])
@pytest.mark.parametrize("shown", ["studies", "audit"])
def test_what_a_steward_reads_fits_the_terminal(tmp_path, columns, shown):
    """At 80 columns as a table, whatever was refused and however large the numbers are."""
    from fedshed.deployment.approval import approve_study
    from fedshed.privacy.audit import Audit

    site = tmp_path / "site.toml"
    site.write_text('name = "a"\n[table]\ncsv = "t.csv"\n')
    model = "logistic: recovered ~ age + log(dose + 1) + treatment"
    for _ in range(3):
        approve_study(site, "0123456789abcdef" * 4, model, by="Dr. Ada Lovelace of the hospital")
    audit = Audit(tmp_path / "audit.jsonl")
    audit.append("0123456789abcdef", "Update -> Costs+LocalHessian", b"reply", 123_456, leverage=0.5)
    audit.append("", "turned away", rule="the request cannot be read; " * 5)
    lines = on_a_terminal(columns, "site", shown, "--site", "site.toml", folder=tmp_path)
    assert max(map(len, lines)) <= columns
    assert any(line.split()[:2] in (["study", "model"], ["time", "what"]) for line in lines) == (
        columns == 80
    )
    assert sum(line.startswith((" 01234567", "01234567")) for line in lines) == (shown == "studies")


def test_on_request_a_narrow_terminal_shows_all_columns(tmp_path):
    lines = on_a_terminal(80, "compare", *SMALL, "--all", folder=tmp_path)
    text = "\n".join(lines)
    assert not any(line.startswith("not shown") for line in lines)
    assert all(len(line) <= 80 for line in lines)
    assert (
        len(re.findall(r"\bvectors \d+\b", text))
        == len(re.findall(r"\bended (converged|stopped)\b", text))
        == 3
    )
    assert len(re.findall(r"\bgap -?\d\.\de[-+]\d\d\b", text)) == 3


def test_names_and_numbers_stay_whole_however_narrow_the_terminal(tmp_path):
    text = "\n".join(on_a_terminal(40, "compare", *SMALL, folder=tmp_path))
    assert len(re.findall(r"\bgap -?\d\.\de[-+]\d\d\b", text)) == 3
    assert len(re.findall(r"\bended (converged|stopped)\b", text)) == 3


def test_files_are_written_though_nobody_reads_what_is_printed(tmp_path):
    """`fedshed fit ... | head -1`: the pipe is closed before the files are written."""
    write_example("hospitals", tmp_path)
    for command in (
        "fit north.csv south.csv west.csv --target malignant --out made",
        "compare north.csv west.csv --target malignant --algorithms newton --out made",
    ):
        subprocess.run(
            ["bash", "-c", f'"{sys.executable}" -u -m fedshed {command} | head -1'], cwd=tmp_path, check=True,
            capture_output=True,
        )  # fmt: skip
        made = {path.name for path in (tmp_path / "made").iterdir()}
        assert {"trace.csv", "report.html"} <= made


def test_compare_takes_the_tables_and_the_options_of_a_fit(tmp_path):
    """The same optimum as `fit`, whatever the algorithm."""
    write_example("claims", tmp_path)
    options = (
        "--site", "region", "--family", "poisson", "--exposure", "years", "--target", "claims",
        "--columns", "age,bonus,brand", "--standardize", "--reference", "brand=B",
    )  # fmt: skip
    compared = call(
        "compare", tmp_path / "claims.csv", *options, "--algorithms", "newton,fib-shed",
        "--l2", "1e-3", "--out", tmp_path / "c", "--json",
    )  # fmt: skip
    assert compared.exit_code == 0, compared.stderr
    facts = strict_json(compared.stdout)
    assert [one["converged"] for one in facts["summary"]] == [True, True]
    assert facts["settings"]["study"]["exposure"] == "years"
    fitted = call(
        "fit", tmp_path / "claims.csv", *options, "--l2", "1e-3", "--algorithm", "newton",
        "--out", tmp_path / "f", "--json",
    )  # fmt: skip
    assert fitted.exit_code == 0, fitted.stderr
    rows = list(csv.DictReader((tmp_path / "f/trace.csv").read_text().splitlines()))
    assert float(rows[-1]["f"]) == pytest.approx(facts["f_star"], rel=1e-12)
    assert "--site region" in (tmp_path / "c/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.csv", "--dataset", "digits"), "--dataset applies to data sets only"),
        (("t.csv", "--preprocessing", "pca-rescaled"), "--preprocessing applies to data sets only"),
        (("t.csv", "--repeats", "2"), "--repeats applies to data sets only"),
        (("--family", "linear"), "--family applies to your own tables only"),
        (("--sep", ";"), "--sep applies to your own tables only"),
        (("--target", "y"), "name your tables to use a column"),
        (("t.csv",), "names no target"),
        (("absent.csv", "--target", "y"), "no such file"),
        (("--repeats", "0"), "repeats must be at least 1"),
        (("--algorithms", "my.py:Mine"), "my.py: there is no such file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, arguments, message):
    result = call("compare", *arguments, "--out", tmp_path / "new")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "new").exists()


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
        (("--preprocessing", "pca-rescaled"), "'digits' has no choice of pre-processing"),
        (("--dataset", "mnist", "--preprocessing", "pca-rescald"), "did you mean 'pca-rescaled'?"),
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
    monkeypatch.setattr(ComparisonSpec, "run", lambda *_: pytest.fail("the work began"))
    (tmp_path / "file").write_text("")
    result = call("compare", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 1
    assert "not a folder; name another place" in result.stderr


def test_an_unknown_option_or_command_is_exit_code_2():
    assert call("compare", "--colour", "red").exit_code == 2
    assert call("comparison").exit_code == 2


def test_an_error_that_is_not_the_users_is_exit_code_1(monkeypatch):
    def fail(*_):
        raise fedshed.ProtocolError("agent 'a' answered 1 of 2 parts")

    monkeypatch.setattr(ComparisonSpec, "run", fail)
    result = call("compare")
    assert (result.exit_code, result.stderr) == (1, "error: agent 'a' answered 1 of 2 parts\n")


def test_ctrl_c_is_a_short_message_and_exit_code_130(monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ComparisonSpec, "run", interrupt)
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
    assert "w8a: data file libsvm/w8a.bz2 was not found" in table


def test_datasets_say_that_a_subset_was_found_and_how_to_get_the_official_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for relative in EMNIST_SUBSET.files:
        (tmp_path / relative).parent.mkdir(exist_ok=True)
        (tmp_path / relative).touch()
    rows = {row["name"]: row for row in strict_json(call("datasets", "--json").stdout)}
    assert rows["emnist-digits"]["found"] == str(tmp_path / "emnist")
    how = rows["emnist-digits"]["how"]
    assert how.startswith(
        "a subset of 114,906 EMNIST digits is read; for the official files, set FEDSHED_DATA"
    )
    assert "emnist-digits-train-images" in how


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
