"""Chaos: five sites as processes, killed and stalled at random, and a Master that is killed twice.

Every run must end at the pooled optimum, and at no time may the Master believe anything of a site that is not
so: after every round each cost, gradient and eigenpair it holds is compared with the site's own rows (of an
algorithm that rounds what it sends only the costs, which travel in full).

    python -m benchmarks chaos            # 20 seeds, and the table of docs/faults.md
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_bytes

import msgspec
import numpy as np
from msgspec import Struct

import fedshed
from fedshed import Federation
from fedshed.algorithms import build
from fedshed.algorithms.base import SiteModel
from fedshed.algorithms.newton import PackedHessian
from fedshed.algorithms.shed_curvature import SharedCurvature
from fedshed.exchange.agent import write_link
from fedshed.exchange.hub import Hub
from fedshed.exchange.processes import SiteProcess
from fedshed.exchange.site import Site
from fedshed.exchange.site_files import write_site
from fedshed.linalg import leading_eigenpairs
from fedshed.linalg.arrays import pack
from fedshed.linalg.rows import gram
from fedshed.objectives import LinearModel, local_objectives
from fedshed.solve.engine import Progress
from fedshed.solve.watching import LOG, Observer, ObserverGroup, RunLog

SEEDS = range(20)
SIZES = {"ajax": 12, "bern": 25, "cork": 60, "delft": 140, "essen": 400}
ALGORITHMS = ("fib-shed", "newton", "qn-shed", "shed-periodic", "pen")
N, L2, TOL = 6, 1e-2, 1e-11
DEADLINE = 0.2  # seconds a site has to answer
TROUBLE = 6.0  # seconds of killing and stalling; stalling goes on until the Master was killed twice
LIMIT = 300.0  # seconds a run may take
AWAY = (0.05, 0.6)  # seconds until a killed site is started again; starting takes a second or so
APART = 0.5  # seconds between two kills
STALL = (0.25, 0.9)  # seconds a site stands still: longer than the deadline
PAGE = Path(__file__).parent.parent / "docs" / "faults.md"
MARKS = ("<!-- chaos -->\n", "<!-- /chaos -->\n")


class Ending(Struct):
    """What the last Master found."""

    theta: list[float]
    converged: bool
    reason: str
    iterations: int
    exchanges: int
    refusals: int


class Report(Struct):
    """One run."""

    seed: int
    algorithm: str
    kills: int
    stalls: int
    masters: int  # Masters killed
    iterations: int
    exchanges: int
    seconds: float
    error: float  # largest distance of a coefficient from the pooled optimum
    flaws: int  # beliefs of a Master that were not so
    converged: bool
    reason: str


def federation(seed: int) -> Federation:
    """Five sites of very different size and distribution."""
    rng = np.random.default_rng((seed, 1))
    truth, tables = rng.normal(size=N), {}
    for shift, (site, rows) in enumerate(SIZES.items()):
        X = rng.normal(loc=0.3 * shift, size=(rows, N)) * np.geomspace(2, 0.2, N)
        tables[site] = (X, np.where(X @ truth + rng.normal(size=rows) > 0, "yes", "no"))
    return Federation.from_sites(tables)


def algorithm_of(seed: int) -> str:
    return ALGORITHMS[seed % len(ALGORITHMS)]


# --- the Master's process -----------------------------------------------------------------------------


class Distrust(Observer):
    """Compares what the Master holds with the rows it came from, and takes its time over a round."""

    def __init__(self, objectives: dict[str, LinearModel], exact: bool, flaws: Path) -> None:
        self._objectives, self._exact, self._flaws = objectives, exact, flaws

    def __call__(self, progress: Progress) -> None:
        """One line for every belief that is not so."""
        for i, known in progress.state.known.items():
            for flaw in flaws_of(self._objectives[i], known, self._exact):
                with self._flaws.open("a") as file:
                    file.write(f"round {progress.rows[-1].iteration}, {i}: {flaw}\n")
        time.sleep(0.05)


def flaws_of(objective: LinearModel, known: SiteModel, exact: bool) -> Iterator[str]:
    """What is not so: a cost, a gradient, a Hessian, or eigenpairs that are not the first of one Hessian."""
    point, held = objective.at(known.w), known.curvature
    if not np.isclose(known.f, point.value, rtol=1e-12, atol=0):
        yield f"cost {known.f} is {point.value}"
    if not exact:
        return
    if not np.allclose(known.g, point.gradient, rtol=0, atol=1e-13):
        yield f"gradient {known.g} is {point.gradient}"
    if isinstance(held, SharedCurvature):
        values, vectors = leading_eigenpairs(objective.at(held.theta_k).factor)
        overlap = np.abs(np.sum(held.vectors * vectors[: held.q], axis=1))
        if not np.allclose(held.values, values[: held.q], rtol=1e-9, atol=1e-15):
            yield f"eigenvalues {held.values} are {values[: held.q]}"
        if not np.allclose(overlap, 1, atol=1e-6):
            yield "the eigenvectors have a hole"
    if isinstance(held, PackedHessian) and not np.allclose(held.packed, pack(gram(point.factor)), atol=1e-13):
        yield "the Hessian is another one"


def master(folder: Path, seed: int) -> None:
    """Fit, or go on from the last checkpoint; the result is the last thing written."""
    fed, name, path = federation(seed), algorithm_of(seed), folder / "checkpoint"
    tokens = msgspec.json.decode((folder / "tokens").read_bytes(), type=dict[str, bytes])
    exact = not build(name).lossy
    watch = ObserverGroup(
        RunLog(folder), Distrust(local_objectives(fed, "logistic"), exact, folder / "flaws")
    )
    options = {"watch": watch, "transport": lambda _: Hub(tokens, folder / "address", DEADLINE)}
    if path.exists():
        result = fedshed.resume(path, fed, **options)
    else:
        result = fedshed.optimize(
            fed, algorithm=name, l2=L2, tol=TOL, quorum=2, patience=200, checkpoint=path, **options
        )
    row = result.trace[-1]
    ending = Ending(
        result.theta.tolist(),
        result.converged,
        result.reason,
        row.iteration,
        row.exchanges,
        len(result.refusals),
    )
    (folder / "result.part").write_bytes(msgspec.json.encode(ending))
    (folder / "result.part").rename(folder / "result")


class Master:
    """The Master's process, started again whenever it was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self.killed = folder, seed, 0
        self._rng = np.random.default_rng((seed, 2))
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        command = [sys.executable, __file__, str(self._folder), str(self._seed)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._due = self._rounds() + int(self._rng.integers(1, 4)) if self.killed < 2 else None
        self._wait: float | None = None

    def _rounds(self) -> int:
        path = self._folder / LOG
        return path.read_bytes().count(b'"kind":"round"') if path.exists() else 0

    def tick(self, now: float) -> bool:
        """Kill it some time after the round it is due at; False once it has ended by itself."""
        assert self._process is not None
        if self._due is not None and self._rounds() >= self._due:
            self._wait = now + self._rng.uniform(0, 0.3) if self._wait is None else self._wait
            if now >= self._wait and self._process.poll() is None:
                self._process.kill()
                self._process.wait()
                self.killed += 1
                self._start()
        return self._process.poll() is None

    def end(self) -> None:
        """No more of it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


# --- the trouble --------------------------------------------------------------------------------------


class Trouble:
    """Kills and stalls sites at random, and starts them again."""

    def __init__(self, sites: dict[str, SiteProcess], seed: int) -> None:
        self._sites, self._rng = sites, np.random.default_rng((seed, 3))
        self._dead: dict[str, float] = {}  # until when
        self._still: dict[str, float] = {}
        self._next = self._kill = 0.0
        self.kills = self.stalls = 0

    def tick(self, now: float, more: bool, deadly: bool) -> None:
        """What is over ends; something new begins, about three times a second."""
        for i in [i for i, until in self._dead.items() if now >= until or not more]:
            del self._dead[i]
            self._sites[i].start()
        for i in [i for i, until in self._still.items() if now >= until or not more]:
            del self._still[i]
            os.kill(self._sites[i].pid, signal.SIGCONT)
        well = [i for i in self._sites if i not in self._dead and i not in self._still]
        if more and now >= self._next and len(well) > 1:
            self._next = now + self._rng.exponential(0.3)
            self._strike(str(self._rng.choice(well)), now, deadly and now >= self._kill)

    def _strike(self, i: str, now: float, deadly: bool) -> None:
        if self._rng.random() < 0.5 and deadly:
            self._sites[i].kill()
            self._dead[i], self._kill = now + self._rng.uniform(*AWAY), now + APART
            self.kills += 1
        else:
            os.kill(self._sites[i].pid, signal.SIGSTOP)
            self._still[i] = now + self._rng.uniform(*STALL)
            self.stalls += 1


@contextlib.contextmanager
def sites_of(folder: Path, seed: int) -> Iterator[dict[str, SiteProcess]]:
    """Five site processes, each with a folder of its own."""
    objectives = local_objectives(federation(seed), "logistic")
    tokens = {i: token_bytes(16) for i in objectives}
    (folder / "tokens").write_bytes(msgspec.json.encode(tokens))
    sites: dict[str, SiteProcess] = {}
    try:
        for i, objective in objectives.items():
            (folder / i).mkdir()
            site = Site(i, objective, build(algorithm_of(seed)))
            write_link(folder / i, i, tokens[i], folder / "address")
            write_site(folder / i, site)
            sites[i] = SiteProcess(folder / i)
        yield sites
    finally:
        for process in sites.values():
            process.kill()


def run(seed: int, trouble: float = TROUBLE) -> Report:
    """One run under trouble, and how far from the pooled optimum it ended."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, sites_of(folder := Path(name), seed) as sites:
        clock = time.monotonic()
        monkey, boss = Trouble(sites, seed), Master(folder, seed)
        try:
            while boss.tick(now := time.monotonic() - clock) and now < LIMIT:
                monkey.tick(now, more=now < trouble or boss.killed < 2, deadly=now < trouble)
                time.sleep(0.01)
        finally:
            boss.end()
        if not (folder / "result").exists():
            raise RuntimeError(
                f"seed {seed}: no result; the Master wrote: {(folder / 'log').read_text()[-2000:]}"
            )
        ending = msgspec.json.decode((folder / "result").read_bytes(), type=Ending)
        flaws = (folder / "flaws").read_text().count("\n") if (folder / "flaws").exists() else 0
    expected, _ = fedshed.optimum(federation(seed), l2=L2)
    error = float(np.abs(np.array(ending.theta) - expected).max())
    return Report(
        seed, algorithm_of(seed), monkey.kills, monkey.stalls, boss.killed, ending.iterations,
        ending.exchanges, now, error, flaws, ending.converged, ending.reason,
    )  # fmt: skip


COLUMNS = (
    "seed", "algorithm", "sites killed", "stalled", "Masters killed", "iterations", "exchanges", "seconds",
    "error", "flaws", "ended",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


def table(reports: Iterable[Report]) -> str:
    """The table of docs/faults.md."""
    return HEAD + "".join(
        f"| {r.seed} | {r.algorithm} | {r.kills} | {r.stalls} | {r.masters} | {r.iterations} | {r.exchanges} "
        f"| {r.seconds:.1f} | {r.error:.0e} | {r.flaws} | {'converged' if r.converged else r.reason} |\n"
        for r in reports
    )


def main(seeds: Iterable[int] = SEEDS) -> None:
    reports = []
    for seed in seeds:
        reports.append(run(seed))
        print(table(reports[-1:])[len(HEAD) :], end="", flush=True)
    before, _, after = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table(reports) + MARKS[1] + after.partition(MARKS[1])[2])


if __name__ == "__main__":
    master(Path(sys.argv[1]), int(sys.argv[2]))
