"""Several algorithms on the same data, from the same start, against the same f*."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from fedshed.algorithm import Algorithm
from fedshed.algorithms import ALGORITHMS, Budget, build
from fedshed.arrays import Vector
from fedshed.datasets import Federation
from fedshed.engine import Progress
from fedshed.errors import ConfigError
from fedshed.linesearch import FullStep, LineSearch
from fedshed.solving import Result, Watch, optimize, optimum
from fedshed.trace import COLUMNS, Row

OnRow = Callable[[str, Row], None]
OnProgress = Callable[[str, Progress], None]
OnResult = Callable[[str, Result], None]
KB = 1000.0  # bytes


class Summary(Struct, frozen=True):
    """What one algorithm needed and how it ended; KB (of 1000 bytes), vectors and Hessians are per agent."""

    algorithm: str
    iterations: int
    rounds: int
    exchanges: int
    kb_up: float
    kb_down: float
    vectors_up: float
    hessians: float
    gap: float
    converged: bool
    reason: str
    seconds: float


class Comparison(Struct, frozen=True):
    """The results by algorithm, in the order asked for, and f*, which all gaps are measured from.

    With a `target_gap` the summary counts up to the first iterate whose gap is below it, where there is one.
    """

    federation: Federation
    results: dict[str, Result]
    f_star: float
    target_gap: float | None = None
    algorithms: dict[str, Algorithm[Any]] = {}  # as they were run

    @property
    def agents(self) -> int:
        """The number of sites."""
        return len(self.federation.tables)

    def summary(self) -> list[Summary]:
        """One row per algorithm."""
        return [self._summary(name, result) for name, result in self.results.items()]

    def traces(self) -> dict[str, list[dict[str, Any]]]:
        """The trace of each algorithm as plain dictionaries, ready for JSON."""
        return {name: result.trace.to_records() for name, result in self.results.items()}

    def to_csv(self) -> str:
        """All traces in one table, the column `algorithm` first; what is unknown is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("algorithm", *COLUMNS))
        for name, result in self.results.items():
            writer.writerows([name, *(getattr(row, column) for column in COLUMNS)] for row in result.trace)
        return out.getvalue()

    def _summary(self, name: str, result: Result) -> Summary:
        row, reason = self._counted(result)
        scale = KB * self.agents
        return Summary(
            name, row.iteration, row.rounds, row.exchanges,
            row.uplink_bytes / scale, row.downlink_bytes / scale, row.uplink_vectors, row.hessians,
            row.f - self.f_star, result.converged, reason, row.seconds,
        )  # fmt: skip

    def _counted(self, result: Result) -> tuple[Row, str]:
        """The row up to which costs are counted, and how the run ended."""
        last: Row = result.trace[-1]
        if self.target_gap is None:
            return last, result.reason
        row = result.trace.first_below(self.target_gap)
        return (row, result.reason) if row else (last, f"gap not below {self.target_gap:g}; {result.reason}")


def compare(
    federation: Federation,
    algorithms: Sequence[str],
    *,
    loss: str = "logistic",
    l2: float | Vector = 1e-5,
    intercept: bool = False,
    budget: Budget = None,
    line_search: LineSearch | None = None,
    tol: float = 1e-9,
    max_iterations: int = 500,
    seed: int = 0,
    target_gap: float | None = None,
    on_row: OnRow | None = None,
    watch: OnProgress | None = None,
    on_result: OnResult | None = None,
) -> Comparison:
    """Run every algorithm on the federation; one that is unknown or not for the loss is refused before that.

    `budget` is for the algorithms that take one and have no `+` in their name, `line_search` for those that
    search.  `on_row` and `watch` are called with the name and the row or the whole progress after each
    iteration, `on_result` when an algorithm has ended.
    """
    ready = prepared(algorithms, loss, budget, line_search, seed)
    _, f_star = optimum(federation, loss=loss, l2=l2, intercept=intercept)
    results: dict[str, Result] = {}
    for name, algorithm in ready.items():
        results[name] = optimize(
            federation, loss=loss, l2=l2, intercept=intercept, algorithm=algorithm, tol=tol,
            max_iterations=max_iterations, f_star=f_star, seed=seed, watch=_watch(name, on_row, watch),
        )  # fmt: skip
        if on_result is not None:
            on_result(name, results[name])
    return Comparison(federation, results, f_star, target_gap, ready)


def prepared(
    names: Sequence[str], loss: str, budget: Budget, line_search: LineSearch | None, seed: int
) -> dict[str, Algorithm[Any]]:
    """Every algorithm ready to run, or the error of the first that cannot."""
    if not names:
        raise ConfigError(f"name at least one algorithm; known: {', '.join(sorted(ALGORITHMS))}")
    for k, name in enumerate(names):
        if name in names[:k]:
            raise ConfigError(f"algorithm {name!r} is named twice; name each once")
    return {name: _suited(name, _built(name, budget, line_search, seed), loss) for name in names}


def _built(name: str, budget: Budget, line_search: LineSearch | None, seed: int) -> Algorithm[Any]:
    """The algorithm with the budget and the line search where they are for it, else with its own."""
    own = build(name, seed=seed)
    budgeted = ALGORITHMS[name.removesuffix("+")].takes_budget and not name.endswith("+")
    searches = not isinstance(getattr(own, "line_search", FullStep()), FullStep)
    return build(name, budget if budgeted else None, line_search if searches else None, seed)


def _suited(name: str, algorithm: Algorithm[Any], loss: str) -> Algorithm[Any]:
    """The algorithm, refused if it is not for this loss."""
    if algorithm.losses is not None and loss not in algorithm.losses:
        raise ConfigError(f"{name} is for {', '.join(algorithm.losses)} only, not for {loss}; leave it out")
    return algorithm


def _watch(name: str, on_row: OnRow | None, watch: OnProgress | None) -> Watch:
    def told(progress: Progress) -> None:
        if on_row is not None:
            on_row(name, progress.rows[-1])
        if watch is not None:
            watch(name, progress)

    return told
