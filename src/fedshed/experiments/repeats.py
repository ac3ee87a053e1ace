"""One run over the seeds of its figure: what it took each time until the gap was small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from fedshed.experiments.curves import Points
from fedshed.experiments.plan import GAP_OF_A_COUNT
from fedshed.experiments.runs import Record

FLOOR = 1e-15  # below it a gap is rounding
SMALL_ERROR = 1e-9  # of theta, where a figure shows errors
WORDS = {
    "rounds": "rounds", "uplink_vectors": "vectors", "hessians": "Hessians", "exchanges": "exchanges",
    "error": "rounds", "matrix_vectors": "vectors",
}  # fmt: skip
GAPS = (1e-4, 1e-6, 1e-8, GAP_OF_A_COUNT)  # at which tables count: the last may fall on a plateau


Records: TypeAlias = Mapping[str, Sequence["Repeats"]]  # by the title of a panel, in the order of its runs


class Amount(NamedTuple):
    """A number that was measured; where a run ended too early it is only known to be larger than `least`."""

    least: float
    most: float

    @property
    def known(self) -> bool:
        """Whether it is one number."""
        return self.least == self.most

    def over(self, other: Amount) -> Amount:
        """The ratio of two."""
        return Amount(_ratio(self.least, other.most), _ratio(self.most, other.least))


def _ratio(a: float, b: float) -> float:
    """a / b; a run without a denominator tells nothing."""
    if np.isinf(b):
        return 0.0
    return a / b if b else np.inf


def exactly(number: float) -> Amount:
    """A number that is known."""
    return Amount(number, number)


def middle(amounts: Sequence[Amount]) -> Amount:
    """The median, as far as it is known."""
    return Amount(median(one.least for one in amounts), median(one.most for one in amounts))


class Repeats(Struct, frozen=True):
    """The records of one run, one for each seed."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The record with the first seed."""
        return self.records[0]

    @property
    def name(self) -> str:
        """How the run is called in a legend."""
        return self.first.name

    def points(self, x: str, y: str) -> list[Points]:
        """Costs and values of each record, not below rounding."""
        return [(one.trace.column(x), values(one, y)) for one in self.records]

    def amounts(self, count: str, gap: float = GAP_OF_A_COUNT) -> list[Amount]:
        """What it took with each seed to come below a gap; `gap@150` is the gap after 150 rounds."""
        name, _, rounds = count.partition("@")
        if name == "gap":
            return [_gap_at(one, int(rounds)) for one in self.records]
        if name == "matrix_vectors":
            return [_with_first_matrix(one, _until(one, "uplink_vectors", gap)) for one in self.records]
        return [_until(one, name, gap) for one in self.records]


def values(record: Record, y: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What is drawn, not below rounding."""
    column = np.array(record.errors) if y == "error" else record.trace.column(y)
    return np.maximum(column, FLOOR)


def _with_first_matrix(record: Record, vectors: Amount) -> Amount:
    """FedNL's vectors if its first Hessian is sent as n columns, not packed as (n + 1)/2."""
    more = (record.n - 1) / 2
    return Amount(vectors.least + more, vectors.most + more)


def _until(record: Record, count: str, gap: float) -> Amount:
    """The count where the gap, or the error, was small for the first time; else more than at the end."""
    if count == "error":
        small = np.flatnonzero(np.array(record.errors) < SMALL_ERROR)
        row, column = (record.rows[small[0]] if small.size else None), "rounds"
    else:
        row, column = record.trace.first_below(gap), count
    if row is None:
        return Amount(float(getattr(record.rows[-1], column)), np.inf)
    return exactly(float(getattr(row, column)))


def _gap_at(record: Record, rounds: int) -> Amount:
    """The gap after so many rounds; of a run that was stopped before, it is at most what it had reached."""
    rows = [row for row in record.rows if row.rounds <= rounds]
    reached = max(float(rows[-1].gap or 0.0), FLOOR)
    whole = record.converged or record.rows[-1].rounds >= rounds
    return exactly(reached) if whole else Amount(FLOOR, reached)
