"""Ray with two workers against one process (docs/large.md): 20,000 agents, and a worker that is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from fedshed import Federation, RaySites, Result, optimize

PAGE = Path(__file__).parents[1] / "docs" / "large.md"
START, END = "<!-- workers -->", "<!-- /workers -->"
AGENTS, ROWS, COLUMNS, WORKERS = 20_000, 20, 50, 2
ITERATIONS, KILLED_AT = 5, 2
TICK = os.sysconf("SC_CLK_TCK")


def made(agents: int) -> Federation:
    """Two classes; every agent has its own rows of one distribution."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(agents * ROWS, COLUMNS))
    y = rng.logistic(size=len(X)) < X[:, 0] - X[:, 1] / 2
    return Federation.from_arrays(X, y, sites=np.repeat(np.arange(agents), ROWS))


def workers_cpu() -> float:
    """CPU seconds of all processes of Ray on this machine, so far."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if b"ray" in command and int(path.name) != os.getpid():
            total += (int(fields[11]) + int(fields[12])) / TICK
    return total


class Clock:
    """Seconds and CPU seconds of the rounds of a run, this process and the workers apart."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float, float]] = []

    def __call__(self, progress: Any) -> None:
        """After a round."""
        self._marks.append((perf_counter(), process_time(), workers_cpu()))

    def rounds(self) -> list[tuple[float, float, float]]:
        """Of each round after the first."""
        return [
            (b[0] - a[0], b[1] - a[1], b[2] - a[2])
            for a, b in zip(self._marks[:-1], self._marks[1:], strict=True)
        ]


def fitted(federation: Federation, algorithm: str, connect: Any, strike: Any = None) -> tuple[Result, Clock]:
    """A few rounds, and their clock."""
    clock = Clock()

    def watch(progress: Any) -> None:
        clock(progress)
        if strike is not None:
            strike(progress)

    result = optimize(
        federation, algorithm=algorithm, l2=1e-3, max_iterations=ITERATIONS, tol=1e-14, transport=connect,
        watch=watch,
    )  # fmt: skip
    return result, clock


def killing(there: RaySites) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
    """What connects, and what kills a worker in the middle."""
    made: list[Any] = []

    def connect(sites: Any) -> Any:
        made.append(there(sites))
        return made[-1]

    def strike(progress: Any) -> None:
        if progress.rows[-1].iteration == KILLED_AT:
            import ray

            ray.kill(made[0].pool.actors[0])

    return connect, strike


def line(federation: Federation, algorithm: str, there: RaySites) -> str:
    """A run in one process and one at workers, of which one is killed: medians of the other rounds."""
    here, clock = fitted(federation, algorithm, None)
    wall, cpu, _ = _medians(clock.rounds())
    connect, strike = killing(there)
    away, clock = fitted(federation, algorithm, connect, strike)
    if not np.array_equal(here.theta, away.theta) or here.trace[-1].rounds != away.trace[-1].rounds:
        raise RuntimeError(f"{algorithm}: Ray came to another theta, or in another number of rounds")
    rounds = clock.rounds()
    killed = rounds.pop(KILLED_AT)
    wall2, master, workers = _medians(rounds)
    us = 1e6 * (ITERATIONS + 1) / (len(federation.sites) * here.trace[-1].exchanges)
    return (
        f"| {algorithm} | {wall:.2f} | {wall2:.2f} | {wall2 / wall:.2f} | {(master + workers) / cpu:.2f} | "
        f"{cpu * us:.0f} | {master * us:.0f} + {workers * us:.0f} | {killed[0] - wall2:.1f} |"
    )


def _medians(rounds: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    wall, cpu, workers = (median(column) for column in zip(*rounds, strict=True))
    return wall, cpu, workers


def main() -> None:
    federation = made(AGENTS)
    lines = [
        "| | s per round, one process | s per round, Ray | ratio | ratio of CPU-s | CPU microseconds per "
        "message, one process | with Ray: Master + workers | s lost by a killed worker |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with RaySites(workers=WORKERS) as there:
        for algorithm in ("newton", "lbfgs"):
            lines.append(line(federation, algorithm, there))
            print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
