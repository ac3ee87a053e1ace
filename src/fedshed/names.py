"""Help with names that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the likely name if there is one, and all that are known."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f"{f'; did you mean {near[0]!r}?' if near else ';'} known: {', '.join(names)}"
