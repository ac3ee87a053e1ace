"""Runs whose every bit is kept: `python -m tests.golden.record` writes them to golden.json.

Do so only in a commit that changes behaviour on purpose and says why.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from tests.conftest import CASES, make_federation
from tests.made_rows import FAMILIES, response
from threadpoolctl import threadpool_info

import fedshed
from fedshed import Federation
from fedshed.deployment.config import SiteFile, Source, StudyFile
from fedshed.deployment.master import conduct_study
from fedshed.deployment.node import Node
from fedshed.exchange import InProcess, Stateless
from fedshed.fitting.fit import fit
from fedshed.preparation import Study
from fedshed.privacy.policy import Policy

FILE = Path(__file__).with_name("golden.json")
L2, TOL, MOST = 1e-2, 1e-11, 30
HALF = 4  # iterations before a run is interrupted
OPEN = Policy(
    min_rows=1, min_rows_per_class=1, min_rows_per_level=1, max_parameters_per_row=10.0, effective_rows=1,
    max_deviance=1e300, max_curvature=1e9, max_numbers=1e9,
)  # fmt: skip


def machine() -> dict[str, str]:
    """What decides the last bits: the processor as BLAS sees it, and who computes."""
    blas = sorted({str(each.get("architecture", "")) for each in threadpool_info()} - {""})
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "constriction")}
    simd = np.show_config(mode="dicts")["SIMD Extensions"]  # what NumPy dispatches to
    return {
        "processor": _processor(),
        "blas": " ".join(blas),
        "simd": " ".join([*simd["baseline"], *simd.get("found", [])]),
        "libc": " ".join(platform.libc_ver()),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


PROBLEMS: dict[str, Callable[[str], Federation]] = {
    "unequal": make_federation,
    "many": lambda loss: make_federation(loss, n=9, sizes={f"s{k}": 4 + 3 * k for k in range(8)}, seed=5),
}
RUNS = [
    (problem, name, loss, how)
    for problem in PROBLEMS
    for name, loss in CASES
    for how in ("in process", "stateless", "resumed")
]


def run(problem: str, name: str, loss: str, how: str) -> dict[str, Any]:
    """One algorithm on one problem: theta, and of every row what it cost and where f was."""
    federation = PROBLEMS[problem](loss)
    settings: dict[str, Any] = {"loss": loss, "l2": L2, "algorithm": name, "tol": TOL}
    if how == "resumed":
        with TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint"
            fedshed.optimize(federation, **settings, max_iterations=HALF, checkpoint=path)
            result = fedshed.resume(path, federation, max_iterations=MOST)
    else:
        transport = Stateless if how == "stateless" else InProcess
        result = fedshed.optimize(federation, **settings, max_iterations=MOST, transport=transport)
    rows = [
        (row.exchanges, row.uplink_bytes, row.downlink_bytes, row.hessians, row.f.hex())
        for row in result.trace
    ]
    return {
        "converged": result.converged,
        "theta": _numbers(result.theta),
        "last row": rows[-1],
        "all rows": hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16],
    }


def tables(loss: str) -> dict[str, pd.DataFrame]:
    """Three tables of one family, one of them small."""
    rng = np.random.default_rng(11)
    made = {}
    for site, rows in {"a": 25, "b": 60, "c": 140}.items():
        X = rng.normal(size=(rows, 3))
        z = X @ [0.5, -0.3, 0.2] + 0.1
        made[site] = pd.DataFrame(X, columns=["u", "v", "w"]).assign(
            group=rng.choice(["one", "two"], size=rows), y=response(loss, z, rng)
        )
    return made


def study(loss: str) -> Study:
    """The model of these tables."""
    return Study(family=loss, target="y")


def fitted(loss: str) -> dict[str, Any]:
    """One `fit` of a family."""
    return _model(fit(tables(loss), study(loss)))


def deployed(loss: str) -> dict[str, Any]:
    """The same over nodes, in this process."""
    made = tables(loss)
    with TemporaryDirectory() as folder:
        nodes = {}
        for site, table in made.items():
            table.to_csv(Path(folder) / f"{site}.csv", index=False)
            source = Source(csv=f"{site}.csv")
            file = SiteFile(
                name=site, table=source, disclosure=OPEN, state=f"{site}.state", audit=f"{site}.log",
                any_study=True,
            )  # fmt: skip
            nodes[site] = Node(file, Path(folder))
        model, _ = conduct_study(StudyFile(study(loss), tuple(made)), InProcess(nodes))
    return _model(model)


def _model(model: Any) -> dict[str, Any]:
    return {
        "converged": model.converged,
        "theta": _numbers(model.inference.coef),
        "errors": _numbers(model.inference.std_err()),
        "cost": (model.run.exchanges, model.run.uplink_bytes, model.run.downlink_bytes),
        "reason": model.run.reason,
    }


def _numbers(values: Any) -> list[str]:
    return [float(value).hex() for value in values]


def everything() -> dict[str, dict[str, Any]]:
    """All that golden.json holds, by the test's name."""
    made = {" / ".join(one): run(*one) for one in RUNS}
    made |= {f"fit / {loss}": fitted(loss) for loss in FAMILIES}
    return made | {f"study / {loss}": deployed(loss) for loss in FAMILIES}


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in everything().items()]
    runs = ",\n".join(lines)
    FILE.write_text(f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{runs}\n}}}}\n', encoding="utf-8")
