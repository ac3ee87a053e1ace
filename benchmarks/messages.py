"""What a message costs, whatever computes its numbers: one by one or in the plural.

`python -m benchmarks messages [AGENTS ...]`: microseconds of CPU time per message (a request and its reply,
encoded, checked, counted and used) by algorithm; the computing of costs, gradients and Hessians is apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedshed.algorithms import build
from fedshed.exchange import InProcess
from fedshed.exchange.sites import LocalSites, Stage
from fedshed.objectives import LinearModel, Logistic, stacked
from fedshed.protocol import codec
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Outcome, Progress, iterate
from fedshed.solve.goal import Goal

N_COLUMNS, N_ROWS, ITERATIONS, REPEATS = 50, 100, 3, 3
ALGORITHMS = ("newton", "newton-seldom", "lbfgs", "agd", "fib-shed")


class OneByOne:
    """A site that answers by itself: the plain path."""

    def __init__(self, site: Any) -> None:
        self.handle, self.forget = site.handle, site.forget


def models(agents: int) -> dict[str, LinearModel]:
    """Small logistic tables of one shape, columns of falling size."""
    rng = np.random.default_rng(0)
    truth, sizes, made = rng.normal(size=N_COLUMNS), np.geomspace(1, 0.05, N_COLUMNS), {}
    for i in range(agents):
        X = rng.normal(size=(N_ROWS, N_COLUMNS)) * sizes
        made[f"{i:06}"] = Logistic(X, np.where(X @ truth + rng.logistic(size=N_ROWS) > 0, 1.0, -1.0))
    return stacked(made)


@contextmanager
def reading(together: bool) -> Iterator[None]:
    """Whether the Master reads alike replies together."""
    fewest = codec.FEWEST
    codec.FEWEST = fewest if together else sys.maxsize
    yield
    codec.FEWEST = fewest


def seconds(models: Mapping[str, LinearModel], name: str, together: bool) -> tuple[float, int, int]:
    """CPU seconds of a few iterations, their exchanges, and how many of these were updates."""
    algorithm = build(name)
    problem = Problem(np.full(N_COLUMNS, 1e-3), {i: m.weight for i, m in models.items()}, "logistic")
    alone = lambda sites: InProcess({i: OneByOne(site) for i, site in sites.items()})  # noqa: E731
    sites = LocalSites(models, InProcess if together else alone)
    with sites.open(Stage(0, algorithm)) as transport, reading(together):
        goal = Goal(tol=1e-14, max_iterations=ITERATIONS)
        run = iterate(
            algorithm, problem, transport, Progress(algorithm.start(problem, np.zeros(N_COLUMNS))), goal
        )
        before = time.process_time()
        outcome = _end(run)
        return time.process_time() - before, outcome.traffic.exchanges, len(outcome.rows)


def _end(run: Generator[Progress, None, Outcome]) -> Outcome:
    """How a run ends."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def computing(models: Mapping[str, LinearModel], hessians: bool, seed: int) -> tuple[float, float]:
    """CPU seconds of the numbers of an update and of a line search of all agents."""
    stacks = {id(m.slot.stack): m.slot.stack for m in models.values() if m.slot}.values()
    etas = 0.5 ** np.arange(8)
    theta, direction = np.random.default_rng(seed).normal(size=(2, N_COLUMNS))
    start = time.process_time()
    for stack in stacks:
        joint = stack.at.found(theta)
        joint.values, joint.gradients  # noqa: B018
        if hessians:
            joint.hessians(list(range(len(stack.models))))
    between = time.process_time()
    for stack in stacks:
        stack.costs_along.found(theta, direction, etas)
    return between - start, time.process_time() - between


def main() -> None:
    """A table by algorithm."""
    counts = [int(word) for word in sys.argv[2:] if word.isdigit()] or [1_000, 10_000]
    print("CPU microseconds per message, computing of numbers apart (columns 50, rows 100)")
    print(f"{'agents':>7} {'algorithm':>14} {'one by one':>11} {'plural':>7} {'computing':>10}")
    with threadpool_limits(1):
        for count in counts:
            tables = models(count)
            for name in ALGORITHMS:
                _row(tables, name)


def _row(tables: Mapping[str, LinearModel], name: str) -> None:
    found: dict[bool, list[float]] = {True: [], False: []}
    numbers = []
    for seed in range(REPEATS):  # in turn, so that a busy machine slows all alike
        update, search = computing(tables, name == "newton", seed)
        for together in found:
            cpu, exchanges, updates = seconds(tables, name, together)
            found[together].append(cpu / exchanges)
        numbers.append((updates * update + (exchanges - updates) * search) / exchanges)
    each = 1e6 / len(tables)
    apart = median(numbers)
    plural, alone = (each * (median(found[kind]) - apart) for kind in (True, False))
    print(f"{len(tables):>7} {name:>14} {alone:>11.1f} {plural:>7.1f} {each * apart:>10.1f}", flush=True)
