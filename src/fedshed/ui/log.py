"""The log of a deployment, one JSON object a line, followed while it grows.

A line is a row of the trace, with the name of its run and, if they are known, the number of agents and the
eigenpairs held of each: {"run": "fib-shed", "agents": 3, "row": {...}, "pairs": {"north": 4, ...}}.
Lines of any other kind are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedshed.errors import DataError
from fedshed.report import Grid, Problem, Report, Rerun, Run, versions
from fedshed.report.recorder import grid
from fedshed.trace import Row
from fedshed.ui.live import Status

MOST_LINE = 1_000_000  # bytes of one line
FOLLOWING = "following"


class _Row(Struct, frozen=True):
    """A row as it is logged: what a deployment does not know may be left out."""

    iteration: int
    rounds: int = 0
    exchanges: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_vectors: float = 0.0
    hessians: float = 0.0
    f: float | None = None
    gap: float | None = None
    grad_norm: float | None = None
    eta: float | None = None
    renewed: int = 0
    q_max: int = 0
    seconds: float = 0.0

    def row(self) -> Row:
        """The row; what is unknown is NaN."""
        values = msgspec.structs.asdict(self)
        unknown = {name: float("nan") for name in ("f", "grad_norm") if values[name] is None}
        return Row(**(values | unknown))


class _Line(Struct, frozen=True):
    row: _Row
    run: str = "run"
    agents: int | None = None
    pairs: dict[str, int] = {}


class Log:
    """A source for the live page that only reads."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.rows = Path(path), list[tuple[str, Row]]()
        if not self.path.is_file():
            raise DataError(f"log {self.path} is not there; name the JSONL file that the deployment writes")
        self._agents, self._passed, self._offset = 0, 0, 0
        self._pairs: dict[str, dict[int, dict[str, int]]] = {}
        self._generation = 1

    def status(self) -> Status:
        """What has been read so far."""
        self._read()
        passed = f", {self._passed} lines of another kind" if self._passed else ""
        return Status(FOLLOWING, f"{self.path.name}: {len(self.rows)} rows{passed}", self._generation)

    def report(self) -> Report:
        """All there is so far."""
        self._read()
        rows: dict[str, list[Row]] = {}
        for name, row in self.rows:
            rows.setdefault(name, []).append(row)
        runs = tuple(Run(name, trace, pairs=self._grid(name)) for name, trace in rows.items())
        problem = Problem(self.path.name, runs, max(1, self._agents))
        return Report(
            self.path.name, (problem,), Rerun(f"fedshed ui --log {self.path.name}", 0, {}, versions())
        )

    def _read(self) -> None:
        for line in self._new_lines():
            try:
                found = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError:
                self._passed += 1
                continue
            self.rows.append((found.run, found.row.row()))
            self._agents = max(self._agents, found.agents or 0, len(found.pairs))
            if found.pairs:
                self._pairs.setdefault(found.run, {})[found.row.iteration] = found.pairs

    def _new_lines(self) -> Iterator[bytes]:
        """Whole lines that were added since the last look; a file that shrank is read anew."""
        if self.path.stat().st_size < self._offset:
            self.rows, self._pairs, self._passed, self._offset = [], {}, 0, 0
            self._generation += 1
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while (line := file.readline(MOST_LINE)).endswith(b"\n") or len(line) == MOST_LINE:
                self._offset = file.tell()
                yield line

    def _grid(self, name: str) -> Grid | None:
        seen: dict[int, dict[str, int]] = self._pairs.get(name, {})
        if not seen:
            return None
        agents = sorted({agent for pairs in seen.values() for agent in pairs})
        iterations = sorted(seen)
        held: Any = lambda t, i: seen[iterations[t]].get(agents[i])  # noqa: E731  None where an agent was silent
        return grid(agents, iterations, held)
