"""Runs cached by content: the same data, settings and behaviour give the same trace."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed._utils.files import file_hash, in_words, write_atomically
from fedshed.algorithms import build
from fedshed.algorithms.from_file import is_in_file, load_algorithm
from fedshed.algorithms.registry import configured as make_ready
from fedshed.algorithms.renewal import Periodic
from fedshed.algorithms.rivals.agd import GRID
from fedshed.experiments.behaviour import Behaviour, behaviour
from fedshed.experiments.plan import Problem, Run
from fedshed.experiments.study import as_budget, as_line_search
from fedshed.protocol.precision import Bits, Exact
from fedshed.report.model import Grid, Spectrum
from fedshed.report.recorder import Recorder
from fedshed.solve.engine import Progress
from fedshed.solve.optimize import optimize, optimum
from fedshed.solve.trace import Row, Trace
from fedshed.tables import Federation

TUNING_ITERATIONS = 100
FORMAT = 1  # of a record: raised when what `_make` keeps of a run has another meaning
_NOTES = logging.getLogger("fedshed")


class Spec(Struct, frozen=True):
    """One run, completely: what the cache is asked for."""

    problem: Problem
    run: Run
    gap: float


class Record(Struct, frozen=True):
    """What is kept of a run: trace, ||theta^t - theta*||, the step size the grid chose, pairs held."""

    name: str
    rows: tuple[Row, ...]
    errors: tuple[float, ...]
    agents: int
    n: int
    f_star: float
    converged: bool
    step_size: float | None = None
    pairs: Grid | None = None
    spectra: tuple[Spectrum, ...] = ()

    @property
    def trace(self) -> Trace:
        """The rows as a trace."""
        return Trace(self.rows)


def cache_folder() -> Path:
    """Where runs are kept from one call to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedshed" / "runs"


def recall(spec: Spec, folder: Path) -> Record | None:
    """A run that was made before, if it was."""
    record: Record | None = _recall(_path(spec, folder), Record, [behaviour_of(spec)])
    return None if record is None else replace(record, name=spec.run.name)


def execute(spec: Spec, folder: Path) -> Record:
    """The run, from the cache or made now and kept."""
    path = _path(spec, folder)
    record: Record = recall_or_make(path, Record, [behaviour_of(spec)], lambda: _make(spec, folder))
    return replace(record, name=spec.run.name)


def recall_or_make(path: Path, kind: Any, now: list[Behaviour], make: Callable[[], Any]) -> Any:
    """What was made when algorithms behaved as now, or what is made now, kept where possible."""
    found = _recall(path, kind, now)
    if found is None:
        found = make()
        with suppress(OSError):
            write_atomically(path, msgspec.msgpack.encode((now, found)))
    return found


def _recall(path: Path, kind: Any, now: list[Behaviour]) -> Any:
    try:
        then, found = msgspec.msgpack.decode(path.read_bytes(), type=tuple[list[Behaviour], kind])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if all(a.agrees(b) for a, b in zip(then, now, strict=True)) else None


def behaviour_of(spec: Spec) -> Behaviour:
    """What the algorithm of a run does today."""
    return _behaviour(replace(spec.run, label=None, tuned=False, max_iterations=1), spec.problem.loss)


@cache
def _behaviour(run: Run, loss: str) -> Behaviour:
    return behaviour(lambda data, l2: configured(run, data, l2, seed=0), loss)


def check_cache(folder: Path) -> None:
    """Say once that runs will not be kept, where they cannot be."""
    try:
        write_atomically(folder / "writable", b"").unlink()
    except OSError as error:
        _NOTES.warning("runs are not kept for the next call: %s", in_words(error))


@lru_cache(maxsize=2)
def federation(problem: Problem) -> Federation:
    """The data of a problem; the ridge and the loss do not matter."""
    from fedshed.experiments.problems import load

    return load(problem)


def reference(problem: Problem, folder: Path) -> tuple[np.ndarray[Any, Any], float]:
    """theta* and f* of the pooled rows, kept with the hash of the data."""
    data = data_of(problem)
    key = _hash([data.fingerprint(), problem.loss, problem.l2])
    path = folder / f"optimum-{key}.mp"

    def make() -> tuple[list[float], float]:
        theta, f_star = optimum(data, loss=problem.loss, l2=problem.l2)
        return theta.tolist(), f_star

    now = [_behaviour(Run("newton"), problem.loss)]
    theta, f_star = recall_or_make(path, tuple[list[float], float], now, make)
    return np.array(theta), f_star


