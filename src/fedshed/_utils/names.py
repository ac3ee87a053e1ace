"""Names: suggestions for mistyped ones, a number for each, and safe display of names from others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import blake2b
from unicodedata import category


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar name if there is one, and all known names."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f"{f'; did you mean {near[0]!r}?' if near else ';'} known: {', '.join(names)}"


_KEPT = {"\u200c", "\u200d"}  # zero-width joiners, which some scripts need
_TURNING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u200e", "\u200f", "\u061c"}
_HARMFUL = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(words: str) -> str:
    r"""Text in which characters that control a terminal or the writing direction are escaped, such as `\x1b`.

    Column names, levels, classes, sites and messages of other machines are shown in this form.

    Examples
    --------
    >>> from fedshed._utils.names import printable
    >>> print(printable("age\x1b[31m"))
    age\x1b[31m
    """
    if words.isprintable():
        return words
    return "".join(_escaped(c) for c in words)


def _escaped(c: str) -> str:
    harmful = (category(c) in _HARMFUL or c in _TURNING) and c not in _KEPT
    return c.encode("unicode_escape").decode() if harmful else c


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


_LET_THROUGH = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def safe_json(text: str) -> str:
    """JSON in which every control character is escaped, including those that JSON would allow."""
    return _LET_THROUGH.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def name_key(name: str) -> int:
    """A number for a name, the same on every machine, for random draws from (seed, agent, t)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
