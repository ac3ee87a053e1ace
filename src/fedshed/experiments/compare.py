"""Several algorithms on the same data, from the same start, against the same f*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import TypeAlias

from msgspec.structs import fields

from fedshed._utils.errors import ConfigError
from fedshed.algorithms import ALGORITHMS, Budget, build
from fedshed.algorithms.base import Algorithm, AnyAlgorithm
from fedshed.algorithms.from_file import is_in_file, load_algorithm
from fedshed.algorithms.linesearch import FullStep, LineSearch
from fedshed.algorithms.registry import configured
from fedshed.experiments.comparison import Comparison, Setting, Trial
from fedshed.experiments.contenders import check_complete, check_links
from fedshed.linalg.arrays import Vector
from fedshed.report.recorder import Recorder
from fedshed.solve.engine import Progress
from fedshed.solve.optimize import optimize, optimum
from fedshed.solve.run import Result, Watch
from fedshed.solve.trace import Row
from fedshed.tables import Federation

OnRow = Callable[[str, Row], None]
OnProgress = Callable[[str, Progress], None]
OnResult = Callable[[str, Result], None]
Named: TypeAlias = str | AnyAlgorithm
Several: TypeAlias = Sequence[Named] | Mapping[str, Named]

_USUAL = ("fib-shed", "fib-shed+", "gn-shed", "fednl", "lbfgs", "newton", "qn-shed", "pen")
_LEAST_SQUARES = ("shed-ls", "shed-ls+", "shed-ls-periodic", "fib-shed", "newton")


def compare(
    federation: Federation | Sequence[Federation],
    algorithms: Several | None = None,
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
    title: str = "",
    command: str = "",
    on_row: OnRow | None = None,
    watch: OnProgress | None = None,
    on_result: OnResult | None = None,
) -> Comparison:
    """Run every algorithm on the same rows, from the same start, and measure its gap to the pooled optimum.

    Parameters
    ----------
    federation : Federation or sequence of Federation
        The rows at their sites. Several are repeats, such as partitions with other seeds; the comparison
        then shows medians and bands.
    algorithms : sequence or mapping, optional
        Names (see `fedshed algorithms`), instances of `Algorithm`, or files such as "my.py:DiagonalNewton";
        a mapping gives each the name that it has in tables and figures. Default: SHED, its main rivals and
        ours.
    loss, l2, intercept, tol, max_iterations
        As in `fedshed.optimize`.
    budget : int or Channel, optional
        Eigenpairs per round, for algorithms that are given by a name without `+` and take a budget.
    line_search : LineSearch, optional
        For algorithms that are given by name and search. An instance is run as it is.
    seed : int
        For what is drawn at random, such as links that fade.
    target_gap : float, optional
        The summary and the times count up to the first iterate with a smaller gap.
    title, command : str, optional
        For the figure and the report: what is compared, and the command that does so again.
    on_row, watch, on_result : callable, optional
        Called with the name and the row or the progress after each iteration, or the result at the end.

    Returns
    -------
    Comparison
        With `summary()`, `to_pandas()`, `plot()`, `report(path)` and `fastest(latency, rate)`.

    Raises
    ------
    ConfigError
        Before anything runs, if an algorithm is unknown, named twice or not for this loss.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> found = fedshed.compare(federation, ["newton", "fib-shed"], l2=1e-2)
    >>> for name, result in found.results.items():
    ...     print(name, result.converged)
    newton True
    fib-shed True
    """
    ready = prepared(defaults(loss) if algorithms is None else algorithms, loss, budget, line_search, seed)
    if target_gap is not None and not target_gap > 0:
        raise ConfigError(f"target_gap (--gap) must be above 0, not {target_gap!r}")
    several = [federation] if isinstance(federation, Federation) else list(federation)
    if not several:
        raise ConfigError("compare needs a Federation, or a list of at least one")
    for name, algorithm in ready.items():
        check_links(name, algorithm, several)
    trials = []
    for data in several:
        _, f_star = optimum(data, loss=loss, l2=l2, intercept=intercept)
        results: dict[str, Result] = {}
        cpu: dict[str, float] = {}
        recorders = {name: Recorder() for name in ready}
        for name, algorithm in ready.items():
            began = process_time()
            results[name] = optimize(
                data, loss=loss, l2=l2, intercept=intercept, algorithm=algorithm, tol=tol, seed=seed,
                max_iterations=max_iterations, f_star=f_star,
                watch=_watch(name, recorders[name], on_row, watch),
            )  # fmt: skip
            cpu[name] = process_time() - began
            if on_result is not None:
                on_result(name, results[name])
        trials.append(Trial(data, f_star, results, recorders, cpu))
    setting = Setting(loss, l2, intercept, seed, title, command)
    return Comparison(tuple(trials), ready, setting, target_gap)


def defaults(loss: str | None) -> tuple[str, ...]:
    """The algorithms that are compared if none are named."""
    return _LEAST_SQUARES if loss == "least-squares" else _USUAL


def prepared(
    algorithms: Several, loss: str, budget: Budget, line_search: LineSearch | None, seed: int
) -> dict[str, AnyAlgorithm]:
    """Every algorithm ready to run by its label, or the error of the first that cannot."""
    named = dict(algorithms) if isinstance(algorithms, Mapping) else _labelled(algorithms)
    if not named:
        raise ConfigError(f"name at least one algorithm; known: {', '.join(sorted(ALGORITHMS))}")
    return {
        str(label): _suited(str(label), _built(one, budget, line_search, seed), loss)
        for label, one in named.items()
    }


def _labelled(algorithms: Sequence[Named]) -> dict[str, Named]:
    """Names as they are; of instances the class, and what tells it from the class's own configuration."""
    if isinstance(algorithms, str | Algorithm):
        raise ConfigError(f"algorithms must be a list or a dict, not {algorithms!r}; write [{algorithms!r}]")
    labels = [_label(one) for one in algorithms]
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise ConfigError(f"algorithm {twice[0]!r} is named twice; name each once, or give a dict of labels")
    return dict(zip(labels, algorithms, strict=True))


