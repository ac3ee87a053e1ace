"""Calling the command line from tests."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedshed.cli import app


def call(*arguments):
    """One command; an unexpected exception is the test's failure, not a hidden exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def strict_json(text):
    """JSON without NaN or Infinity, which Python's reader would let pass."""

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
