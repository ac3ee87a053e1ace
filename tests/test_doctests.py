"""The examples in docstrings print what they show, and everything public has one."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

import fedshed
from fedshed.algorithms import renewal

WITHOUT = (ArithmeticError, Exception)  # errors explain themselves


def documented():
    """Public callables and classes, by their name."""
    found = {name: getattr(fedshed, name) for name in fedshed.__all__}
    found |= {f"renewal.{kind.__name__}": kind for kind in renewal.Renewal.__args__}
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
