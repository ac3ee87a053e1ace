"""The command line: one module for each command or family of commands."""

from fedshed.cli import compare, fit, listings, reproduce  # noqa: F401  their import registers the commands
from fedshed.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="fedshed")
