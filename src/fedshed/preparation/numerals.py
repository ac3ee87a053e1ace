"""Text that is meant as a number: decimal and thousands marks, and marks for missing values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKS = ("na", "n/a", "nan", "null", "none", "missing", "unknown")  # for missing values: they tell of no row
_WITH_MARKS = re.compile(r"[-+]?\d+[.,]\d+|[-+]?[1-9]\d{0,2}([.,' \u00a0\u202f]\d{3})+([.,]\d+)?")


def reads_as_number(text: str) -> bool:
    """Whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def looks_like_number(text: str) -> bool:
    """Whether a text is a number, perhaps with a decimal comma or with marks between thousands."""
    return reads_as_number(text) or _WITH_MARKS.fullmatch(text.strip()) is not None


def name_mark(wrong: Iterable[str]) -> str:
    """What may stand for a missing value; any other text could be a row's, and is not quoted."""
    found = (text for text in wrong if not any(map(str.isalnum, text)) or text.lower() in _MARKS)
    return next((f" ({text[:20]!r} is not)" for text in found), "")


def fault_of_numbers(levels: Sequence[str], codes: bool) -> str:
    """Why text seems to be meant as numbers, and what to do; nothing if it does not, or may be `codes`."""
    points = any("." in level for level in levels)
    wrong = [level for level in levels if not reads_as_number(level)]
    alike = sum(map(looks_like_number, levels))
    if not wrong:
        said = f"all its {len(levels)} different values are numbers; convert it to numbers"
        return "" if codes and not points else f"{said}{_POINTS if points else ''}"
    if alike <= len(levels) / 2:
        return ""
    of = f"of its {len(levels)} different values"
    if alike == len(levels) - len(wrong):
        return (
            f"{alike} {of} are numbers{name_mark(wrong)}; name the mark for missing values in na_values "
            "(--na-values), or correct the slip (such as <0.5)"
        )
    return (
        f"{alike} {of} look like numbers with commas or marks between thousands; write one decimal mark and "
        "no thousands marks (1210.5 or 1210,5, not 1.210,5), and no other text (such as <0.5)"
    )


_POINTS = (
    " (where commas were taken for decimal marks, because of --decimal or of another column of the file, "
    "numbers with points stay text)"
)
