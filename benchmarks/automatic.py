"""Whether "auto" takes the quickest algorithm where all sites are in one process (docs/cost.md).

Every algorithm of the registry on five data sets and the ten digits, to the same gradient norm: CPU seconds,
medians of 3, in one run.  Target: "auto" takes at most 1.2 times as long as the quickest.  An algorithm that
takes more than twice as long as "auto" in its first run is stopped there: it is not the quickest.  Constants
of the estimates come from other problems: `--constants` measures those and prints them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls
from sklearn.datasets import load_breast_cancer, load_digits
from threadpoolctl import threadpool_limits

import fedshed
from fedshed import Federation
from fedshed.algorithms.costs import Shape, work
from fedshed.algorithms.registry import ENTRIES, with_one_exchange
from fedshed.solve.engine import Progress

REPEATS, TARGET, HOPELESS, LONGEST, SHORT = 3, 1.2, 2.0, 60.0, 0.3
PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
START, END = "<!-- automatic -->", "<!-- /automatic -->"
Problem = tuple[Callable[[], Federation], dict[str, Any]]


def breast_cancer() -> Federation:
    """Breast cancer Wisconsin, standardised, at five sites."""
    X, y = load_breast_cancer(return_X_y=True)
    return Federation.from_arrays((X - X.mean(0)) / X.std(0), y, sites=np.arange(len(y)) % 5)


def ten_digits() -> Federation:
    """All ten digits of scikit-learn, at five sites."""
    X, y = load_digits(return_X_y=True)
    return Federation.from_arrays(X / 16.0, y, sites=np.arange(len(y)) % 5)


def named(name: str) -> Callable[[], Federation]:
    """A data set of the library as it is dealt by default."""
    return lambda: fedshed.datasets.load(name)


def made(agents: int, n: int, rows: int) -> Callable[[], Federation]:
    """Made-up rows of a spectrum that falls to a 400th."""

    def rows_of() -> Federation:
        rng = np.random.default_rng(0)
        truth, tables = rng.normal(size=n), {}
        for i in range(agents):
            X = rng.normal(size=(rows, n)) * np.geomspace(1, 0.05, n)
            tables[f"{i:05}"] = X, X @ truth + rng.logistic(size=rows) > 0
        return Federation.from_sites(tables)

    return rows_of


JUDGED: dict[str, Problem] = {
    "heart": (named("heart"), {"l2": 1e-3, "intercept": True}),
    "breast cancer": (breast_cancer, {"l2": 1e-3, "intercept": True}),
    "digits": (named("digits"), {"l2": 1e-5}),
    "ten digits, multinomial": (ten_digits, {"l2": 1e-4, "loss": "multinomial", "intercept": True}),
    "Fashion-MNIST": (named("fashion-mnist"), {"l2": 1e-5}),
    "w8a": (named("w8a"), {"l2": 1e-5}),
}
SHAPES = (
    (5, 20, 200), (5, 50, 200), (100, 50, 100), (2, 50, 20_000), (10, 100, 300), (5, 200, 400),
    (30, 200, 100), (200, 30, 50), (4, 300, 3000), (10, 400, 300), (5, 800, 400), (4, 1600, 500),
)  # fmt: skip
TRAINING: dict[str, Problem] = {
    "contraception": (named("contraception"), {"l2": 1e-3}),
    "guimmun": (named("guimmun"), {"l2": 1e-3}),
    "medpar": (named("medpar"), {"l2": 1e-3, "loss": "poisson"}),
    "a9a": (named("a9a"), {"l2": 1e-5}),
    "mnist": (named("mnist"), {"l2": 1e-5}),
    **{f"made{shape}": (made(*shape), {"l2": l2}) for shape in SHAPES for l2 in (1e-3,)},
    **{f"made{shape}, 1e-6": (made(*shape), {"l2": 1e-6}) for shape in SHAPES if shape[1] in (100, 400)},
}
CANDIDATES = ("newton", "newton-seldom", "pen", "qn-shed")


class TooLongError(Exception):
    """A run took longer than it may."""


def solved(
    data: Federation, algorithm: Any, options: dict[str, Any], longest: float = LONGEST
) -> tuple[Any, float]:
    """A run and its CPU seconds; None where it is not for this problem or takes too long."""
    began = time.process_time()

    def watch(progress: Progress) -> None:
        if time.process_time() - began > longest:
            raise TooLongError

    try:
        with threadpool_limits(1):
            result = fedshed.optimize(data, algorithm=algorithm, watch=watch, **options)
    except (TooLongError, fedshed.Error):
        return None, longest
    return result, time.process_time() - began


# --- the judged problems ------------------------------------------------------------------------------


def judged(name: str) -> str:
    """The row of one problem: "auto", and all that reach the optimum within twice its time."""
    load, options = JUDGED[name]
    data, options = load(), {"tol": 1e-8, **options}
    seconds: dict[str, list[float]] = {"auto": []}
    solved(data, "auto", options)  # everything is imported
    result, first = solved(data, "auto", options)
    for entry in ENTRIES:
        found, _ = solved(data, entry.name, options, HOPELESS * first)
        if found is not None and found.converged:
            seconds[entry.name] = []
    for _ in range(REPEATS):
        for rival, taken in seconds.items():
            taken.append(solved(data, rival, options)[1])
    medians = {rival: median(taken) for rival, taken in seconds.items()}
    auto = medians.pop("auto")
    quickest = sorted(medians, key=lambda rival: medians[rival])[:3]
    others = ", ".join(f"`{rival}` {medians[rival]:.3g}" for rival in quickest)
    ratio = auto / medians[quickest[0]]
    chosen = result.algorithm.partition(":")[0]
    size = f"{len(result.theta)}, {len(data.sites)}, {sum(data.rows.values()):,}"
    return f"| {name} | {size} | `{chosen}` | {auto:.3g} | {others} | {ratio:.2f} |"


def judge() -> None:
    """The table of the page."""
    lines = [
        "| problem | n, sites, rows | `auto` takes | CPU-s of `auto` | the three quickest, CPU-s "
        f"| `auto` / quickest (asked: {TARGET}) |",
        "|---|---|---|---|---|---|",
    ]
    for name in JUDGED:
        lines.append(judged(name))
        print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    text = f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(text, encoding="utf-8")


# --- the constants ------------------------------------------------------------------------------------


def one_exchange(name: str) -> Any:
    """An algorithm as "auto" takes it."""
    return with_one_exchange(fedshed.ALGORITHMS[name].algorithm)


def shape_of(data: Federation, n: int) -> Shape:
    """The size of a problem."""
    tables = [table.X for table in data.tables.values()]
    stored = None if isinstance(tables[0], np.ndarray) else float(sum(X.nnz for X in tables))
    return Shape(n, len(data.sites), float(sum(data.rows.values())), stored)


def observed() -> dict[str, list[tuple[Shape, Any, float]]]:
    """Every candidate on every training problem that it solves: the size, the result, CPU seconds."""
    found: dict[str, list[tuple[Shape, Any, float]]] = {name: [] for name in CANDIDATES}
    for problem, (load, options) in TRAINING.items():
        data = load()
        for name in CANDIDATES:
            if name == "pen" and data.dim > 1000:
                continue
            result, cpu = solved(data, one_exchange(name), options)
            if cpu < SHORT:  # the first run of a process is slower
                cpu = min(cpu, solved(data, one_exchange(name), options)[1])
            if result is not None and result.converged:
                found[name].append((shape_of(data, len(result.theta)), result, cpu))
                row = result.trace[-1]
                print(problem, name, row.exchanges, f"{row.hessians:.0f}", f"{cpu:.3f}", flush=True)
    return found


def law(sizes: Any, values: Any) -> tuple[float, float]:
    """a and b of a (n / 100)^b: least squares of logarithms plus a standard deviation; b is not negative."""
    x, y = np.log(np.asarray(sizes) / 100), np.log(values)
    slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
    height = np.mean(y - slope * x) + np.std(y - slope * x)
    return float(f"{np.exp(height):.3g}"), float(f"{slope:.2g}")


def line(sizes: Any, values: Any) -> tuple[float, float]:
    """a and b of a + b n, neither negative, by least squares of relative errors."""
    values = np.asarray(values)
    design = np.stack([np.ones(len(values)), np.asarray(sizes)], axis=1) / values[:, None]
    a, b = nnls(design, np.ones(len(values)))[0]
    return float(f"{a:.3g}"), float(f"{b:.3g}")


def constants(name: str, runs: list[tuple[Shape, Any, float]]) -> str:
    """The constants of one algorithm, as they stand in `fedshed.algorithms.costs`."""
    sizes = [shape.n for shape, _, _ in runs]
    ends = [result.trace[-1] for _, result, _ in runs]
    whole = name.startswith("newton")
    up, down, units = [], [], []
    for (shape, result, _), end in zip(runs, ends, strict=True):
        packed = 4 * shape.n * (shape.n + 1) * end.hessians if whole else 0
        link = max(result.sites.values(), key=lambda site: site.uplink_bytes + site.downlink_bytes)
        up.append((link.uplink_bytes - packed) / end.exchanges)
        down.append(link.downlink_bytes / end.exchanges)
        here, rows = work(name, shape, end.exchanges, end.hessians)
        units.append(here + rows)
    cpu = np.array([taken for _, _, taken in runs])
    design = np.array(units) / cpu[:, None]
    largest = design.max(axis=0)
    seconds = nnls(design / largest, np.ones(len(cpu)))[0] / largest
    ratios = design @ seconds
    print(f"{name}: estimated / measured CPU {ratios.min():.2f} to {ratios.max():.2f}", flush=True)
    each = ", ".join(f"{value:.2g}" for value in seconds)
    return (
        f'    "{name}": Typical(\n'
        f"        exchanges={law(sizes, [end.exchanges for end in ends])}, "
        f"hessians={law(sizes, [end.hessians for end in ends])},\n"
        f"        up={line(sizes, up)}, down={line(sizes, down)},\n"
        f"        cpu=({each}), whole={whole},\n    ),"
    )


def main() -> None:
    if "--constants" in sys.argv:
        found = observed()
        print(*(constants(name, found[name]) for name in CANDIDATES), sep="\n")
    else:
        judge()


if __name__ == "__main__":
    main()
