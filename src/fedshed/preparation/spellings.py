"""Spellings of yes and no, and of option values on a command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Literal, TypeAlias

from fedshed.preparation.numerals import reads_as_number

Others: TypeAlias = Literal["", "several", "respelled"]

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
_WORDS_FOR_YES = YES - {"1"}


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
        found = f"positive = {list(yes)}, --positive {shlex.quote(listed)}"
    else:
        found = "positive = [...], --positive"
    return f"say which values of any site count as yes ({found})"


def look_of_others(positive: Iterable[str], others: Iterable[str], has_positive: bool) -> Others:
    """What the values that are not positive look like: one class, several, or another spelling of yes and no.

    Words for no are one class. Where a site `has_positive` values, a further word for yes is another
    spelling. Where it has none, these are values that say yes and no, the codes 1 and 2, and numbers where
    the positive values are words (or the reverse).
    """
    folded, named = ({text.strip().casefold() for text in texts} for texts in (others, positive))
    if has_positive and named & _WORDS_FOR_YES and folded & _WORDS_FOR_YES:
        return "respelled"
    if len({"no" if text in NO else text for text in folded}) < 2:
        return ""
    kinds = [{reads_as_number(text) for text in texts} for texts in (folded, named)]
    of_other_kind = len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]
    in_words = bool(folded & YES and folded & NO) or folded == {"1", "2"}
    return "respelled" if not has_positive and (of_other_kind or in_words) else "several"


def option(name: str, value: str) -> str:
    """An option with a value, as a shell reads it."""
    return f"--{name} {shlex.quote(value)}"
