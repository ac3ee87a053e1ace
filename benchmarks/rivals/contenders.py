"""Who takes part, and the grid from which each takes its one setting: chosen on F5 and W5, used everywhere.

Ours have no grid here: their defaults were chosen on F5, F6, F8 and W5 and are the library's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fedshed import ALGORITHMS, Constant, TwoExchange
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.registry import with_one_exchange
from fedshed.algorithms.rivals.compressors import TopK
from fedshed.algorithms.rivals.disco import FirstAgent
from fedshed.algorithms.rivals.q_shed_coding import EqualBits

TUNED_ON = ("F5", "W5")
LONG, SHORT = 500, 50  # iterations; those that are far away after fifty stay far away


@dataclass(frozen=True)
class Contender:
    """An algorithm by name, with the settings it may choose from; `thrice` if each seed is run."""

    name: str
    grid: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"as it is": {}})
    iterations: int = LONG
    ours: bool = False
    thrice: bool = False

    def algorithm(self, setting: str) -> AnyAlgorithm:
        """The algorithm with a setting of the grid; with the fused exchange unless that says otherwise."""
        options = self.grid[setting]
        algorithm = replace(ALGORITHMS[self.name].algorithm, **options)
        return algorithm if "line_search" in options else with_one_exchange(algorithm)


def _grid(option: str, *values: Any) -> dict[str, dict[str, Any]]:
    return {f"{option} = {value}": {option: value} for value in values}


def _pairs(*counts: int) -> dict[str, dict[str, Any]]:
    return {f"{count} pairs": {"channel": Constant(count)} for count in counts}


_TOP_K = {
    "k = 10 n": {"compressor": TopK(3000)},  # n = 300 on the problems for tuning
    "k = n, two exchanges": {"line_search": TwoExchange()},
    "k = 10 n, two exchanges": {"compressor": TopK(3000), "line_search": TwoExchange()},
}
_DISCO = {
    **_grid("tolerance", 0.1, 0.3),
    "first agent": {"preconditioner": FirstAgent(1e-3), "tolerance": 0.1},
}
_DANE = {
    f"mu = {mu:g}, momentum {momentum:g}": {"mu": mu, "momentum": momentum}
    for mu in (1e-3, 1e-2)
    for momentum in (0.0, 0.9)
}
ALL = (
    Contender("pen", ours=True, thrice=True),
    Contender("qn-shed", ours=True, thrice=True),
    Contender("newton-seldom", ours=True, thrice=True),
    Contender("lbfgs-coded", _grid("memory", 50, 150), thrice=True),
    Contender("newton", thrice=True),
    Contender("lbfgs", _grid("memory", 20, 150), thrice=True),
    Contender("fib-shed", _pairs(1, 6, 30)),
    Contender("q-shed", _grid("bits", 32, 64, 128)),
    Contender("q-shed-equal", {f"{b} bits": {"allocation": EqualBits(b)} for b in (6, 8, 12)}),
    Contender("fednl", {f"rank {rank}": {"channel": Constant(rank)} for rank in (1, 6)}),
    Contender("fednl-top-k", _TOP_K),
    Contender("fednl-natural"),
    Contender("fedns", _grid("k", 40, 75, 100, 150)),
    Contender("disco", _DISCO),
    Contender("giant", iterations=SHORT),
    Contender("dane", _DANE, SHORT),
    Contender("agd"),
    Contender("scaffold", _grid("local_steps", 5, 20, 50), SHORT),
    Contender("fedavg", _grid("local_steps", 5, 20, 50), SHORT),
    Contender("fedprox", _grid("prox", 0.01, 0.1), SHORT),
)
CONTENDERS = {one.name: one for one in ALL}