def _label(one: Named) -> str:
    if isinstance(one, str):
        return one.rpartition(":")[2] if is_in_file(one) else one
    if not isinstance(one, Algorithm):
        raise ConfigError(f"an algorithm is a name or an instance of Algorithm, not {one!r}")
    own = [f"{f.name}={getattr(one, f.name)!r}" for f in fields(one) if getattr(one, f.name) != f.default]
    return f"{type(one).__name__}({', '.join(own)})" if own else type(one).__name__


def _built(one: Named, budget: Budget, line_search: LineSearch | None, seed: int) -> AnyAlgorithm:
    """A name with the budget and the line search where they are for it; an instance as it is."""
    if isinstance(one, str) and is_in_file(one):
        one = load_algorithm(one)
    if isinstance(one, Algorithm):
        return configured(one, None, None, seed)
    if not isinstance(one, str):
        raise ConfigError(f"an algorithm is a name or an instance of Algorithm, not {one!r}")
    own = build(one, seed=seed)
    budgeted = ALGORITHMS[one.removesuffix("+")].takes_budget and not one.endswith("+")
    searches = not isinstance(getattr(own, "line_search", FullStep()), FullStep)
    return build(one, budget if budgeted else None, line_search if searches else None, seed)


def _suited(name: str, algorithm: AnyAlgorithm, loss: str) -> AnyAlgorithm:
    """The algorithm, refused if it is not complete or not for this loss."""
    check_complete(name, algorithm)
    if algorithm.losses is not None and loss not in algorithm.losses:
        raise ConfigError(f"{name} is for {', '.join(algorithm.losses)} only, not for {loss}; leave it out")
    return algorithm


def _watch(name: str, recorder: Recorder, on_row: OnRow | None, watch: OnProgress | None) -> Watch:
    def told(progress: Progress) -> None:
        recorder(progress)
        if on_row is not None:
            on_row(name, progress.rows[-1])
        if watch is not None:
            watch(name, progress)

    return told
