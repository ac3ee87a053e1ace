"""Every command of `fedshed` with its arguments and options, read from the command line itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any, get_type_hints

TYPES = {"integer": "whole number", "float": "number", "integer range": "whole number"}


def command_sections(warn: Any) -> str:
    """A section for each command; `warn` is told of a parameter that is not explained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer 0.20 on click 8.5
        import typer

    from fedshed.cli import app

    return "\n\n".join(_sections(typer.main.get_command(app), "fedshed", warn))


def _sections(command: Any, path: str, warn: Any) -> Iterator[str]:
    """The section of a command, or those of the commands in a group of them."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield _section(command, path, warn)
        return
    if path != "fedshed":
        yield f"## {path}\n\n{inspect.cleandoc(command.help or '')}"
    for name, each in inner.items():
        yield from _sections(each, f"{path} {name}", warn)


def _section(command: Any, path: str, warn: Any) -> str:
    """What a command does, how it is called, and tables of its parameters, one for each panel of options."""
    shown = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    said = {one.name: _meaning(command, one) for one in shown}
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join([path, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [
        f"{'#' * len(path.split())} {path}",
        inspect.cleandoc(command.help or ""),
        f"```sh\n{usage}\n```",
        *([_table("argument", arguments, said)] if arguments else []),
        *_option_tables(options, said),
    ]
    if command.epilog:
        parts.append(f"Example: `{command.epilog.removeprefix('Example: ')}`")
    for name in (name for name, words in said.items() if not words):
        warn("%s: %s is not explained", path, name)
    return "\n\n".join(parts)


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _meaning(command: Any, one: Any) -> str:
    """What is said of a parameter; typer 0.20 on click 8.5 has lost it of arguments, the code has it."""
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    noted = [note.help for note in getattr(hints.get(one.name), "__metadata__", ()) if hasattr(note, "help")]
    return " ".join((getattr(one, "help", None) or next(iter(noted), None) or "").split())


def _option_tables(options: list[Any], said: dict[str, str]) -> Iterator[str]:
    """A table of the options of each panel of the command's help, under the name of the panel."""
    panels = list(dict.fromkeys(one.rich_help_panel for one in options))
    for panel in panels:
        if panel is not None:
            yield f"**{panel}**"
        yield _table("option", [one for one in options if one.rich_help_panel == panel], said)


def _table(kind: str, rows: list[Any], said: dict[str, str]) -> str:
    head = [f"| {kind} | meaning | type | default |", "|---|---|---|---|"]
    return "\n".join([*head, *(_row(one, said[one.name]) for one in rows)])


def _row(one: Any, meaning: str) -> str:
    names = one.opts if one.param_type_name == "option" else [one.name.upper()]
    cells = (
        ", ".join(f"`{name}`" for name in (*names, *one.secondary_opts)),
        meaning,
        _type(one),
        _default(one),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _type(one: Any) -> str:
    """What is written after it; nothing after a switch."""
    if getattr(one, "is_flag", False):
        return ""
    name = TYPES.get(one.type.name, one.type.name)
    several = getattr(one, "multiple", False) or one.nargs == -1
    return f"{name}, several" if several else name


def _default(one: Any) -> str:
    """What holds where it is left out, in the words of the command's help."""
    if one.required:
        return "required"
    if isinstance(said := getattr(one, "show_default", True), str):
        return said
    value = one.default() if callable(one.default) else one.default
    if value is None or value is False or value in ("", []):
        return "none"
    if value is True:
        return f"`{one.opts[0]}`"
    return f"`{value}`"
