"""How objects are shown in a notebook: small HTML tables in which everything is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedshed._utils.names import printable, printable_lines

MOST_ROWS = 20


def html_table(rows: Sequence[Mapping[str, Any]], title: str = "", most: int = MOST_ROWS) -> str:
    """Rows as an HTML table with a title; a long table shows its first and last rows and counts the rest."""
    caption = f"<caption style='text-align: left'>{escape(printable(title))}</caption>" if title else ""
    if not rows:
        return f"<table>{caption}</table>"
    head = "".join(f"<th>{escape(printable(str(name)))}</th>" for name in rows[0])
    half = most // 2
    shown = [_row(row) for row in rows] if len(rows) <= most else [
        *map(_row, rows[:half]),
        f"<tr><td colspan='{len(rows[0])}'>... {len(rows) - 2 * half} more ...</td></tr>",
        *map(_row, rows[-half:]),
    ]  # fmt: skip
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>"


def preformatted(text: str) -> str:
    """Text as it is, in a monospaced font."""
    return f"<pre>{escape(printable_lines(text))}</pre>"


def _row(row: Mapping[str, Any]) -> str:
    return (
        "<tr>" + "".join(f"<td>{escape(printable(number(value)))}</td>" for value in row.values()) + "</tr>"
    )


def number(value: Any) -> str:
    """A value with four significant digits; empty if it is unknown."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
