"""The panels of a command's help, and the command that shows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand
from typer.models import OptionInfo

ALGORITHMS, DATA_SET = "Algorithms", "Data set"
MODEL, PENALTIES, COLUMNS, SURVIVAL = "Model", "Penalties and intercept", "Columns", "Survival (family cox)"
SELECTION, META, ALGORITHM = "Selection", "Meta-analysis", "Algorithm"
INFERENCE, EVALUATION, READING, OUTPUT = "Inference", "Evaluation", "Reading CSV files", "Output"
# The order in which a command shows its panels; what has no panel comes first.
ORDER = (
    None, ALGORITHMS, DATA_SET, MODEL, PENALTIES, SELECTION, META, COLUMNS, SURVIVAL, ALGORITHM, INFERENCE,
    EVALUATION, READING, OUTPUT,
)  # fmt: skip
# Short words for the types of values, so that the explanations get most of the width.
METAVARS = {str: "TEXT", Path: "PATH", int: "N", float: "NUMBER"}


class Command(TyperCommand):
    """A command with its options in panels: those without one in `OUTPUT`, if that is used."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        options: list[Any] = [one for one in self.params if one.param_type_name == "option"]
        self._last = OUTPUT if any(one.rich_help_panel == OUTPUT for one in options) else None
        for one in options:
            one.rich_help_panel = one.rich_help_panel or self._last
        self.params.sort(key=lambda one: ORDER.index(getattr(one, "rich_help_panel", None)))

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, which click adds to every command."""
        found: Any = super().get_help_option(ctx)
        if found is not None:
            found.rich_help_panel = self._last
        return found


def name_values(function: Callable[..., Any]) -> None:
    """Give the options of a function metavars by their types, which versions of typer write differently."""
    for one in inspect.signature(function, eval_str=True).parameters.values():
        for note in getattr(one.annotation, "__metadata__", ()):
            if isinstance(note, OptionInfo):
                note.metavar = note.metavar or _metavar(one.annotation.__origin__)
        function.__annotations__[one.name] = one.annotation  # no longer a text, which would be read again


def _metavar(kind: Any) -> str | None:
    """The word for a type, or for the first known type that it consists of."""
    return METAVARS.get(kind) or next(filter(None, map(_metavar, get_args(kind))), None)
