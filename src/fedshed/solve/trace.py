"""The trace of a run: one row per iteration, cumulative counts, columns as in docs/design.md."""

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
    """The state of a run after one iteration; row 0 is the start, and counts are cumulative.

    Attributes
    ----------
    iteration : int
        The number of iterations so far.
    rounds : int
        The number of rounds as the paper counts them.
    exchanges : int
        The number of requests that were sent to the agents and answered.
    uplink_bytes, downlink_bytes : int
        Bytes from and to all agents together.
    uplink_vectors : float
        Vectors of n numbers that an agent has sent, the mean over agents.
    hessians : float
        Hessians that an agent has computed, the mean over agents.
    f : float
        The cost, penalties included.
    gap : float or None
        f - f_star, if f_star is known.
    grad_norm : float
        The norm of the global gradient.
    eta : float or None
        The size of the step that led to this row.
    renewed : int
        The number of agents that renewed their Hessian.
    q_max : int
        The largest number of eigenpairs held of one agent.
    seconds : float
        The time since the start, in seconds.
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
    """The rows of a run: a sequence of `Row`, also available as arrays, data frame, CSV or JSON.

    Attributes
    ----------
    kernels : dict
        The kernels by which sites of this process computed their last eigenpairs, and the number of these
        sites.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> trace = fedshed.optimize(federation, l2=1e-2, algorithm="newton").trace
    >>> len(trace) == trace[-1].iteration + 1
    True
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
        """One column of the trace, by its name, as an array; unknown values are NaN."""
        return column_of(self._rows, name)

    def first_below(self, gap: float) -> Row | None:
        """The first row whose gap f - f_star is below `gap`; None if there is none."""
        return next((row for row in self._rows if row.gap is not None and row.gap < gap), None)

    def to_pandas(self) -> Any:
        """The trace as a pandas DataFrame (needs `pip install fedshed[data]`)."""
        return frame_of(self._rows)

    def to_csv(self) -> str:
        """The trace as CSV text with a header; unknown values are empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(row, name) for name in COLUMNS] for row in self._rows)
        return out.getvalue()

    def to_records(self) -> list[dict[str, Any]]:
        """The trace as a list of plain dictionaries, ready for JSON."""
        return [msgspec.structs.asdict(row) for row in self._rows]


def column_of(rows: Sequence[Row], name: str) -> NDArray[np.float64]:
    """One column of rows; unknown values are NaN."""
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
