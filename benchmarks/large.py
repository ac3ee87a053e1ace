"""Sites with more rows than the process may hold (docs/large.md): from CSV to Arrow, and the fit of them.

RLIMIT_DATA counts what a process allocates, not the pages of a file that it maps: those can be given back.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.tasks import measured
from fedshed import Federation, Study, fit, optimize
from fedshed.tables import read_table

PAGE = Path(__file__).parents[1] / "docs" / "large.md"
START, END = "<!-- measured -->", "<!-- /measured -->"
SITES, ROWS, COLUMNS = ("a", "b"), 1_000_000, 50
PREPARED = "Arrow file, mapped, a study of `fit`"
LIMIT = 450  # MB that a process may allocate
NAMES = [*(f"x{j}" for j in range(COLUMNS)), "y"]


def made(site: str) -> Iterator[Any]:
    """The rows of a site, some at a time: numbers of four decimals, and a class."""
    rng = np.random.default_rng(SITES.index(site))
    for _ in range(0, ROWS, ROWS // 50):
        X = rng.normal(size=(ROWS // 50, COLUMNS)).round(4)
        y = rng.logistic(size=len(X)) < X[:, 0] - X[:, 1] / 2
        yield pa.record_batch([*X.T, y.astype(np.int8)], names=NAMES)


def written(folder: str, site: str) -> dict[str, Any]:
    """A site's rows as a CSV file, and as NumPy's."""
    X = np.lib.format.open_memmap(f"{folder}/{site}.npy", mode="w+", shape=(ROWS, COLUMNS))
    y, start = np.empty(ROWS), 0
    with pyarrow.csv.CSVWriter(f"{folder}/{site}.csv", next(made(site)).schema) as file:
        for batch in made(site):
            file.write_batch(batch)
            part = slice(start, start := start + batch.num_rows)
            X[part], y[part] = np.column_stack(batch.columns[:-1]), batch["y"]
    np.save(f"{folder}/{site}-y.npy", y)
    return {}


def converted(folder: str, site: str) -> dict[str, Any]:
    """The recipe of the page."""
    with (
        pyarrow.csv.open_csv(f"{folder}/{site}.csv") as rows,
        pa.ipc.new_file(f"{folder}/{site}.arrow", rows.schema) as file,
    ):
        for batch in rows:
            file.write_batch(batch)
    return {}


def from_arrow(folder: str, site: str) -> tuple[Any, Any]:
    """The same, mapped."""
    table = pa.ipc.open_file(pa.memory_map(f"{folder}/{site}.arrow")).read_all()
    return table.drop_columns("y"), table["y"]


def from_numpy(folder: str, site: str, how: Any = "r") -> tuple[Any, Any]:
    """The mapped array, or one in memory."""
    return np.load(f"{folder}/{site}.npy", mmap_mode=how), np.load(f"{folder}/{site}-y.npy")


READ: dict[str, Callable[..., tuple[Any, Any]]] = {
    "Arrow file, mapped": from_arrow,
    "NumPy file, mapped": from_numpy,
    "NumPy array in memory": lambda folder, site: from_numpy(folder, site, None),
}


def prepared(folder: str) -> dict[str, Any]:
    """The same model as a study, which standardises the columns and gives standard errors."""
    study = Study(family="logistic", target="y", l2=1e-3, standardize=True)
    tables = {site: read_table(f"{folder}/{site}.arrow") for site in SITES}
    model, cost = measured(lambda: fit(tables, study, algorithm="newton"))
    return {**cost, "converged": model.converged, "theta": list(model.inference.coefficients)}


def fitted(folder: str, how: str) -> dict[str, Any]:
    """A logistic regression of all sites by Newton's method."""
    if how == PREPARED:
        return prepared(folder)

    def run() -> Any:
        federation = Federation.from_sites({site: READ[how](folder, site) for site in SITES})
        return optimize(federation, algorithm="newton", l2=1e-3, intercept=True)

    result, cost = measured(run)
    return {**cost, "converged": result.converged, "theta": result.theta.tolist()}


def child(limit: int, step: str, *arguments: str) -> dict[str, Any] | None:
    """A step in a process that may allocate `limit` MB (0: any), or None where that was not enough."""
    command = [sys.executable, "-m", "benchmarks.large", str(limit), step, *arguments]
    one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **one})
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    if "MemoryError" in done.stderr:
        return None
    raise RuntimeError(done.stderr)


def line(folder: str, how: str) -> str:
    """CPU seconds without a limit, and whether the limited process came to the same coefficients."""
    free, limited = child(0, "fitted", folder, how), child(LIMIT, "fitted", folder, how)
    if free is None or not free["converged"]:
        raise RuntimeError(f"{how}: no fit without a limit")
    same = limited is not None and np.allclose(limited["theta"], free["theta"], rtol=0, atol=1e-8)
    return f"| {how} | {free['cpu']:.1f} | {'yes' if same else 'no: MemoryError'} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for site in SITES:
            child(0, "written", folder, site)
            if child(LIMIT, "converted", folder, site) is None:
                raise RuntimeError(f"{LIMIT} MB are too few to convert a CSV file")
        rows = [line(folder, how) for how in (*READ, PREPARED)]
    megabytes = len(SITES) * ROWS * COLUMNS * 8 // 10**6
    lines = [
        f"| {megabytes} MB of rows | CPU-s, no limit | fitted by a process that may allocate {LIMIT} MB |"
    ]
    lines += ["|---|---|---|", *rows]
    print(*lines, sep="\n")
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "written": written,
    "converted": converted,
    "fitted": fitted,
}

if __name__ == "__main__":
    limit, step, *arguments = sys.argv[1:]
    if int(limit):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit) * 10**6,) * 2)
    print(json.dumps(STEPS[step](*arguments)))
