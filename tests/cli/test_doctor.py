"""`fedshed doctor`, tab completion, and the ways to call the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

import fedshed
from fedshed.algorithms import ALGORITHMS
from fedshed.cli import app, findings
from fedshed.datasets import names
from fedshed.datasets.partitions import PARTITIONS

REQUIRES = [
    "numpy>=2", "scipy>=1.13", 'starlette>=0.37; extra == "ui"', 'uvicorn>=0.30; extra == "ui"',
    'mkdocs-material>=9; extra == "docs"',
]  # fmt: skip


@pytest.fixture
def installed(monkeypatch):
    """Says which packages there are."""

    def pretend(**versions):
        def version(name):
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(findings, "requires", lambda _: REQUIRES)
        monkeypatch.setattr(findings, "version", version)

    return pretend


def finding(what):
    """One finding and the exit code."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    found = {one["what"]: one for one in json.loads(result.stdout)}
    return found[what], result.exit_code


def test_all_is_well_here():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert f"fedshed: {fedshed.__version__} on Python" in result.stdout
    assert "within" in result.stdout
    assert "threads" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("ready: fedshed works on this machine; ")


@pytest.mark.parametrize("columns", [60, 80])
def test_no_line_is_wider_than_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert max(map(len, lines)) <= columns


def test_what_is_needed_comes_before_what_is_optional(installed):
    installed(numpy="2.4.0", scipy="1.17.0")
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    test, extra = (next(k for k, line in enumerate(lines) if what in line) for what in ("self-test", "extra"))
    assert test < extra


def test_an_extra_that_is_missing_is_no_failure_but_has_a_remedy(installed):
    installed(numpy="2.4.0", scipy="1.17.0", starlette="1.0.0")
    extra, code = finding("extra ui")
    assert not extra["ok"]
    assert extra["remedy"] == "to install it: pip install 'fedshed[ui]'"
    assert "uvicorn missing" in extra["found"]
    assert code == 0


def test_what_only_the_makers_of_fedshed_need_is_not_called_missing(installed):
    installed(numpy="2.4.0", scipy="1.17.0")
    titles = [one.what for one in findings.packages()]
    assert titles == ["packages", "extra ui"]


@pytest.mark.parametrize("versions", [{"scipy": "1.17.0"}, {"scipy": "1.17.0", "numpy": "1.26.0"}])
def test_a_package_that_is_missing_or_too_old_is_a_failure(installed, versions):
    installed(**versions)
    packages, code = finding("packages")
    assert not packages["ok"]
    assert code == 1
    verdict = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()[-1]
    assert verdict == "not ready: packages (see above what to do)"


def test_data_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSHED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data, code = finding("data")
    assert "w8a" in data["remedy"]
    assert "digits" in data["found"]
    assert code == 0


def test_a_wrong_answer_is_a_failure(monkeypatch):
    right = fedshed.optimum
    monkeypatch.setattr(fedshed, "optimum", lambda *a, **k: (right(*a, **k)[0] + 0.01, 0.0))
    result, code = finding("self-test")
    assert not result["ok"]
    assert code == 1


# Tab


def offered(*words):
    """What bash is offered after these words, the last one incomplete."""
    asked = {
        "_FEDSHED_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedshed"], env=os.environ | asked, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fedshed", "doc"), ["doctor"]),
        (("fedshed", "compare", "--dataset", "m"), [name for name in names() if name.startswith("m")]),
        (("fedshed", "compare", "--partition", ""), list(PARTITIONS)),
        (("fedshed", "compare", "--algorithms", "pen,gi"), ["pen,giant", "pen,giant-det"]),
        (("fedshed", "reproduce", "mnist"), ["mnist-1e-5", "mnist-1e-6"]),
    ],
)
def test_the_tab_key_offers_what_is_known(words, expected):
    assert offered(*words) == expected


def test_every_algorithm_is_offered():
    from fedshed.cli.complete import algorithms

    assert algorithms("") == list(ALGORITHMS)


# Ways to call it


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "fedshed", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"fedshed {fedshed.__version__}\n"


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys, fedshed.cli; print([m for m in ('numpy', 'scipy', 'starlette') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
