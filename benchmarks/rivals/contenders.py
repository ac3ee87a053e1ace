"""Who takes part, and the grid from which each takes its one setting: chosen on F5 and W5, used everywhere.

Ours have no grid here: their defaults were chosen on F5, F6, F8 and W5 and are the library's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fedshed import ALGORITHMS, Constant
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.registry import with_one_exchange

TUNED_ON = ("F5", "W5")
LONG, SHORT = 500, 100  # iterations; those that are far away after a hundred stay far away


@dataclass(frozen=True)
class Contender:
    """An algorithm by name, with the settings it may choose from; `thrice` if each seed is run."""

    name: str
    grid: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"as it is": {}})
    iterations: int = LONG
    ours: bool = False
    thrice: bool = False

    def algorithm(self, setting: str) -> Algorithm[Any]:
        """The algorithm with a setting of the grid, and the fused exchange, its strongest form."""
        return with_one_exchange(replace(ALGORITHMS[self.name].algorithm, **self.grid[setting]))


def _grid(option: str, *values: Any) -> dict[str, dict[str, Any]]:
    return {f"{option} = {value}": {option: value} for value in values}


_PAIRS = {f"{d} pairs": {"channel": Constant(d)} for d in (1, 6, 30)}
ALL = (
    Contender("pen", ours=True, thrice=True),
    Contender("qn-shed", ours=True, thrice=True),
    Contender("newton-seldom", ours=True, thrice=True),
    Contender("newton", thrice=True),
    Contender("lbfgs", _grid("memory", 20, 150), thrice=True),
    Contender("fib-shed", _PAIRS),
    Contender("fednl", {f"rank {r}": {"channel": Constant(r)} for r in (1, 6)}),
    Contender("giant", iterations=SHORT),
    Contender("agd", iterations=LONG),
)
CONTENDERS = {one.name: one for one in ALL}
