"""Fewer points without other answers: long traces and large grids, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedshed.solve.trace import Row

MOST_POINTS = 1200  # of one curve
TARGETS: tuple[float, ...] = tuple(float(10.0 ** (k / 4)) for k in range(8, -65, -1))  # 100 down to 1e-16


def thinned(rows: Sequence[Row], most: int = MOST_POINTS) -> list[Row]:
    """The rows to draw: evenly spaced, with the ends, the renewals where they are few, and every answer.

    An answer is the first row below a target of the slider, so that what it says is exact.
    """
    if len(rows) <= most:
        return list(rows)
    renewals = [k for k, row in enumerate(rows) if row.renewed]
    keep = {*spread(len(rows), most), *(renewals if len(renewals) <= most else ())}
    for column in ("gap", "grad_norm"):
        keep.update(_answers([getattr(row, column) for row in rows]))
    return [rows[k] for k in sorted(keep)]


def spread(count: int, most: int) -> list[int]:
    """At most so many indices out of `count`, evenly spaced, with both ends."""
    indices: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return indices


def _answers(values: Iterable[float | None]) -> Iterator[int]:
    """For each target the first index whose value is below it."""
    waiting = list(reversed(TARGETS))  # the largest last
    for k, value in enumerate(values):
        reached = [target for target in waiting if value is not None and value < target]
        if reached:
            yield k
            waiting = waiting[: len(waiting) - len(reached)]
        if not waiting:
            return
