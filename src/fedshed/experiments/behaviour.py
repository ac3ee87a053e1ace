"""What an algorithm does on small fixed problems; recorded runs stay valid while it does the same.

No source is read, so a comment, a new name or a moved file changes nothing, and a change that none of the
problems shows is not seen.  The sites are unequal and ill-conditioned; sizes reach dense and iterative
eigensolvers and sparse rows, and iterations several renewals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version

import numpy as np
import scipy.sparse
from msgspec import Struct
from threadpoolctl import threadpool_info

from fedshed.algorithms.base import AnyAlgorithm
from fedshed.objectives import family_of
from fedshed.solve.optimize import optimize
from fedshed.solve.trace import Row
from fedshed.tables import Federation
from fedshed.tables.survival import survival

L2, TOL = 1e-4, 1e-12
EXACT, ROUGH, ROUNDING = 1e-6, 0.25, 1e-9  # relative, relative on another processor, absolute
SIZES = {"small": ((40, 7, 40, 150), 12, 12), "dense": ((60, 160), 96, 3), "sparse": ((120, 240), 160, 3)}
ITERATIONS = (0, 1, 2, 3, 5, 8, 12)  # that are kept
NUMBERS = (
    "iteration", "rounds", "exchanges", "uplink_bytes", "downlink_bytes", "uplink_vectors", "hessians", "f",
    "grad_norm",
)  # fmt: skip


class Behaviour(Struct, frozen=True, array_like=True):
    """Counts, costs and gradients of some iterations, and the arithmetic they were computed with."""

    arithmetic: str
    rows: tuple[tuple[float, ...], ...]

    def agrees(self, other: Behaviour) -> bool:
        """Whether both are the same but for rounding.

        With another arithmetic a coded number may be rounded the other way, after which iterates differ: from
        the second iteration on, counts and costs agree roughly there, and gradients are not compared.
        """
        if len(self.rows) != len(other.rows):
            return False
        same = self.arithmetic == other.arithmetic
        return all(_agree(a, b, same or a[0] < 2) for a, b in zip(self.rows, other.rows, strict=True))


def _agree(a: tuple[float, ...], b: tuple[float, ...], exactly: bool) -> bool:
    compared = slice(None) if exactly else slice(-1)
    return np.allclose(a[compared], b[compared], EXACT if exactly else ROUGH, ROUNDING)


def behaviour(algorithm: Callable[[Federation, float], AnyAlgorithm], loss: str) -> Behaviour:
    """What the algorithm does that is made for each problem; one that fails has the iterations before."""
    rows = [
        tuple(_rounded(getattr(row, name)) for name in NUMBERS)
        for problem in SIZES
        for row in _run(algorithm, problem, loss)
        if row.iteration in ITERATIONS
    ]
    return Behaviour(arithmetic(), tuple(rows))


def _rounded(number: float) -> float:
    """Nine digits; -1 for what is no number, which JSON does not have."""
    return float(f"{number:.9g}") if np.isfinite(number) else -1.0


def _run(algorithm: Callable[[Federation, float], AnyAlgorithm], problem: str, loss: str) -> list[Row]:
    data, rows = _data(problem, family_of(loss).name == "cox"), list[Row]()
    try:
        result = optimize(
            data, loss=loss, l2=L2, algorithm=algorithm(data, L2), tol=TOL, max_iterations=SIZES[problem][2],
            watch=lambda progress: rows.extend(progress.rows[len(rows) :]),
        )  # fmt: skip
    except Exception:  # that it fails here, and when, is what it does: a user's may fail in any way
        return rows
    return list(result.trace)


@cache
def _data(problem: str, times: bool) -> Federation:
    """Unequal sites with spectra that decay; 1 and 2 are responses of every family but survival times."""
    sizes, n, _ = SIZES[problem]
    rng, sites = np.random.default_rng(n), {}
    truth = rng.normal(size=n)
    for k, count in enumerate(sizes):
        X = rng.normal(0.3 * k, size=(count, n)) * np.geomspace(3, 0.1, n)
        if problem == "sparse":
            X[rng.random(X.shape) > 0.08] = 0
        z = X @ truth + rng.normal(size=count)
        y = 1.0 + (z > np.median(z))
        if times:
            y = survival(np.exp(z / 9), z > 0)
        sites[f"site {k}"] = (scipy.sparse.csr_array(X) if problem == "sparse" else X, y)
    return Federation.from_sites(sites)


@cache
def arithmetic() -> str:
    """What decides the last bits: versions, and the processor as BLAS sees it."""
    blas = sorted({str(each.get("architecture", "")) for each in threadpool_info()} - {""})
    return " ".join([*(version(name) for name in ("numpy", "scipy")), *blas])
