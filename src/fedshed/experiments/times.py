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

LATENCIES = (0.001, 0.01, 0.1, 1.0)  # seconds
RATES = (1e4, 1e6, 1e8)  # bits per second
Fastest: TypeAlias = tuple[str, float]  # an algorithm and its seconds


class Spent(Struct, frozen=True):
    """What one algorithm spent until it reached the tolerance: medians over the repeats."""

    exchanges: float
    link_bytes: float
    cpu: float

    def seconds(self, network: Network) -> float:
        """Seconds to the optimum over a network."""
        return network.seconds(self.exchanges, self.link_bytes, self.cpu)


class TimeMap(Struct, frozen=True):
    """Seconds of every algorithm at each latency and rate.

    `times` has a row for each latency and a column for each rate; `here` is for sites in one process, and
    `left_out` names the algorithms of which a run did not reach the tolerance.
    """

    latencies: tuple[float, ...]
    rates: tuple[float, ...]
    times: tuple[tuple[dict[str, float], ...], ...]
    here: dict[str, float]
    left_out: tuple[str, ...] = ()

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
        if self.left_out:
            notes.append(f"Left out, as a run did not reach the tolerance: {', '.join(self.left_out)}.")
        return notes


def in_words(name: str, seconds: float) -> str:
    """An algorithm with its seconds."""
    return f"{name} {time_in_words(seconds)}"


def ranked(times: dict[str, float]) -> list[str]:
    """All algorithms with their seconds, the fastest first."""
    return [in_words(*one) for one in sorted(times.items(), key=lambda one: one[1])]


def spent_by(runs: Sequence[tuple[Result, float]]) -> Spent | None:
    """What an algorithm spent in its repeats, a result and CPU seconds each; None if one did not converge."""
    if not all(result.converged for result, _ in runs):
        return None
    return Spent(
        median(result.trace[-1].exchanges for result, _ in runs),
        median(busiest_link(result) for result, _ in runs),
        median(cpu for _, cpu in runs),
    )


def busiest_link(result: Result) -> int:
    """Bytes to and from the site that sent and received most."""
    return max(site.uplink_bytes + site.downlink_bytes for site in result.sites.values())


def fastest_of(times: dict[str, float]) -> Fastest:
    """The algorithm that ends first; of equals the one that was named first."""
    name = min(times, key=lambda one: times[one])
    return name, times[name]


def mapped(spent: dict[str, Spent], left_out: Sequence[str]) -> TimeMap:
    """The map of the usual latencies and rates."""

    def times(network: Network) -> dict[str, float]:
        return {name: one.seconds(network) for name, one in spent.items()}

    cells = tuple(tuple(times(Network(latency, rate)) for rate in RATES) for latency in LATENCIES)
    return TimeMap(LATENCIES, RATES, cells, times(HERE), tuple(left_out))
