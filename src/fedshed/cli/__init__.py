"""The command line: one module for each command or family of commands."""

from fedshed.cli import compare, doctor, fit, listings, reproduce, ui  # noqa: F401  importing registers
from fedshed.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="fedshed")
