"""The output that all commands share: options, tables, JSON, and progress bars on a terminal."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedshed._utils.names import printable, printable_lines, safe_json
from fedshed._utils.text_table import TERMINAL

NOT_POOLED = "on unequal sites the limit is not the pooled optimum (docs/rivals.md)"
WIDTH = 100  # of a table that goes into a pipe or a file
REPORT = "The file for the interactive report.", "report.html in that folder"
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def option(
    text: str, default: str | bool = True, complete: Callable[[str], list[str]] | None = None, *,
    panel: str | None = None, metavar: str | None = None,
) -> Any:  # fmt: skip
    """An option with its help text, the description of its default, its completions, panel and metavar."""
    return typer.Option(
        help=text, show_default=default, autocompletion=complete, rich_help_panel=panel, metavar=metavar
    )


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """A switch that is off by default and has no opposite."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def check_folder(out: Path) -> None:
    """Refuse, before the work begins, a folder that cannot be made or written to."""
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(out))
    if not os.access(there, os.W_OK):
        read_only = os.name == "posix" and os.statvfs(there).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number), str(out))


def check_file(path: Path) -> None:
    """Refuse, before the work begins, a file that is a folder or whose folder cannot be written to."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    check_folder(path.parent)


def command_line(context: typer.Context) -> str:
    """The running command, as it can be typed again: with the options that were given, not the defaults."""
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


def say(text: str, styled: bool = False) -> None:
    """Print, and continue if the reader has gone (`fedshed fit ... | head`), so that files are written."""
    try:
        typer.echo(text if styled else printable_lines(text))
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends


def print_message(text: str) -> None:
    """Print a note, a warning or an error on stderr, in lines that fit a terminal; a pipe gets it whole."""
    width = _message_width()
    lines = printable_lines(text).split("\n")
    typer.echo("\n".join(lines if width is None else (_filled(line, width) for line in lines)), err=True)


def _message_width() -> int | None:
    """What COLUMNS says, or else the width of the terminal, if stderr is one."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or TERMINAL
    except (OSError, ValueError):  # not a terminal
        return None


def _filled(line: str, width: int) -> str:
    """One line as several; those that follow are indented a little more."""
    start = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.lstrip(), width, initial_indent=start, subsequent_indent=f"{start}  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def told(files: Iterable[Path]) -> None:
    """Print the name of each file as soon as it is written."""
    for path in files:
        say(f"wrote {path}")


def told_as_json(facts: dict[str, Any], files: Iterable[Path]) -> None:
    """Print the facts with the files that were written, even if one of them could not be written."""
    written: list[str] = []
    try:
        written += map(str, files)
    finally:
        print_json(facts | {"files": written})


def to_json(value: Any) -> bytes:
    """Indented JSON; numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@contextmanager
def progress_bar(counts: bool = True) -> Iterator[Callable[[float, float, str], None]]:
    """Show a bar with the time left on stderr if that is a terminal.

    It is called with the amount done, the total and a description.
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


def print_rows(
    rows: Sequence[dict[str, Any]],
    notes: Sequence[str],
    title: str | None = None,
    optional: Sequence[str] = (),
    instead: str = "--json has them",
) -> None:
    """Print a table with notes below it; a narrow terminal leaves out `optional` columns.

    Only columns of words may be broken into lines; numbers and names stay whole. If the table is too wide
    even without the optional columns, each row is printed as a paragraph.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [{printable(name): printable(str(value)) for name, value in row.items()} for row in rows]
    notes, title = [printable_lines(note) for note in notes], title and printable_lines(title)
    optional = [printable(name) for name in optional]
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    shown = fitting(rows, console.width, optional)
    left = [f"not shown: {', '.join(name for name in rows[0] if name not in shown)} ({instead})"]
    below = [*(left if len(shown) < len(rows[0]) else []), *notes]
    if _width(rows, shown) > console.width:
        below = [textwrap.fill(note, console.width, break_long_words=False) for note in below]
        return say(
            "\n".join([*([title, ""] if title else []), *_paragraphs(rows, shown, console.width), *below])
        )
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1)
    )
    for name in shown:
        right = all(str(row[name])[:1] in "-0123456789" for row in rows)
        has_words = any(" " in str(row[name]) for row in rows) and not right
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not has_words)
    for row in rows:
        table.add_row(*(str(row[name]) for name in shown))
    with console.capture() as printed:
        console.print(table, *below, sep="\n")
    return say(printed.get().removesuffix("\n"), styled=True)  # its cells are already printable


def fitting(rows: Sequence[dict[str, Any]], width: int, optional: Sequence[str]) -> list[str]:
    """The columns that fit into `width` characters; `optional` columns are left out in their order."""
    shown, leaving = list(rows[0]), list(optional)
    while leaving and _width(rows, shown) > width:
        out = leaving.pop(0)
        shown = [name for name in shown if name != out]
    return shown


def _width(rows: Sequence[dict[str, Any]], shown: Sequence[str]) -> int:
    """Characters that a table of these columns takes."""
    return sum(1 + _widest(rows, name) for name in shown) + len(shown)


def _paragraphs(rows: Sequence[dict[str, Any]], shown: Sequence[str], width: int) -> Iterator[str]:
    """Each row as its name with its named values below; lines break between values if possible."""
    first, *rest = shown
    for row in rows:
        values = [_whole(f"{name} {row[name]}", width - 2) for name in rest]
        text = textwrap.fill(
            "  ".join(values), width, initial_indent="  ", subsequent_indent="  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        yield f"{row[first]}\n{text.replace(chr(0xA0), ' ')}"


def _whole(value: str, width: int) -> str:
    """Words that stay on one line, if one line can hold them."""
    return value.replace(" ", "\u00a0") if len(value) <= width else value


MOST_WORDS = 30  # characters that a column of words gets before optional columns are left out


def _widest(rows: Sequence[dict[str, Any]], name: str) -> int:
    widths = [len(str(row[name])) for row in rows]
    words = any(" " in str(row[name]) and not str(row[name])[0].isdigit() for row in rows)
    return max(len(name), min(MOST_WORDS, max(widths)) if words else max(widths))


def print_json(value: Any) -> None:
    """Print JSON on stdout and nothing else."""
    typer.echo(safe_json(to_json(value).decode()), nl=False)
