"""L-BFGS against SciPy's: exchanges until f - f* < 1e-11, beside evaluations of the cost with its gradient.

    python -m benchmarks lbfgs

SciPy's L-BFGS-B minimises the pooled cost from the same start with 20 and 50 secants (`maxcor`); its other
settings are the defaults, except that it does not stop early.  The initial matrix, the memory and the line
search of `lbfgs` were chosen on the first list; the second list played no part.  `ratio` is the exchanges of
`lbfgs` divided by the smaller number of evaluations; the target is at most 1.1.  A dash: not in 3,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

import fedshed
from benchmarks.rivals.problems import GAP, TASKS, Task
from fedshed import Federation
from fedshed.algorithms import build
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.datasets.files import idx
from fedshed.datasets.openml import obtained
from fedshed.datasets.partitions import dirichlet
from fedshed.linalg.arrays import Vector
from fedshed.solve.optimize import build_problem

TARGET, MAXCOR, MOST = 1.1, (20, 50), 3000
TWO = {"partition": "two-class"}
RESCALED = {**TWO, "preprocessing": "pca-rescaled"}
CHOSEN = {
    "digits": Task("digits, 20 agents", "digits", 1e-5, (0,), options={**TWO, "agents": 20}),
    "W5": TASKS["W5"],
    "a9a": Task("a9a, 40 agents", "a9a", 1e-5, (0,), options={"partition": "iid", "agents": 40}),
    "F5": TASKS["F5"],
    "F5, rescaled": Task("F5, components in [0, 1]", "fashion-mnist", 1e-5, (0,), options=RESCALED),
    "softmax": Task("a head on random features", "head", 1e-3, (0,), loss="multinomial", intercept=True),
}
HELD_OUT = {
    "F8": TASKS["F8"],
    "M5": TASKS["M5"],
    "news": Task("shares of news, 30 agents", "news", 1e-4, (0,), loss="least-squares"),
    "claims": TASKS["claims"],
    "cancer": TASKS["cancer"],
    "heart, raw": TASKS["heart"],
}
ALGORITHMS: Mapping[str, Any] = {
    "memory 20": Lbfgs(memory=20),
    "lbfgs": build("lbfgs"),
    "lbfgs-coded": build("lbfgs-coded"),
}


Costs = Callable[[Vector], tuple[float, Vector]]


class _ReachedError(Exception):
    """SciPy is below the gap."""


def head(sites: int = 20, rows: int = 12_000, features: int = 256) -> Federation:
    """Classes of Fashion-MNIST by ReLU of Gaussian projections of the pixels, dealt by Dirichlet's law."""
    files = [f"fashion_mnist/train-{name}.gz" for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    pixels, classes = (
        idx(file, obtained(file), shape)
        for file, shape in zip(files, ((60_000, 28, 28), (60_000,)), strict=True)
    )
    rng = np.random.default_rng(0)
    chosen, projection = rng.permutation(60_000)[:rows], rng.normal(size=(784, features)) / 28
    X, y = np.maximum(pixels[chosen].reshape(rows, 784) / 255 @ projection, 0.0), classes[chosen]
    parts = dirichlet(y, sites, seed=0)
    return Federation.from_sites({f"site {k}": (X[part], y[part]) for k, part in enumerate(parts)})


def pooled(federation: Federation, task: Task) -> tuple[Costs, int]:
    """The cost of all rows with its gradient, and how many coefficients it has."""
    objectives, problem = build_problem(federation, task.loss, task.l2, task.intercept)

    def costs(t: Vector) -> tuple[float, Vector]:
        points = {i: one.at(t) for i, one in objectives.items()}
        f = sum(problem.p[i] * point.value for i, point in points.items()) + problem.penalty(t)
        g = problem.l2 * t + sum(problem.p[i] * point.gradient for i, point in points.items())
        return float(f), np.asarray(g)

    return costs, problem.n


def minimum(federation: Federation, task: Task, costs: Costs, n: int) -> float:
    """f* by Newton's method; of a head, whose Hessian is large, by SciPy with 500 secants."""
    if task.loss != "multinomial":
        return fedshed.optimum(federation, loss=task.loss, l2=task.l2, intercept=task.intercept)[1]
    return float(_scipy(costs, n, 500).fun)


def _scipy(costs: Costs, n: int, secants: int) -> Any:
    options = {"maxcor": secants, "maxiter": MOST, "maxfun": MOST, "ftol": 0.0, "gtol": 0.0}
    return minimize(costs, np.zeros(n), jac=True, method="L-BFGS-B", options=options)


def evaluations(costs: Costs, n: int, f_star: float, secants: int) -> float:
    """Of the cost and its gradient by SciPy until the gap; infinity if it ends before."""
    count = 0

    def counted(t: Vector) -> tuple[float, Vector]:
        nonlocal count
        count += 1
        f, g = costs(t)
        if f - f_star < GAP:
            raise _ReachedError
        return f, g

    try:
        _scipy(counted, n, secants)
    except _ReachedError:
        return count
    return inf


def exchanges(federation: Federation, task: Task, f_star: float, algorithm: Any) -> tuple[float, float]:
    """Until the gap, and KB up per agent until then."""
    result = fedshed.optimize(
        federation, loss=task.loss, l2=task.l2, intercept=task.intercept, algorithm=algorithm,
        f_star=f_star, gap_tol=GAP, tol=0.0, max_iterations=MOST,
    )  # fmt: skip
    row = result.trace.first_below(GAP)
    return (row.exchanges, row.uplink_bytes / len(federation.sites) / 1000) if row else (inf, inf)


def line(label: str, task: Task) -> str:
    """One problem in words."""
    federation = head() if task.dataset == "head" else task.federation(0)
    costs, n = pooled(federation, task)
    f_star = minimum(federation, task, costs, n)
    theirs = [evaluations(costs, n, f_star, secants) for secants in MAXCOR]
    ours = [exchanges(federation, task, f_star, one) for one in ALGORITHMS.values()]
    ratio = ours[1][0] / min(theirs)
    told = [f"{_count(one):>6}" for one in theirs] + [f"{_count(e):>6} / {_count(kb):>5}" for e, kb in ours]
    return f"{label:13} {n:5} {'  '.join(told)}  {ratio:5.2f} {'met' if ratio <= TARGET else 'MISSED'}"


def _count(value: float) -> str:
    return f"{value:.0f}" if isfinite(value) else "-"


def main() -> None:
    names = [f"SciPy {secants}" for secants in MAXCOR] + [f"{name}" for name in ALGORITHMS]
    print(f"to f - f* < {GAP:g}: evaluations by {', '.join(names[:2])}; exchanges / KB up per agent by "
          f"{', '.join(names[2:])}; ratio of lbfgs to the fewer evaluations (target {TARGET})")  # fmt: skip
    with threadpool_limits(1):
        for title, tasks in {"chosen on": CHOSEN, "held out": HELD_OUT}.items():
            print(f"--- {title}")
            for label, task in tasks.items():
                print(line(label, task), flush=True)


if __name__ == "__main__":
    main()
