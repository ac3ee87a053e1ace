"""Names: help where one was mistyped, and a number for each to draw randomness from."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import blake2b


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the likely name if there is one, and all that are known."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f"{f'; did you mean {near[0]!r}?' if near else ';'} known: {', '.join(names)}"


def name_key(name: str) -> int:
    """A number for a name, the same on every machine: randomness is drawn from (seed, agent, t)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
