"""QN-SHED and PEN against the paper's Fib-SHED and the rivals, on the four problems of docs/beyond.md.

The yardstick is Fib-SHED with d = 1 and two exchanges an iteration, in the same run: its rounds, its bytes.
Rivals have the fused exchange, their strongest form.  Targets: exchanges, uplink bytes and bytes both ways as
fractions of the yardstick's, and no rival better than both of ours on exchanges and uplink bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import fedshed
from fedshed import Federation, Fused, TwoExchange
from fedshed.solve.trace import Row

GAP = 1e-11
LIMIT = {"max_iterations": 500}
PROBLEMS = {
    "F5": ("fashion-mnist", 1e-5),
    "F6": ("fashion-mnist", 1e-6),
    "F8": ("fashion-mnist", 1e-8),
    "W5": ("w8a", 1e-5),
}
YARDSTICK, YARDSTICK_RUN = "fib-shed", {"line_search": TwoExchange(), "max_iterations": 2000}
OURS: dict[str, dict[str, Any]] = {"qn-shed": {}, "pen": {}}
RIVALS: dict[str, dict[str, Any]] = {  # those that crawl are stopped
    "newton": {"line_search": Fused()},
    "fib-shed+": {"line_search": Fused(), "max_iterations": 1000},
    "fednl": {"line_search": Fused(), "max_iterations": 800},
    "lbfgs": {"line_search": Fused(), "max_iterations": 700},
    "giant": {"line_search": Fused(), "max_iterations": 100},
}
TARGETS = {"qn-shed": (1 / 8, 1 / 10, 1 / 5), "pen": (1 / 25, 1 / 18, 1 / 10)}


@dataclass(frozen=True)
class Cost:
    """What a run cost to the gap: exchanges, and KB per agent up and both ways."""

    rounds: int
    exchanges: int
    up: float
    both: float
    seconds: float

    @classmethod
    def of(cls, row: Row, agents: int) -> Cost:
        """A row of a trace, per agent."""
        up, down = (b / agents / 1000 for b in (row.uplink_bytes, row.downlink_bytes))
        return cls(row.rounds, row.exchanges, up, up + down, row.seconds)

    def ratios(self, yardstick: Cost) -> tuple[float, float, float]:
        """Exchanges against the paper's rounds, bytes against its bytes."""
        return self.exchanges / yardstick.rounds, self.up / yardstick.up, self.both / yardstick.both

    def beats(self, other: Cost) -> bool:
        """Better on both exchanges and uplink bytes."""
        return self.exchanges < other.exchanges and self.up < other.up


def measured(
    federation: Federation, name: str, l2: float, f_star: float, options: Mapping[str, Any]
) -> Cost | None:
    """The cost of a run to the gap; None where it is not reached."""
    result = fedshed.optimize(
        federation, algorithm=name, l2=l2, f_star=f_star, gap_tol=GAP, tol=0.0, **{**LIMIT, **options}
    )
    row = result.trace.first_below(GAP)
    return None if row is None else Cost.of(row, len(federation.sites))


def line(name: str, cost: Cost | None, yardstick: Cost, options: Mapping[str, Any]) -> str:
    if cost is None:
        return f"{name:10} not reached in {options['max_iterations']} iterations"
    fractions = "  ".join(f"1/{1 / ratio:5.1f}" for ratio in cost.ratios(yardstick))
    return (
        f"{name:10} {cost.exchanges:5} exchanges {cost.up:8.1f} KB up {cost.both:8.1f} KB both ways   "
        f"{fractions}  {cost.seconds:6.1f} s"
    )


def verdict(name: str, cost: Cost | None, yardstick: Cost) -> str:
    """Each target of `name`, met or missed."""
    if cost is None:
        return f"  {name}: the gap is not reached"
    parts = [
        f"{what} {'met' if ratio <= target else 'MISSED'} (1/{1 / ratio:.1f}, target 1/{1 / target:.0f})"
        for what, ratio, target in zip(
            ("exchanges", "up", "both ways"), cost.ratios(yardstick), TARGETS[name], strict=True
        )
    ]
    return f"  {name}: {', '.join(parts)}"


def compare(label: str) -> None:
    """One problem: a line for each algorithm, then the targets."""
    dataset, l2 = PROBLEMS[label]
    federation = fedshed.datasets.load(dataset, partition="two-class")
    _, f_star = fedshed.optimum(federation, l2=l2)
    print(
        f"{label}: {dataset}, {len(federation.sites)} agents, n = {federation.dim}, mu = {l2:g}, gap {GAP:g}"
    )
    yardstick = measured(federation, YARDSTICK, l2, f_star, YARDSTICK_RUN)
    assert yardstick is not None
    print(
        f"{line(YARDSTICK, yardstick, yardstick, YARDSTICK_RUN)}   {yardstick.rounds} rounds: the yardstick"
    )
    costs: dict[str, Cost | None] = {}
    for name, options in {**OURS, **RIVALS}.items():
        if name.removesuffix("+") in fedshed.ALGORITHMS:
            costs[name] = measured(federation, name, l2, f_star, options)
            print(line(name, costs[name], yardstick, {**LIMIT, **options}), flush=True)
    ours = {name: costs[name] for name in OURS if name in costs}
    print(*(verdict(name, cost, yardstick) for name, cost in ours.items()), sep="\n")
    print(
        f"  better than both of ours: {', '.join(dominating(costs, ours.values())) or 'no rival'}\n",
        flush=True,
    )


def dominating(costs: Mapping[str, Cost | None], ours: Iterable[Cost | None]) -> list[str]:
    """Rivals with fewer exchanges and fewer uplink bytes than each of ours."""
    best = [cost for cost in ours if cost is not None]
    rivals = {name: cost for name, cost in costs.items() if name in RIVALS and cost is not None}
    return [name for name, cost in rivals.items() if all(cost.beats(other) for other in best)]


def main(labels: Iterable[str] = PROBLEMS) -> None:
    for label in labels:
        compare(label)
