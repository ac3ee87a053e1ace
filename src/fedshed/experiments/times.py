"""The time model of a comparison: T = exchanges x latency + 8 bytes / rate + CPU, from what its runs cost.

Bytes are those of the busiest link, up and down: sites send at the same time, each over its own link.  CPU is
that of all sites and the Master one after the other, as measured in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TypeAlias

from msgspec import Struct

from fedshed.algorithms.costs import HERE, Network, rate_in_words, time_in_words
from fedshed.solve.run import Result
from fedshed.solve.trace import Row

LATENCIES = (0.001, 0.01, 0.1, 1.0)  # seconds
RATES = (1e4, 1e6, 1e8)  # bits per second
Fastest: TypeAlias = tuple[str, float]  # an algorithm and its seconds


class Spent(Struct, frozen=True):
    """What one algorithm spent until it reached the tolerance, or a given gap: medians over the repeats."""

    exchanges: float
    link_bytes: float
    cpu: float

    def seconds(self, network: Network) -> float:
        """Seconds to the optimum over a network."""
        return network.seconds(self.exchanges, self.link_bytes, self.cpu)


class TimeMap(Struct, frozen=True):
    """Seconds of every algorithm at each latency and rate.

    `times` has a row for each latency and a column for each rate; `here` is for sites in one process, and
    `left_out` names the algorithms of which a run did not reach the tolerance, or the gap where one is given.
    """

    latencies: tuple[float, ...]
    rates: tuple[float, ...]
    times: tuple[tuple[dict[str, float], ...], ...]
    here: dict[str, float]
    left_out: tuple[str, ...] = ()
    gap: float | None = None  # until which costs are counted; None: until the tolerance

    @property
    def cells(self) -> tuple[tuple[Fastest, ...], ...]:
        """The fastest algorithm at each latency and rate, and its seconds."""
        return tuple(tuple(map(fastest_of, row)) for row in self.times)

    def records(self) -> list[dict[str, str]]:
        """A row of text for each latency."""
        return [
            {"latency": time_in_words(latency)}
            | {rate_in_words(r): in_words(*cell) for r, cell in zip(self.rates, row, strict=True)}
            for latency, row in zip(self.latencies, self.cells, strict=True)
        ]

    def notes(self) -> list[str]:
        """What a reader must know to read the map."""
        notes = [f"All sites in one process: {in_words(*fastest_of(self.here))}."]
        aim = "the tolerance" if self.gap is None else f"a gap below {self.gap:g}"
        if self.left_out:
            notes.append(f"Left out, as a run did not reach {aim}: {', '.join(self.left_out)}.")
        return notes


def in_words(name: str, seconds: float) -> str:
    """An algorithm with its seconds."""
    return f"{name} {time_in_words(seconds)}"


def ranked(times: dict[str, float]) -> list[str]:
    """All algorithms with their seconds, the fastest first."""
    return [in_words(*one) for one in sorted(times.items(), key=lambda one: one[1])]


def spent_by(runs: Sequence[tuple[Result, float]], gap: float | None = None) -> Spent | None:
    """What an algorithm spent in its repeats, a result and CPU seconds each; None if one did not arrive.

    Until a gap, bytes and CPU seconds are the shares of the totals that the trace had by then.
    """
    found = [_arrival(result, gap) for result, _ in runs]
    rows = [row for row in found if row is not None]
    if len(rows) < len(runs):
        return None
    ends = [result.trace[-1] for result, _ in runs]
    sent = [_share(_bytes(row), _bytes(end)) for row, end in zip(rows, ends, strict=True)]
    took = [_share(row.seconds, end.seconds) for row, end in zip(rows, ends, strict=True)]
    return Spent(
        median(row.exchanges for row in rows),
        median(busiest_link(result) * share for (result, _), share in zip(runs, sent, strict=True)),
        median(cpu * share for (_, cpu), share in zip(runs, took, strict=True)),
    )


def _arrival(result: Result, gap: float | None) -> Row | None:
    """The row at which a run arrived: its last one if it converged, or the first below the gap."""
    if gap is None:
        return result.trace[-1] if result.converged else None
    return result.trace.first_below(gap)


def _bytes(row: Row) -> int:
    return row.uplink_bytes + row.downlink_bytes


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def busiest_link(result: Result) -> int:
    """Bytes to and from the site that sent and received most."""
    return max(site.uplink_bytes + site.downlink_bytes for site in result.sites.values())


def fastest_of(times: dict[str, float]) -> Fastest:
    """The algorithm that ends first; of equals the one that was named first."""
    name = min(times, key=lambda one: times[one])
    return name, times[name]


def mapped(spent: dict[str, Spent], left_out: Sequence[str], gap: float | None = None) -> TimeMap:
    """The map of the usual latencies and rates."""

    def times(network: Network) -> dict[str, float]:
        return {name: one.seconds(network) for name, one in spent.items()}

    cells = tuple(tuple(times(Network(latency, rate)) for rate in RATES) for latency in LATENCIES)
    return TimeMap(LATENCIES, RATES, cells, times(HERE), tuple(left_out), gap)
