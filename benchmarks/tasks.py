"""One measurement in a process of its own; `python -m benchmarks.tasks NAME ...` prints it as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, load_npz, save_npz, vstack
from threadpoolctl import threadpool_limits

import fedshed
from fedshed import Federation

Outcome = dict[str, Any]
L2, TOL = 1e-3, 1e-9


def measured(run: Callable[[], Any]) -> tuple[Any, Outcome]:
    """What `run` gives, its CPU and wall seconds, and the peak memory of the process so far."""
    cpu, wall = time.process_time(), time.perf_counter()
    with threadpool_limits(1):
        result = run()
    seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return result, {**seconds, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


def solved(federation: Federation, algorithm: Any, **options: Any) -> Outcome:
    """A run of an algorithm, once everything is imported."""
    few = Federation.from_sites({"a": (np.eye(40), np.arange(40) % 2)})
    fedshed.optimize(few, algorithm=algorithm, max_iterations=2)
    options = {"l2": L2, "tol": TOL, **options}
    result, cost = measured(lambda: fedshed.optimize(federation, algorithm=algorithm, **options))
    end = result.trace[-1]
    return {
        **cost,
        "converged": result.converged,
        "iterations": end.iteration,
        "exchanges": end.exchanges,
        "norm": end.grad_norm,
    }


def w8a_written(folder: str) -> Outcome:
    """The rows of problem W in a form that is read without a parser: its memory is not the solver's."""
    federation = fedshed.datasets.load("w8a", agents=142, partition="iid")
    tables = federation.tables.values()
    save_npz(f"{folder}/X.npz", vstack([table.X for table in tables]))
    labels = [table.y for table in tables]
    sites = np.repeat(np.arange(len(labels)), [len(y) for y in labels])
    np.savez(f"{folder}/y.npz", y=np.concatenate(labels), sites=sites)
    return {}


def w8a(folder: str, algorithm: str) -> Outcome:
    """Problem W: w8a with an intercept, 142 agents of 350 rows, l2 = 1e-3, to a gradient norm of 1e-9."""
    from benchmarks.naive import NaiveShed, one_by_one

    rows = np.load(f"{folder}/y.npz")
    federation = Federation.from_arrays(load_npz(f"{folder}/X.npz"), rows["y"], sites=rows["sites"])
    if algorithm == "naive":
        return solved(federation, NaiveShed(), intercept=True, transport=one_by_one)
    chosen = NaiveShed() if algorithm == "naive-together" else algorithm
    return solved(federation, chosen, intercept=True)


def w8a_pooled(folder: str) -> Outcome:
    """The same optimum by scikit-learn on the pooled rows, to the same gradient norm."""
    from sklearn.linear_model import LogisticRegression

    X, y = csr_array(load_npz(f"{folder}/X.npz")), np.load(f"{folder}/y.npz")["y"]
    model = LogisticRegression(C=1 / (len(y) * L2), solver="newton-cholesky", tol=TOL, max_iter=100)
    _, cost = measured(lambda: model.fit(X, y))
    sign = np.where(y == model.classes_[1], 1.0, -1.0)
    slopes = -sign / (1 + np.exp(sign * (X @ model.coef_.ravel() + model.intercept_)))
    g = np.append(X.T @ slopes / len(y) + L2 * model.coef_.ravel(), slopes.mean())
    return {**cost, "iterations": int(model.n_iter_[0]), "norm": float(np.linalg.norm(g)), "converged": True}


def sparse(algorithm: str) -> Outcome:
    """n = 47,000, 20,000 rows of unit length, 0.16 % dense, columns as frequent as words are, 20 agents."""
    rng = np.random.default_rng(0)
    rows, n, each = 20_000, 47_000, 75
    odds = np.arange(1, n + 1) ** -0.7
    columns = rng.choice(n, size=rows * each, p=odds / odds.sum())
    at = np.repeat(np.arange(rows), each), columns
    X = csr_array((rng.exponential(size=rows * each), at), shape=(rows, n))
    X = csr_array(X.multiply(1 / np.sqrt(X.power(2).sum(axis=1))[:, None]))
    y = X @ rng.normal(size=n) * 3 + rng.logistic(size=rows) > 0
    return solved(Federation.from_arrays(X, y, sites=np.arange(rows) % 20), algorithm, tol=1e-8)


def rows(agents: int, n: int, rows: int) -> Federation:
    """Agents with so many rows of a spectrum that falls to a 400th."""
    rng = np.random.default_rng(0)
    tables, truth = {}, rng.normal(size=n)
    for i in range(agents):
        X = rng.normal(size=(rows, n)) * np.geomspace(1, 0.05, n)
        tables[f"{i:05}"] = X, X @ truth + rng.logistic(size=rows) > 0
    return Federation.from_sites(tables)


def dense(algorithm: str, agents: str, n: str, count: str, iterations: str) -> Outcome:
    """So many agents with so many rows each, for so many iterations."""
    federation = rows(int(agents), int(n), int(count))
    return solved(federation, algorithm, tol=1e-14, max_iterations=int(iterations))


def agents(algorithm: str, count: str) -> Outcome:
    """What an agent costs in bytes."""
    from benchmarks.agents import each

    few = Federation.from_sites({"a": (np.eye(40), np.arange(40) % 2)})
    fedshed.optimize(few, algorithm=algorithm, max_iterations=2)  # everything is imported
    return each(algorithm, rows(int(count), 50, 100))


def grouped(algorithm: str, agents: str, groups: str, iterations: str) -> Outcome:
    """Agents of 20 rows and 50 columns in groups: CPU-s of an iteration (median), and before the first."""
    M, count, rows, n = int(agents), int(groups), 20, 50
    rng = np.random.default_rng(0)
    X = rng.normal(size=(M * rows, n))
    y = X @ rng.normal(size=n) / 7 + rng.logistic(size=M * rows) > 0
    names = [f"{i:07}" for i in range(M)]
    own = [slice(i * rows, (i + 1) * rows) for i in range(M)]
    tables = {name: (X[mine], y[mine]) for name, mine in zip(names, own, strict=True)}
    each = -(-M // count)
    made = [fedshed.Group(f"group {k}", names[k * each : (k + 1) * each]) for k in range(count)]
    clocks: list[float] = []

    def watch(progress: Any) -> None:
        clocks.append(time.process_time())

    before = time.process_time()
    federation = Federation.from_sites(tables)
    options = {"groups": made, "watch": watch, "tol": 0.0, "max_iterations": int(iterations), "l2": L2}
    _, cost = measured(lambda: fedshed.optimize(federation, algorithm=algorithm, **options))
    each_cpu = float(np.median(np.diff(clocks)))
    return {**cost, "each": each_cpu, "before": clocks[0] - before - each_cpu}


def held(name: str, l2: str, kind: str) -> Outcome:
    """What the Master's state holds at most, with each way to keep eigenvectors."""
    from benchmarks import storage

    return storage.held(name, l2, kind)


TASKS: dict[str, Callable[..., Outcome]] = {
    "w8a-written": w8a_written,
    "w8a": w8a,
    "w8a-pooled": w8a_pooled,
    "sparse": sparse,
    "dense": dense,
    "grouped": grouped,
    "agents": agents,
    "held": held,
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
