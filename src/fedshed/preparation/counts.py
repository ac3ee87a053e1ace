"""How many rows a site read, left out and used; of a few rows it may say no more than that they are few."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct


class RowCount(Struct, frozen=True):
    """The rows of one site; a count of -m stands for some rows, but fewer than m."""

    used: int
    dropped: int = 0  # rows that miss a value, or whose weight is 0
    missing: dict[str, int] = {}  # by column: rows in which it is missing; of the weight, or 0
    digest: str = ""  # of which rows were used and of their target, weight and offset; the site has the key
    filled: dict[str, int] = {}  # by column: rows in which a missing value was filled in

    def plain(self) -> dict[str, Any]:
        """The counts without the mark of the rows."""
        filled = {"filled": self.filled} if self.filled else {}
        return {"used": self.used, "dropped": self.dropped, "missing": self.missing, **filled}


def counted(
    used: int, dropped: int, missing: Iterable[tuple[str, int]], digest: str, filled: Collection[str] = ()
) -> RowCount:
    """The rows of a site, of whose columns some are `filled` in where they miss a value."""
    lost = dict(missing)
    kept = {name: rows for name, rows in lost.items() if name not in filled}
    return RowCount(
        used, dropped, kept, digest, {c: rows for c, rows in lost.items() if c in filled and rows}
    )


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


def dropped_in_words(counts: Mapping[str, RowCount], weighted: bool = False) -> str | None:
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
    with_zero, zero = (" or a weight of 0", ", or a weight of 0") if weighted else ("", "")
    return (
        f"Rows with a missing value{with_zero} were dropped: {dropped}; {used} were used. "
        f"Missing{zero}: {parts}{rest}."
    )


def filled_in_words(counts: Mapping[str, RowCount], fills: Mapping[str, float | str]) -> tuple[str, ...]:
    """Sentences on the values that were filled in, by column and site; none if none was."""
    columns = dict.fromkeys(name for each in counts.values() for name in each.filled)
    if not columns:
        return ()
    parts = []
    for name in columns:
        rows = {site: each.filled[name] for site, each in counts.items() if name in each.filled}
        sites = ", ".join(f"{site} {shown(count)}" for site, count in list(rows.items())[:5])
        more = f", {len(rows) - 5} more sites" if len(rows) > 5 else ""
        fill = fills.get(name, 0.0)
        value = f"{fill:.6g}" if isinstance(fill, float) else repr(fill)
        parts.append(f"{name} in {total(rows.values())} rows ({sites}{more}) with {value}")
    listed = "; ".join(parts[:5]) + (f"; and {len(parts) - 5} other columns" if len(parts) > 5 else "")
    caution = "One value stands for each missing one, as if it were known: standard errors are too small."
    return f"Missing values were filled in: {listed}.", caution
