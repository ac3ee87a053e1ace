"""The trace of a run: one row an iteration, cumulative counts, columns as docs/design.md names them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.notebook import html_table


class Row(Struct, frozen=True):
    """The state after so many iterations (row 0 is the start); counts are cumulative.

    Bytes are totals over agents; `uplink_vectors` and `hessians` are means per agent.
    """

    iteration: int
    rounds: int
    exchanges: int
    uplink_bytes: int
    downlink_bytes: int
    uplink_vectors: float
    hessians: float
    f: float
    gap: float | None
    grad_norm: float
    eta: float | None
    renewed: int
    q_max: int
    seconds: float


NONE: Mapping[str, int] = {}
COLUMNS: tuple[str, ...] = Row.__struct_fields__


class Trace(Sequence[Row]):
    """The rows of a run, by column as arrays, or as a data frame, CSV or JSON.

    `kernels` says by which kernel sites in this process drew their last eigenpairs, and how many of them did.
    """

    def __init__(self, rows: Sequence[Row], kernels: Mapping[str, int] = NONE) -> None:
        self._rows, self.kernels = tuple(rows), dict(sorted(kernels.items()))

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        if not self._rows:
            return "Trace of no rows"
        last = self._rows[-1]
        gap = "" if last.gap is None else f", gap {last.gap:.1e}"
        return (
            f"Trace of {len(self)} rows: {last.iteration} iterations, {last.exchanges} exchanges, "
            f"{last.uplink_bytes:,} bytes up, gradient norm {last.grad_norm:.1e}{gap}; to_pandas() has all"
        )

    def _repr_html_(self) -> str:
        return html_table(self.to_records(), f"Trace of {len(self)} rows", most=10)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def column(self, name: str) -> NDArray[np.float64]:
        """One column; what is unknown is NaN."""
        return column_of(self._rows, name)

    def first_below(self, gap: float) -> Row | None:
        """The first row with f - f_star below `gap`."""
        return next((row for row in self._rows if row.gap is not None and row.gap < gap), None)

    def to_pandas(self) -> Any:
        """A pandas DataFrame (needs `pip install fedshed[data]`)."""
        return frame_of(self._rows)

    def to_csv(self) -> str:
        """CSV text with a header; what is unknown is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(row, name) for name in COLUMNS] for row in self._rows)
        return out.getvalue()

    def to_records(self) -> list[dict[str, Any]]:
        """A list of plain dictionaries, ready for JSON."""
        return [msgspec.structs.asdict(row) for row in self._rows]


def column_of(rows: Sequence[Row], name: str) -> NDArray[np.float64]:
    """One column of rows; what is unknown is NaN."""
    values = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def frame_of(rows: Sequence[Row]) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("a DataFrame needs pandas: pip install 'fedshed[data]'") from None
    return pd.DataFrame({name: column_of(rows, name) for name in COLUMNS}).astype(
        {name: int for name, kind in Row.__annotations__.items() if kind == "int"}
    )
