"""What the Master holds: eigenvectors in full, or only sums (docs/performance.md).

Each run is a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

import fedshed
from benchmarks.speed import PAGE, task
from fedshed import Federation
from fedshed.algorithms import Shed, ShedAggregate
from fedshed.algorithms.base import AnyAlgorithm

START, END = "<!-- held -->", "<!-- /held -->"
ALGORITHMS: dict[str, AnyAlgorithm] = {
    "full": Shed(),
    "aggregate": ShedAggregate(),
}
PROBLEMS = {
    "w8a, 142 agents, l2 = 1e-3": ("w8a", 1e-3),
    "w8a, 142 agents, l2 = 1e-5": ("w8a", 1e-5),
    "1,000 agents, n = 300, 99 pairs each, l2 = 1e-2": ("made", 1e-2),
}


def rows_of(name: str) -> Federation:
    """w8a, or 1,000 agents of 100 rows with a spectrum that falls to a 400th."""
    if name == "w8a":
        return fedshed.datasets.load("w8a", agents=142, partition="iid")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 300)) * np.geomspace(1, 0.05, 300)
    y = X @ rng.normal(size=300) + rng.logistic(size=len(X)) > 0
    return Federation.from_arrays(X, y, sites=np.arange(len(X)) % 1000)


def held(name: str, l2: str, kind: str) -> dict[str, Any]:
    """A run to 1e-9, or of 6 iterations with all pairs at once; the most that its state held."""
    from benchmarks.tasks import measured

    federation, algorithm = rows_of(name), ALGORITHMS[kind]
    if name == "made":
        algorithm = replace(algorithm, channel=fedshed.Constant(99))
    most = 0

    def watch(progress: Any) -> None:
        nonlocal most
        size = nbytes({id(part): part for part in parts(progress.state)})
        most = max(most, size)

    options = {"l2": float(l2), "tol": 1e-9, "max_iterations": 6 if name == "made" else 500}
    result, cost = measured(lambda: fedshed.optimize(federation, algorithm=algorithm, watch=watch, **options))
    outcome = {**cost, "state": most / 1e6, "iterations": result.trace[-1].iteration}
    return outcome


def parts(value: Any) -> list[Any]:
    """Arrays and bytes of a state, wherever they are."""
    if isinstance(value, np.ndarray | bytes):
        return [value]
    if hasattr(value, "__struct_fields__"):
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    return [part for one in value for part in parts(one)] if isinstance(value, list | tuple) else []


def nbytes(found: dict[int, Any]) -> int:
    """Their size; one that several agents share counts once."""
    return sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in found.values())


def table() -> list[str]:
    """A line for each way to keep the pairs, and what each costs."""
    lines = [
        "| problem | kept | MB in the Master's state | iterations | CPU-s |",
        "|---|---|---|---|---|",
    ]
    for what, (name, l2) in PROBLEMS.items():
        cost = {kind: task("held", name, l2, kind) for kind in ALGORITHMS}
        lines += [
            f"| {what} | {kind} | {c['state']:.1f} | {c['iterations']} | {c['cpu']:.1f} |"
            for kind, c in cost.items()
        ]
        print(*lines[-2:], sep="\n", flush=True)
    return lines


def main() -> None:
    lines = table()
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")
