"""Spellings of yes and no, and of option values on a command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

YES = frozenset(
    (
        "yes",
        "y",
        "ja",
        "j",
        "oui",
        "si",
        "sí",
        "sim",
        "tak",
        "true",
        "t",
        "1",
        "positive",
        "pos",
        "present",
        "case",
    )
)
NO = frozenset(
    (
        "no",
        "n",
        "nein",
        "nee",
        "non",
        "nao",
        "não",
        "nie",
        "false",
        "f",
        "0",
        "negative",
        "neg",
        "absent",
        "control",
        "none",
    )
)


def spellings_of_yes(labels: Iterable[object]) -> tuple[str, ...]:
    """The labels that say yes, if all the others say no; otherwise none.

    All of them are words of this module, so naming them tells nothing else of a table.
    """
    texts = [str(label) for label in labels]
    yes = tuple(text for text in texts if text.strip().casefold() in YES)
    no = [text for text in texts if text.strip().casefold() in NO]
    return yes if yes and no and len(yes) + len(no) == len(texts) else ()


def say_positive(labels: Iterable[object]) -> str:
    """How to say which classes count as yes, with the spellings of yes if the labels are known words."""
    if yes := spellings_of_yes(labels):
        listed = ",".join(text.strip() for text in yes)
        return f"say which values count as yes (positive = {list(yes)}, --positive {shlex.quote(listed)})"
    return "say which values count as yes (positive = [...], --positive)"


def option(name: str, value: str) -> str:
    """An option with a value, as a shell reads it."""
    return f"--{name} {shlex.quote(value)}"
