"""The command `fedshed` itself: its commands are in the modules beside this one."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fedshed import __version__
from fedshed.errors import ConfigError, DataError, Error, SingularError


class Commands(TyperGroup):
    """Commands whose mistakes are told in one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; wrong use exits with 2, another error of ours with 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except Error as error:
            wrong_use = isinstance(error, ConfigError | DataError | SingularError)
            _stop(f"error: {error}", 2 if wrong_use else 1)
        except KeyboardInterrupt:
            _stop("interrupted", 130)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedshed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Second-order federated learning of convex models."""


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
