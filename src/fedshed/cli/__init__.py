"""The command line: one module for each command or family of commands."""

from fedshed.cli import (  # noqa: F401  their import registers the commands
    compare,
    deploy,
    doctor,
    evaluate,
    example,
    fit,
    join,
    listings,
    meta,
    plan,
    reproduce,
    select,
    site,
    survival,
    ui,
    watch,
)
from fedshed.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="fedshed")
