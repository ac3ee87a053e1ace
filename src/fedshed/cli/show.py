"""What every command shows alike: options, tables, JSON, bars on a terminal and silence in a pipe."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedshed.errors import ConfigError

WIDTH = 100  # of a table that goes into a pipe or a file
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def option(text: str, default: str | bool = True, complete: Callable[[str], list[str]] | None = None) -> Any:
    """An option with its help, what is said of its default, and what the tab key offers."""
    return typer.Option(help=text, show_default=default, autocompletion=complete)


def check_folder(out: Path, name: str = "--out") -> None:
    """A folder that cannot be made or written to is found out before the work, not after it."""
    there = next(path for path in (out, *out.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(f"{name} {out}: {there} is not a folder that can be written to; name another")


def command_line(context: typer.Context) -> str:
    """The command that is running, as it can be typed again: what was given, not the defaults."""
    words = ["fedshed", str(context.info_name)]
    for parameter in context.command.params:
        if was_given(context, str(parameter.name)):
            words += _typed(parameter, context.params[str(parameter.name)])
    return shlex.join(words)


def was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter was given on the command line; click's names are typer's, whichever has them."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _typed(parameter: Any, value: Any) -> list[str]:
    """One parameter as words of the command line."""
    values = [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    if parameter.param_type_name != "option":
        return values
    if parameter.is_flag:
        return [(parameter.opts if value else parameter.secondary_opts)[0]]
    return [word for one in values for word in (parameter.opts[0], one)]


def to_json(value: Any) -> bytes:
    """Indented JSON; what is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@contextmanager
def progress_bar(counts: bool = True) -> Iterator[Callable[[float, float, str], None]]:
    """A bar with the time left on stderr if that is a terminal, called with how much of how much is done.

    It is silent elsewhere.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = (MofNCompleteColumn(),) if counts else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def print_rows(rows: Sequence[dict[str, Any]], notes: Sequence[str], title: str | None = None) -> None:
    """A table, numbers to the right, and notes below it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1)
    )
    for name in rows[0]:
        right = all(str(row[name])[:1] in "-0123456789" for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    console.print(table, *notes, sep="\n")


def print_json(value: Any) -> None:
    """JSON on stdout and nothing else."""
    typer.echo(to_json(value), nl=False)
