"""A comparison that runs in a thread of its own, and can be watched, paused, resumed and stopped."""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed._utils.errors import ConfigError, Error
from fedshed.algorithms.base import Algorithm
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.sources import agents_of, drawn
from fedshed.report import Agent, Problem, Recorder, Report, Rerun, Run, versions
from fedshed.solve.engine import Progress
from fedshed.solve.run import Result
from fedshed.solve.trace import Row
from fedshed.tables import Federation

READY, RUNNING, PAUSED, STOPPED, DONE, FAILED = "ready", "running", "paused", "stopped", "done", "failed"
STOPPED_BY_HAND = "stopped by hand"


class Status(Struct, frozen=True):
    """Where a run stands; `generation` tells one run from the next, `token` is what its commands need."""

    state: str
    message: str = ""
    generation: int = 0
    token: str | None = None


class Source(Protocol):
    """What the live page follows: rows as they come, and a report of all there is."""

    rows: list[tuple[str, Row]]  # of the present generation, in order

    def status(self) -> Status:
        """Where the run stands."""
        ...

    def report(self) -> Report:
        """All there is so far."""
        ...


class _StoppedError(Exception):
    """Ends a run from within."""


class Simulation:
    """At most one comparison at a time; a new one begins a new generation with a token of its own."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Row]] = []
        self.study = ComparisonSpec().resolved()
        self._status = Status(READY, "choose what to compare, then start")
        self._lock = threading.Lock()
        self._go, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._fresh()

    def _fresh(self) -> None:
        self._recorders: dict[str, Recorder] = defaultdict(Recorder)
        self._results: dict[str, Result] = {}
        self._algorithms: dict[str, Algorithm[Any]] = {}
        self._federation: Federation | None = None
        self._agents: tuple[Agent, ...] = ()
        self._data: dict[str, str] = {}
        self._idle = self._counted = 0.0  # seconds spent paused: all, and those in the last row

    # --- commands --------------------------------------------------------------------------------

    def start(self, study: ComparisonSpec) -> Status:
        """Begin a comparison; what is wrong with its settings is said at once."""
        study = study.resolved()
        algorithms = study.prepared()
        with self._lock:
            if self._status.state in (RUNNING, PAUSED):
                raise ConfigError("a run is going on; stop it before another is started")
            self._fresh()
            self.study, self.rows, self._algorithms = study, [], algorithms
            self._stop.clear()
            self._go.set()
            self._status = Status(RUNNING, "loading", self._status.generation + 1, secrets.token_urlsafe(16))
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            return self._status

    def command(self, name: str) -> Status:
        """Pause, resume or stop; without effect on a run that has ended."""
        with self._lock:
            if self._status.state not in (RUNNING, PAUSED):
                return self._status
            if name == "stop":
                self._stop.set()
            self._go.clear() if name == "pause" else self._go.set()
            self._status = replace(self._status, state=PAUSED if name == "pause" else RUNNING)
            return self._status

    def join(self, seconds: float | None = None) -> None:
        """Wait for the run to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    # --- what is seen ----------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the run stands."""
        return self._status

    def report(self) -> Report:
        """All there is so far."""
        rows: dict[str, list[Row]] = {}
        for name, row in list(self.rows):
            rows.setdefault(name, []).append(row)
        runs = tuple(self._report_of(name, trace) for name, trace in rows.items())
        title = f"{self.study.dataset}: {self.study.loss}, l2 = {self.study.l2:g}"
        problem = Problem(title, runs, max(1, len(self._agents)), self._agents)
        rerun = Rerun(self.study.command(), self.study.seed, self._data, versions())
        return Report(title, (problem,), rerun)

    def settings(self) -> dict[str, Any]:
        """The settings of the present study."""
        return asdict(self.study)

    def _report_of(self, name: str, rows: list[Row]) -> Run:
        result, recorder = self._results.get(name), self._recorders.get(name, Recorder())
        goes_on = "" if self._status.state in (RUNNING, PAUSED) else self._status.message
        ended = goes_on if result is None else result.reason
        converged = result is not None and result.converged
        assert self._federation is not None
        n = self._federation.dim + self.study.intercept
        budget = drawn(self._algorithms[name], self._federation, len(rows) - 1, n)
        return Run(name, rows, ended, converged, recorder.pairs(), budget, recorder.spectra())

    # --- in the run's own thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._federation = data = self.study.data()
            self._agents, self._data = agents_of(data), {self.study.dataset: data.fingerprint()}
            self._say("computing the pooled optimum")
            self.study.compare(data, watch=self._watch, on_result=self._ended)
            self._end(DONE, "all algorithms have ended")
        except _StoppedError:
            self._end(STOPPED, STOPPED_BY_HAND)
        except Error as error:
            self._end(FAILED, str(error))
        except Exception as error:
            self._end(FAILED, f"{type(error).__name__}: {error}")
            raise

    def _watch(self, name: str, progress: Progress) -> None:
        if len(progress.rows) == 1:
            self._idle = self._counted = 0.0
        self._recorders[name](progress)
        self._tell(name, progress.rows[-1], self._counted)
        self._counted = self._idle
        self._wait()

    def _wait(self) -> None:
        """Stay here while paused; that time is not the algorithm's."""
        began = time.perf_counter()
        self._go.wait()
        self._idle += time.perf_counter() - began
        if self._stop.is_set():
            raise _StoppedError

    def _ended(self, name: str, result: Result) -> None:
        self._results[name] = result
        self._tell(name, result.trace[-1], self._idle)

    def _tell(self, name: str, row: Row, idle: float) -> None:
        self.rows.append((name, replace(row, seconds=max(0.0, row.seconds - idle))))
        self._say(f"{name}, iteration {row.iteration}")

    def _say(self, message: str) -> None:
        with self._lock:
            self._status = replace(self._status, message=message)

    def _end(self, state: str, message: str) -> None:
        with self._lock:
            self._status = replace(self._status, state=state, message=message)
