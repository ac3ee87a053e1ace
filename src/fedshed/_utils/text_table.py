"""Tables as text that fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

TERMINAL = 80  # characters
GAPS = (2, 1)  # blanks between columns that are as narrow as what they hold: the first that fits


def table_lines(rows: Sequence[Sequence[str]], first: int, sizes: Sequence[int]) -> list[str]:
    """The lines of a table, the head first, none wider than a terminal if its numbers fit.

    The first column is left-aligned and at least `first` wide; `sizes` are the usual widths of the others. If
    that is too wide, columns are as narrow as what they hold; a first cell for which there is still no room
    has a line of its own, above its numbers.
    """
    first = max(first, *(len(row[0]) for row in rows))
    widths = [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    for gap in GAPS:
        if first + sum(sizes) > TERMINAL:
            sizes = [width + gap for width in widths]
    room = TERMINAL - sum(sizes)
    if first > room:
        first = max((len(row[0]) for row in rows if len(row[0]) <= room), default=0)
    return [line for row in rows for line in _lines(row, first, sizes)]


def _lines(row: Sequence[str], first: int, sizes: Sequence[int]) -> list[str]:
    """One row in a line, or in two."""
    numbers = "".join(f"{cell:>{size}}" for cell, size in zip(row[1:], sizes, strict=True))
    if len(row[0]) <= first:
        return [f"{row[0]:<{first}}{numbers}".rstrip()]
    return [row[0], f"{'':<{first}}{numbers}".rstrip()]
