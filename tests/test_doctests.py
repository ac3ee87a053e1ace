"""The examples in docstrings print what they show, and everything public has one."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import fedshed
from fedshed.algorithms import renewal
from fedshed.inference import Inference, Summary

API = Path(__file__).parent.parent / "docs" / "api"
WITHOUT = (ArithmeticError, Exception)  # errors explain themselves


def documented():
    """Public callables and classes, by their name."""
    found = {name: getattr(fedshed, name) for name in fedshed.__all__}
    found |= {f"renewal.{kind.__name__}": kind for kind in renewal.Renewal.__args__}
    found |= {f"datasets.{name}": getattr(fedshed.datasets, name) for name in ("example_tables", "load")}
    found |= {"inference.Inference": Inference, "inference.Summary": Summary}
    return {
        name: value
        for name, value in found.items()
        if callable(value) and not (isinstance(value, type) and issubclass(value, WITHOUT))
    }


@pytest.mark.parametrize("name", documented())
def test_the_examples_of_a_public_name_print_what_they_show(name):
    value = documented()[name]
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner(verbose=False)
    examples = [one for one in finder.find(value, name, globs={}) if one.examples]
    assert examples, f"{name} has no example"
    for one in examples:
        said = []
        runner.run(one, out=said.append)
        assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("name", [n for n, value in documented().items() if inspect.isfunction(value)])
def test_the_parameters_of_a_function_are_all_explained(name):
    value = documented()[name]
    section = re.search(r"Parameters\n\s*-+\n(.*?)\n\s*\n\s*Returns\n\s*-+\n", value.__doc__, flags=re.S)
    assert section, f"{name} has no Parameters and Returns"
    lines = re.findall(r"^    (\w[\w, ]*)(?: :|$)", section[1], flags=re.M)
    explained = {word.strip() for line in lines for word in line.split(",")}
    assert set(inspect.signature(value).parameters) <= explained


@pytest.mark.parametrize("name", ["Study", *(n for n in documented() if n.startswith("Federated"))])
def test_the_parameters_of_a_study_and_of_an_estimator_are_all_explained(name):
    value = documented()[name]
    section = re.search(r"(?:Parameters|Attributes)\n\s*-+\n(.*?)\n\s*\n", value.__doc__, flags=re.S)
    lines = re.findall(r"^    (\w[\w, ]*)(?: :|$)", section[1], flags=re.M)
    explained = {word.strip() for line in lines for word in line.split(",")}
    assert set(inspect.signature(value).parameters) <= explained


def public_names():
    """Everything that can be imported from fedshed, but for its modules."""
    found = [name for name in fedshed.__all__ if not inspect.ismodule(getattr(fedshed, name))]
    return [name for name in (*found, *(n for n in documented() if "." in n)) if name != "__version__"]


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_is_in_the_reference(name):
    """By itself, among the members of a module that are listed, or in a module that is there as a whole.

    `make docs` checks that the page as it is built has a table with each of its parameters.
    """
    text = "".join(page.read_text() for page in API.glob("*.md"))
    shown = re.findall(r"^::: (\S+)\n(?: +options: (.*)\n)?", text, flags=re.M)
    members = [names for _, options in shown for names in re.findall(r"members: \[(.*?)\]", options)]
    listed = {f"fedshed.{one}" for names in members for one in names.split(", ")}
    whole = {place for place, options in shown if "members" not in options}
    assert f"fedshed.{name}" in {place for place, _ in shown} | listed or (
        f"fedshed.{name.rpartition('.')[0]}" in whole
    )
