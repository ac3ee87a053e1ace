"""The log of a run (`watch=RunLog(folder)`), such as a deployment's, which is read while it grows."""

from __future__ import annotations

import threading
from pathlib import Path

from fedshed._utils.errors import CodecError, DataError
from fedshed.report import Gap, Grid, Problem, Report, Rerun, Run, SiteTraffic, versions
from fedshed.report.recorder import grid
from fedshed.solve.trace import Row
from fedshed.solve.watching import LOG, Begin, End, Line, Round, lines
from fedshed.ui.live import DONE, FAILED, Status

FOLLOWING = "following"
NAN = float("nan")
BOUND = Gap(
    "gap at most",
    "The optimum is not known during a run. The plot shows ‖g‖²/(2 l2), an upper bound of the gap, if all "
    "sites answered exactly and every coefficient is penalised; otherwise look at the gradient norm.",
)


class Log:
    """A source for the live page that only reads a log; what the log does not contain is not shown."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path) / LOG if Path(path).is_dir() else Path(path)
        if not self.path.is_file():
            raise DataError(
                f"there is no log {self.path}; give the results folder of a deployment, or of a run with "
                "watch=RunLog(folder)"
            )
        self._lock, self._generation = threading.Lock(), 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.rows: list[tuple[str, Row]] = []
        self._rounds: list[Round] = []
        self._study: Begin | None = None
        self._end: End | None = None
        self._broken, self._offset = "", 0
        self._generation += 1

    def status(self) -> Status:
        """What has been read so far."""
        with self._lock:
            self._read()
        if self._broken:
            return Status(FAILED, self._broken, self._generation)
        if self._end is not None:
            return Status(DONE, self._end.reason, self._generation)
        return Status(FOLLOWING, f"{self.path.name}, {len(self._rounds)} rounds", self._generation)

    def close(self) -> None:
        """Do nothing: the run does not depend on who reads its log."""

    def report(self) -> Report:
        """All there is so far."""
        self.status()
        rows, name = [row for _, row in self.rows], self._name
        ended, converged = ("", False) if self._end is None else (self._end.reason, self._end.converged)
        run = Run(name, rows, ended, converged, self._grid(), traffic=self._traffic())
        runs = (run,) if rows else ()
        title = f"{name} on {self._study.loss}" if self._study else self.path.name
        if self._study is not None and self._study.protected is not None:
            title += f", {self._study.who}"
        count = len(self._study.sites) if self._study else 1
        problem = Problem(title, runs, count, gap=BOUND)
        return Report(title, (problem,), Rerun(f"fedshed ui --log {self.path.name}", 0, {}, versions()))

    @property
    def _name(self) -> str:
        return "run" if self._study is None else self._study.algorithm

    def _read(self) -> None:
        """Read what was added since the last time; a file that is now shorter is read from its beginning."""
        if self.path.stat().st_size < self._offset:
            self._begin_anew()
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            try:
                for line in lines(stream):
                    self._take(line)
            except CodecError as error:
                self._broken = str(error)
            self._offset = stream.tell()

    def _take(self, line: Line) -> None:
        if isinstance(line, Begin):
            self._study, self._end = line, None
        elif isinstance(line, End):
            self._end = line
            self._tell(_last(line, self.rows[-1][1] if self.rows else None))
        else:
            before = (
                {i: site.pairs or 0 for i, site in self._rounds[-1].sites.items()} if self._rounds else {}
            )
            self._rounds = [one for one in self._rounds if one.iteration < line.iteration] + [line]
            self._tell(_row(line, before))

    def _tell(self, row: Row) -> None:
        """Add a row; a resumed run continues from its checkpoint, which may be some rounds back."""
        kept = [pair for pair in self.rows if pair[1].iteration < row.iteration]
        if len(kept) < len(self.rows):
            self._generation += 1
        self.rows = [*kept, (self._name, row)]

    def _grid(self) -> Grid | None:
        held = [
            {i: site.pairs for i, site in one.sites.items() if site.pairs is not None} for one in self._rounds
        ]
        agents = sorted({agent for pairs in held for agent in pairs})
        if not agents:
            return None
        iterations = [one.iteration + 1 for one in self._rounds]  # a round leads to the next iterate
        return grid(agents, iterations, lambda t, i: held[t].get(agents[i]))

    def _traffic(self) -> tuple[SiteTraffic, ...]:
        """The bytes of each site until the last round, if more than sums is known."""
        if not self._rounds or self._study is None or self._study.protected is not None:
            return ()
        sites = sorted(self._rounds[-1].sites.items())
        return tuple(SiteTraffic(i, one.uplink_bytes, one.downlink_bytes, one.last) for i, one in sites)


def _row(line: Round, before: dict[str, int]) -> Row:
    """A round as a row of a trace; an agent with fewer pairs than before has renewed its Hessian."""
    pairs = {i: site.pairs or 0 for i, site in line.sites.items()}
    return Row(
        iteration=line.iteration, rounds=line.exchanges, exchanges=line.exchanges,
        uplink_bytes=line.uplink_bytes, downlink_bytes=line.downlink_bytes,
        uplink_vectors=_known(line.vectors), hessians=_known(line.hessians), f=line.f, gap=line.bound,
        grad_norm=line.grad_norm, eta=line.eta, renewed=sum(pairs[i] < before.get(i, 0) for i in pairs),
        q_max=max(pairs.values(), default=0), seconds=line.seconds,
    )  # fmt: skip


def _last(end: End, row: Row | None) -> Row:
    """The end of a run as a row; a log of an earlier version has the bytes of the last round only."""
    up, down = (row.uplink_bytes, row.downlink_bytes) if row else (0, 0)
    return Row(
        iteration=end.iterations, rounds=end.exchanges, exchanges=end.exchanges,
        uplink_bytes=up if end.uplink_bytes is None else end.uplink_bytes,
        downlink_bytes=down if end.downlink_bytes is None else end.downlink_bytes,
        uplink_vectors=_known(end.vectors), hessians=_known(end.hessians), f=_known(end.f), gap=end.bound,
        grad_norm=end.grad_norm, eta=None, renewed=0, q_max=0, seconds=end.seconds,
    )  # fmt: skip


def _known(value: float | None) -> float:
    return NAN if value is None else value
