"""Texts that mark a missing value, in files and in columns of text: those of pandas, which include R's NA."""

from __future__ import annotations

MARKS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_KNOWN = frozenset(MARKS)


def is_mark(value: object) -> bool:
    """Whether a text marks a missing value; spaces around it do not matter."""
    return isinstance(value, str) and value.strip() in _KNOWN
