"""How many rows a site read, left out and used; of a few rows it may say no more than that they are few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct


class RowCount(Struct, frozen=True):
    """The rows of one site; a count of -m stands for some rows, but fewer than m."""

    used: int
    dropped: int = 0  # rows that miss a value
    missing: dict[str, int] = {}  # by column: rows in which it is missing
    digest: str = ""  # of which rows were used and of their target, weight and offset; the site has the key

    def plain(self) -> dict[str, Any]:
        """The counts without the mark of the rows."""
        return {"used": self.used, "dropped": self.dropped, "missing": self.missing}


def hidden(count: int, least: int) -> int:
    """A count as a site says it that may not tell of fewer than `least` rows."""
    return -least if 0 < count < least else count


def shown(count: int) -> str:
    """A count as a reader sees it."""
    return f"{count:,}" if count >= 0 else f"<{-count}"


def total(counts: Iterable[int]) -> str:
    """A sum of counts; of those that are hidden no more is known than that they are at least 1."""
    known = tuple(counts)
    least = sum(count if count > 0 else 1 for count in known if count)
    return f"{least:,}" if min(known, default=0) >= 0 else f"{least:,} or more"


def dropped_in_words(counts: Mapping[str, RowCount]) -> str | None:
    """A sentence on the rows that were left out at all sites; None if none was."""
    if not any(each.dropped for each in counts.values()):
        return None
    columns = dict.fromkeys(name for each in counts.values() for name in each.missing)
    by_column = {name: [each.missing.get(name, 0) for each in counts.values()] for name in columns}
    worst = sorted(by_column, key=lambda name: (-sum(map(abs, by_column[name])), name))[:5]
    parts = ", ".join(f"{name} in {total(by_column[name])}" for name in worst)
    rest = f" and {len(columns) - 5} other columns" if len(columns) > 5 else ""
    used = f"{sum(each.used for each in counts.values()):,}"
    dropped = total(each.dropped for each in counts.values())
    return f"Rows with a missing value were dropped: {dropped}; {used} were used. Missing: {parts}{rest}."
