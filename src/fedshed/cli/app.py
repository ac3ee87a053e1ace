"""The command `fedshed` itself: its commands are in the modules beside this one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from fedshed._utils.errors import ConfigError, DataError, Error, SingularError
from fedshed._utils.files import in_words
from fedshed._utils.version import __version__
from fedshed.cli.panels import Command, name_values
from fedshed.cli.show import print_message

Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(TyperGroup):
    """Commands that report an error in one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the exit status is 2 for wrong use, 130 for Ctrl-C and 1 for any other error."""
        with notes_on_stderr():
            return self._invoked(ctx)

    def _invoked(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Error as error:
            wrong_use = isinstance(error, ConfigError | DataError | SingularError)
            _stop(f"error: {error}", 2 if wrong_use else 1)
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # `| head` has read enough
                raise
            _stop(f"error: {in_words(error)}", 1)
        except KeyboardInterrupt:
            _stop("interrupted", 130)


class _Notes(logging.Handler):
    """Prints the warnings of the log `fedshed` on the terminal, each of them once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()
        self.held: list[logging.LogRecord] | None = None  # while files are read

    def emit(self, record: logging.LogRecord) -> None:
        """Print it on stderr, or hold it until all files are read."""
        if self.held is not None:
            self.held.append(record)
        elif (said := record.getMessage()) not in self._said:
            self._said.add(said)
            print_message(f"note: {said}")


@contextmanager
def notes_together() -> Iterator[None]:
    """Hold the notes on files while these are read; what is the same for several files is printed once."""
    handlers = [one for one in logging.getLogger("fedshed").handlers if isinstance(one, _Notes)]
    for one in handlers:
        one.held = []
    try:
        yield
    finally:
        for one in handlers:
            held, one.held = one.held or [], None
            for record in _for_all_files(held):
                one.emit(record)


def _for_all_files(records: Sequence[logging.LogRecord]) -> Iterator[logging.LogRecord]:
    """One record where several say the same of other files; a note on a file begins with its name."""
    groups: dict[Any, tuple[logging.LogRecord, list[str]]] = {}
    for k, record in enumerate(records):
        if record.msg.startswith("%s: ") and isinstance(record.args, tuple):
            file, *rest = record.args
            _, files = groups.setdefault((record.msg, *rest), (record, []))
            files.append(str(file))
            record.args = (", ".join(files), *rest)
            groups[record.msg, *rest] = record, files
        else:
            groups[k] = record, []
    yield from (record for record, _ in groups.values())


@contextmanager
def notes_on_stderr() -> Iterator[None]:
    """Show warnings of the log `fedshed` while a command runs."""
    log, notes = logging.getLogger("fedshed"), _Notes()
    shown = any(
        isinstance(handler, _Notes) for handler in log.handlers
    )  # already added by an outer group of commands
    if not shown:
        log.addHandler(notes)
    try:
        yield
    finally:
        log.removeHandler(notes)


class App(typer.Typer):
    """Commands whose help is arranged by `Command`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Commands, no_args_is_help=True, **settings)

    def command(self, *args: Any, **settings: Any) -> Callable[[Function], Function]:
        """Add a command."""
        add = super().command(*args, cls=Command, **settings)

        def added(function: Function) -> Function:
            name_values(function)
            return add(function)

        return added


app = App(pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedshed {__version__}")
        raise typer.Exit


@app.callback(
    help="Fit regression models to the tables of several sites without pooling their rows, and compare "
    "second-order algorithms."
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The options of `fedshed` itself."""


def _stop(message: str, code: int) -> NoReturn:
    print_message(message)
    raise typer.Exit(code)
