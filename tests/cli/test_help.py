"""`fedshed COMMAND --help`: what matters first, in the width of a terminal."""

from __future__ import annotations

import re

import pytest
import typer

from calls import call
from fedshed.cli import app, panels

COMMANDS = typer.main.get_command(app).commands
PANELS = {
    "fit": [
        "Model", "Penalties and intercept", "Columns", "Survival (family cox)", "Algorithm", "Inference",
        "Evaluation", "Reading CSV files", "Output",
    ],
    "compare": [
        "Algorithms", "Data set", "Model", "Penalties and intercept", "Columns", "Survival (family cox)",
        "Reading CSV files", "Output",
    ],
    "predict": ["Options", "Reading CSV files"],
    "plan": ["Options"],
}  # fmt: skip


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("command", PANELS)
def test_options_are_in_panels_in_their_order(narrow, command):
    titles = re.findall(r"^╭─ (.+?) ─", call(command, "--help").stdout, flags=re.M)
    assert [title for title in titles if title != "Arguments"] == PANELS[command]


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_long_help_leaves_most_of_the_width_to_the_explanations(narrow, command):
    assert len(call(command, "--help").stdout.splitlines()) < 180


def test_help_is_the_last_option(narrow):
    options = re.findall(r"^│ +(--[\w-]+)", call("fit", "--help").stdout, flags=re.M)
    assert options[0] == "--target"
    assert options[-2:] == ["--json", "--help"]


@pytest.mark.parametrize("command", ["fit", "compare", "select", "meta"])
def test_every_option_of_a_command_with_panels_is_in_one(command):
    options = [one for one in COMMANDS[command].params if one.param_type_name == "option"]
    assert all(one.rich_help_panel in panels.ORDER[1:] for one in options)


@pytest.mark.parametrize(
    ("command", "flags"),
    [("fit", {"--no-intercept", "--no-standardize"}), ("compare", {"--no-intercept", "--no-standardize"})],
)
def test_only_flags_that_have_two_uses_have_an_opposite(command, flags):
    assert {name for one in COMMANDS[command].params for name in one.secondary_opts} == flags


@pytest.mark.parametrize(("command", "shown"), [("ui", "--port N"), ("fit", "--tol NUMBER")])
def test_values_have_short_names(narrow, command, shown):
    assert shown in " ".join(call(command, "--help").stdout.split())
