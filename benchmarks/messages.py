"""What a message costs, whatever computes its numbers: coded and read singly or in batches.

`python -m benchmarks messages [AGENTS ...]`: microseconds of CPU time per message (a request and its reply,
encoded, checked, counted and used) by algorithm, from the second iteration on; the computing of costs,
gradients and Hessians is apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed.algorithms import build
from fedshed.algorithms.channels import Constant
from fedshed.exchange import InProcess
from fedshed.exchange.sites import LocalSites, Stage
from fedshed.objectives import LinearModel, Logistic, stacked
from fedshed.objectives.shared_evaluation import SharedEvaluation
from fedshed.objectives.stack import SharedFactors, Stack
from fedshed.protocol import codec
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Outcome, Progress, iterate
from fedshed.solve.goal import Goal

N_COLUMNS, N_ROWS, ITERATIONS, REPEATS = 50, 100, 4, 3
ALGORITHMS = ("newton", "newton-seldom", "lbfgs", "agd", "shed-periodic")
# all eigenpairs come with the first update, so that the exchanges that follow are ordinary ones
COMPUTING = [
    (SharedEvaluation, "evaluate"),
    (Stack, "values"),
    (Stack, "gradients"),
    (SharedFactors, "result"),
    (LinearModel, "curvature_factor"),
]
OPTIONS: dict[str, dict[str, Any]] = {"shed-periodic": {"channel": Constant(N_COLUMNS)}}


class Single:
    """A site whose reply is coded by itself."""

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
def reading(in_batches: bool) -> Iterator[None]:
    """Whether the Master reads replies of one shape in batches."""
    fewest = codec.FEWEST
    codec.FEWEST = fewest if in_batches else sys.maxsize
    yield
    codec.FEWEST = fewest


class Clock:
    """CPU seconds inside some functions, those that call each other counted once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    @contextmanager
    def over(self, functions: Iterable[tuple[Any, str]]) -> Iterator[None]:
        """Time these functions of modules and classes."""
        before = [(owner, name, vars(owner)[name]) for owner, name in functions]
        for owner, name, function in before:
            setattr(owner, name, self._timed(function))
        yield
        for owner, name, function in before:
            setattr(owner, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*values: Any, **named: Any) -> Any:
            if self._inside:
                return function(*values, **named)
            self._inside, start = True, time.process_time()
            try:
                return function(*values, **named)
            finally:
                self._inside = False
                self.seconds += time.process_time() - start

        return timed


def seconds(models: Mapping[str, LinearModel], name: str, in_batches: bool) -> tuple[float, float]:
    """CPU seconds per exchange after the first iteration, and those of computing among them."""
    algorithm = replace(build(name), **OPTIONS.get(name, {}))
    problem = Problem(np.full(N_COLUMNS, 1e-3), {i: m.weight for i, m in models.items()}, "logistic")
    single = lambda sites: InProcess({i: Single(site) for i, site in sites.items()})  # noqa: E731
    sites, clock = LocalSites(models, InProcess if in_batches else single), Clock()
    with sites.open(Stage(0, algorithm)) as transport, reading(in_batches):
        goal = Goal(tol=1e-14, max_iterations=ITERATIONS)
        start = Progress(algorithm.start(problem, np.zeros(N_COLUMNS)))
        run = iterate(algorithm, problem, transport, start, goal)
        first = next(run)  # with scales, Hessians and eigenpairs of the start
        with clock.over(COMPUTING):
            before = time.process_time()
            outcome = _end(run)
            all_of_it = time.process_time() - before
        exchanges = outcome.traffic.exchanges - first.traffic.exchanges
        return all_of_it / exchanges, clock.seconds / exchanges


def _end(run: Generator[Progress, None, Outcome]) -> Outcome:
    """How a run ends."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def main() -> None:
    """A table by algorithm."""
    counts = [int(word) for word in sys.argv[2:] if word.isdigit()] or [1_000, 10_000]
    print("CPU microseconds per message, computing of numbers apart (columns 50, rows 100)")
    print(f"{'agents':>7} {'algorithm':>14} {'singly':>7} {'batches':>8} {'computing':>10}")
    with threadpool_limits(1):
        for count in counts:
            tables = models(count)
            for name in ALGORITHMS:
                _row(tables, name)


def _row(tables: Mapping[str, LinearModel], name: str) -> None:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(REPEATS):  # in turn, so that a busy machine slows both alike
        for in_batches in found:
            found[in_batches].append(seconds(tables, name, in_batches))
    each = 1e6 / len(tables)
    singly, batches = (each * median(cpu - numbers for cpu, numbers in runs) for runs in found.values())
    numbers = each * median(computing for _, computing in found[True])
    print(f"{len(tables):>7} {name:>14} {singly:>7.1f} {batches:>8.1f} {numbers:>10.1f}", flush=True)