def _make(spec: Spec, folder: Path) -> Record:
    step_size = _tuned(spec, folder) if spec.run.tuned else None
    run = spec.run if step_size is None else replace(spec.run, step_size=step_size)
    return _solve(replace(spec, run=run), folder, step_size)


def _solve(spec: Spec, folder: Path, step_size: float | None) -> Record:
    data, run = data_of(spec.problem), spec.run
    theta_star, f_star = reference(spec.problem, folder)
    errors, recorder = [float(np.linalg.norm(theta_star))], Recorder(spectra=1)

    def watch(progress: Progress) -> None:
        errors.append(float(np.linalg.norm(progress.state.theta - theta_star)))
        recorder(progress)

    result = optimize(
        data, loss=spec.problem.loss, l2=spec.problem.l2,
        algorithm=configured(run, data, spec.problem.l2, spec.problem.seed),
        f_star=f_star, gap_tol=spec.gap or None, tol=0.0, max_iterations=run.max_iterations, watch=watch,
    )  # fmt: skip
    return Record(
        run.name, tuple(result.trace), tuple(errors), len(data.sites), data.dim, f_star, result.converged,
        step_size, recorder.pairs(), recorder.spectra(),
    )  # fmt: skip


def configured(run: Run, data: Federation, l2: float, seed: int) -> Any:
    """The algorithm of a run with its budget, period and parameters."""
    from fedshed.experiments.rho import with_optimal_step

    if run.algorithm == "shed-ls-next":
        return with_optimal_step(data, l2)
    search, budget = as_line_search(run.line_search), as_budget(run.budget)
    if is_in_file(run.algorithm):
        algorithm: Any = make_ready(load_algorithm(run.algorithm), budget, search, seed)
    else:
        algorithm = build(run.algorithm, budget, search, seed=seed)
    if run.renewal_period is not None:
        algorithm = replace(algorithm, renewal=Periodic(run.renewal_period))
    own: dict[str, Any] = {"step_size": run.step_size, "rate": run.rate, **dict(run.options)}
    if run.precision is not None:
        own["precision"] = Exact() if run.precision == "exact" else Bits(bits=int(run.precision))
    return replace(algorithm, **{name: value for name, value in own.items() if value is not None})


def _tuned(spec: Spec, folder: Path) -> float:
    """The step size of the grid with the lowest cost after a hundred iterations."""
    few = min(TUNING_ITERATIONS, spec.run.max_iterations)
    costs = {}
    for step_size in GRID:
        run = replace(spec.run, step_size=step_size, max_iterations=few)
        costs[step_size] = _solve(replace(spec, run=run), folder, step_size).rows[-1].f
    return min(costs, key=lambda step_size: costs[step_size])


def data_of(problem: Problem) -> Federation:
    """The data of a problem, loaded once for all of its ridges."""
    return federation(_data_only(problem))


def _data_only(problem: Problem) -> Problem:
    return replace(problem, l2=0.0)


def _path(spec: Spec, folder: Path) -> Path:
    """Where a run is kept: by what decides it, all but its label and what its algorithm does."""
    data = federation_fingerprint(_data_only(spec.problem))
    name, unlabelled = spec.run.algorithm, replace(spec.run, label=None)
    said = [_without_none(spec.problem), _without_none(unlabelled), spec.gap]
    own = [file_hash(name.rpartition(":")[0])] if is_in_file(name) else []  # a user's own algorithm
    grid = [GRID, TUNING_ITERATIONS] if spec.run.tuned else []
    return folder / f"{_hash([*said, data, FORMAT, *grid, *own])}.mp"


def _without_none(fields: Struct) -> dict[str, Any]:
    """The fields that say something: a new one that says nothing leaves runs as they were."""
    return {name: value for name, value in asdict(fields).items() if value is not None}


@lru_cache(maxsize=128)
def federation_fingerprint(problem: Problem) -> str:
    """The hash of a problem's rows as dealt to its agents."""
    return federation(problem).fingerprint()


def _hash(value: Any) -> str:
    return blake2b(msgspec.json.encode(value), digest_size=12).hexdigest()
