"""A comparison that runs in a separate thread, and can be watched, paused, resumed and stopped."""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed._utils.errors import ConfigError, Error
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.sources import agents_of, drawn
from fedshed.report import Agent, Problem, Recorder, Report, Rerun, Run, versions
from fedshed.solve.engine import Progress
from fedshed.solve.run import Result
from fedshed.solve.trace import Row
from fedshed.tables import Federation
from fedshed.ui.choices import check

READY, RUNNING, PAUSED, STOPPED, DONE, FAILED = "ready", "running", "paused", "stopped", "done", "failed"
STOPPED_BY_HAND = "stopped by hand"
STOPPED_WITH_SERVER = "stopped, because the server ended"


class Status(Struct, frozen=True):
    """The state of a run; `generation` distinguishes runs, and commands to the run need its `token`."""

    state: str
    message: str = ""
    generation: int = 0
    token: str | None = None


class Source(Protocol):
    """What the live page shows: rows as they arrive, and a report of everything so far."""

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """The rows of the present generation, in order."""
        ...

    def status(self) -> Status:
        """Where the run stands."""
        ...

    def report(self) -> Report:
        """All there is so far."""
        ...

    def close(self) -> None:
        """End the run, because its server ends."""
        ...


class _StoppedError(Exception):
    """Ends a run from within."""


class _Record:
    """All that is known about one run; the next has another record, so that a report never mixes two."""

    def __init__(self, study: ComparisonSpec, algorithms: dict[str, AnyAlgorithm]) -> None:
        self.study, self.algorithms = study, algorithms
        self.rows: list[tuple[str, Row]] = []
        self.recorders: dict[str, Recorder] = defaultdict(Recorder)
        self.results: dict[str, Result] = {}
        self.federation: Federation | None = None
        self.agents: tuple[Agent, ...] = ()
        self.data: dict[str, str] = {}

    def report(self, ended: str) -> Report:
        """The report so far; `ended` is shown for a run without a result."""
        rows: dict[str, list[Row]] = {}
        for name, row in list(self.rows):
            rows.setdefault(name, []).append(row)
        runs = tuple(self._run(name, trace, ended) for name, trace in rows.items())
        title = f"{self.study.dataset}: {self.study.loss}, l2 = {self.study.l2:g}"
        problem = Problem(title, runs, max(1, len(self.agents)), self.agents)
        return Report(title, (problem,), Rerun(self.study.command(), self.study.seed, self.data, versions()))

    def _run(self, name: str, rows: list[Row], ended: str) -> Run:
        result, recorder = self.results.get(name), self.recorders.get(name, Recorder())
        assert self.federation is not None
        n = self.federation.dim + self.study.intercept
        budget = drawn(self.algorithms[name], self.federation, len(rows) - 1, n)
        if result is not None:
            ended = result.reason
        converged = result is not None and result.converged
        return Run(name, rows, ended, converged, recorder.pairs(), budget, recorder.spectra())


class Simulation:
    """At most one comparison at a time; a new one has a new generation and a new token."""

    def __init__(self) -> None:
        self._record = _Record(ComparisonSpec().resolved(), {})
        self._status = Status(READY, "choose what to compare, then start")
        self._lock = threading.Lock()
        self._go, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._why = STOPPED_BY_HAND
        self._idle = self._counted = 0.0  # seconds spent paused: all, and those in the last row

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """The rows of the present generation, in order."""
        return self._record.rows

    # --- commands --------------------------------------------------------------------------------

    def start(self, study: ComparisonSpec) -> Status:
        """Start a comparison; wrong settings are refused at once."""
        check(study)
        study = study.resolved()
        record = _Record(study, study.prepared())
        with self._lock:
            if self._status.state in (RUNNING, PAUSED):
                raise ConfigError("a run is in progress; stop it before you start another")
            self._record = record
            self._stop.clear()
            self._go.set()
            self._status = Status(
                RUNNING, "loading the data", self._status.generation + 1, secrets.token_urlsafe(16)
            )
            self._thread = threading.Thread(target=self._run, args=(record,), daemon=True)
            self._thread.start()
            return self._status

    def command(self, name: str) -> Status:
        """Pause, resume or stop the run; a run that has ended does not change."""
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

    def close(self, seconds: float = 5.0) -> None:
        """Stop the run, because its server ends; what was computed is kept."""
        self._why = STOPPED_WITH_SERVER
        self.command("stop")
        self.join(seconds)

    # --- what is seen ----------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the run stands."""
        return self._status

    def report(self) -> Report:
        """All there is so far."""
        with self._lock:
            record, status = self._record, self._status
        return record.report("" if status.state in (RUNNING, PAUSED) else status.message)

    def settings(self) -> dict[str, Any]:
        """The settings of the present study."""
        return asdict(self._record.study)

    # --- in the run's own thread -----------------------------------------------------------------

    def _run(self, record: _Record) -> None:
        try:
            data = record.study.data()
            record.agents, record.data = agents_of(data), {record.study.dataset: data.fingerprint()}
            record.federation = data
            self._wait()
            self._say("computing the pooled optimum")
            record.study.compare(data, watch=self._watch, on_result=self._ended)
            self._end(DONE, "all algorithms have ended")
        except _StoppedError:
            self._end(STOPPED, self._why)
        except Error as error:
            self._end(FAILED, str(error))
        except Exception as error:
            self._end(FAILED, f"{type(error).__name__}: {error}")
            raise

    def _watch(self, name: str, progress: Progress) -> None:
        if len(progress.rows) == 1:
            self._idle = self._counted = 0.0
        self._record.recorders[name](progress)
        self._tell(name, progress.rows[-1], self._counted)
        self._counted = self._idle
        self._wait()

    def _wait(self) -> None:
        """Wait while the run is paused; this time does not count as the algorithm's."""
        began = time.perf_counter()
        self._go.wait()
        self._idle += time.perf_counter() - began
        if self._stop.is_set():
            raise _StoppedError

    def _ended(self, name: str, result: Result) -> None:
        self._record.results[name] = result
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
