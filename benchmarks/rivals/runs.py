"""The runs: each is one line of a file, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import fedshed
from benchmarks.rivals.contenders import CONTENDERS
from benchmarks.rivals.problems import GAP, TASKS, posed
from fedshed._utils.files import append_whole
from fedshed.experiments.behaviour import Behaviour, behaviour

PATIENCE = 30  # CPU seconds of a run, after which it counts as not reached
WORKERS = 2


@dataclass(frozen=True, order=True)
class Cell:
    """One run: who, with which setting, on which problem."""

    problem: str
    seed: int
    name: str
    setting: str


@dataclass(frozen=True)
class Outcome:
    """What a run cost an agent until the gap, or how near it came; `why` where it was not reached."""

    cell: Cell
    reached: bool
    gap: float
    exchanges: int
    up: float  # KB
    down: float
    cpu: float  # seconds
    why: str = ""

    @property
    def both(self) -> float:
        """KB both ways."""
        return self.up + self.down


class _TooLongError(Exception):
    """A run took longer than it may."""


def measured(cell: Cell) -> Outcome:
    """The run of a cell; a rival that breaks down has not reached the optimum, and says why."""
    task, (federation, _, f_star) = TASKS[cell.problem], posed(cell.problem, cell.seed)
    one, agents = CONTENDERS[cell.name], len(federation.sites)
    began, rows, why = time.process_time(), list[Any](), ""
    try:
        with _limited(PATIENCE):
            result = fedshed.optimize(
                federation, loss=task.loss, l2=task.l2, intercept=task.intercept,
                algorithm=one.algorithm(cell.setting), theta0="null" if task.intercept else None,
                f_star=f_star, gap_tol=GAP, tol=0.0, max_iterations=one.iterations,
                watch=lambda progress: rows.extend(progress.rows[len(rows) :]),
            )  # fmt: skip
            rows, why = list(result.trace), result.reason
    except _TooLongError:
        why = f"stopped after {PATIENCE} s of CPU"
    except fedshed.Error as error:
        why = str(error)
    row = next((row for row in rows if row.gap < GAP), None)
    last = row or (rows[-1] if rows else None)
    cpu = time.process_time() - began
    if last is None:
        return Outcome(cell, False, float("inf"), 0, 0.0, 0.0, cpu, why)
    up, down = (size / agents / 1000 for size in (last.uplink_bytes, last.downlink_bytes))
    return Outcome(cell, row is not None, last.gap, last.exchanges, up, down, cpu, "" if row else why)


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """So many seconds of CPU for what follows."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@cache
def does(name: str, setting: str, loss: str) -> Behaviour:
    """What a contender with a setting does today."""
    return behaviour(lambda *_: CONTENDERS[name].algorithm(setting), loss)


def _decided_by(cell: Cell) -> str:
    """All else that decides an outcome, in words."""
    one = CONTENDERS[cell.name]
    return repr((TASKS[cell.problem], GAP, PATIENCE, one.iterations, one.grid[cell.setting]))


class Store:
    """Outcomes by cell, in a file of lines; those that would be other ones today are left out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "outcomes.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        outcomes = [one for one in map(_read, lines) if one is not None]
        self.known = {one.cell: one for one in outcomes}

    def run(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """The outcomes of cells, those that are known first, each new one on disk before it is given."""
        wanted = sorted(set(cells))
        yield from (self.known[cell] for cell in wanted if cell in self.known)
        rest = [cell for cell in wanted if cell not in self.known]
        os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
        with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(measured, cell) for cell in rest]):
                outcome = done.result()
                append_whole(self._file, _line(outcome))
                self.known[outcome.cell] = outcome
                yield outcome


def _line(outcome: Outcome) -> bytes:
    """An outcome with all that decided it."""
    cell, loss = outcome.cell, TASKS[outcome.cell.problem].loss
    now = msgspec.to_builtins(does(cell.name, cell.setting, loss))
    return json.dumps([asdict(outcome), _decided_by(cell), now]).encode() + b"\n"


def _read(line: str) -> Outcome | None:
    """The outcome of a line, if the same decides it today."""
    known, decided_by, then = json.loads(line)
    cell = Cell(**known["cell"])
    if (
        cell.name not in CONTENDERS
        or cell.setting not in CONTENDERS[cell.name].grid
        or cell.problem not in TASKS
    ):
        return None
    now = does(cell.name, cell.setting, TASKS[cell.problem].loss)
    same = decided_by == _decided_by(cell) and now.agrees(msgspec.convert(then, Behaviour))
    return Outcome(**{**known, "cell": cell}) if same else None
