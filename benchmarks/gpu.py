"""Very many agents on a device against this machine's CPU, in one process; medians of 3 runs of each in turn.

`python -m benchmarks.gpu torch:cuda` prints a table for docs/performance.md.  The seconds of an exchange are
those of all agents together, reading and writing their messages included; the run is all of `optimize`.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np

import fedshed
from fedshed import Federation
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.solve.engine import Progress

SIZES = ((10_000, 50, 100), (1_000, 300, 400))  # agents, n, rows of each
KINDS = ("ordinary", "renewal", "search")
HEAD = """\
| agents, n, rows | where | ordinary exchange, s | renewal, s | search, s | 12 iterations, s | theta off by |
|---|---|---|---|---|---|---|"""


class Timed(InProcess):
    """Agents of this process, and how long each exchange took them."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        super().__init__(sites)
        self.seconds: list[float] = []

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """As ever, on the clock."""
        start = time.perf_counter()
        answers = super().exchange(payloads)
        self.seconds.append(time.perf_counter() - start)
        return answers


class Stopwatch:
    """A watcher that knows which exchanges of a run were which: an iteration is an update, then a search."""

    def __init__(self) -> None:
        self.by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._timed: Timed | None = None
        self._seen = 0

    def connect(self, sites: Mapping[str, Site]) -> Timed:
        """The transport to watch."""
        self._timed = Timed(sites)
        return self._timed

    def __call__(self, progress: Progress) -> None:
        """After an iteration."""
        assert self._timed is not None
        assert progress.info is not None
        update, *searches = self._timed.seconds[self._seen :]
        self._seen = len(self._timed.seconds)
        self.by_kind["renewal" if progress.info.renewed else "ordinary"].append(update)
        self.by_kind["search"].extend(searches)


def federation(agents: int, n: int, rows: int) -> Federation:
    """Agents with rows of a spectrum that falls to a 20th."""
    rng = np.random.default_rng(0)
    tables, truth = {}, rng.normal(size=n)
    for i in range(agents):
        X = rng.normal(size=(rows, n)) * np.geomspace(1, 0.05, n)
        tables[f"{i:05}"] = X, X @ truth + rng.logistic(size=rows) > 0
    return Federation.from_sites(tables)


def run(data: Federation, device: str | None, iterations: int = 12) -> tuple[dict[str, float], Any]:
    """The median seconds of each kind of exchange and those of the whole run, and its theta."""
    watch, start = Stopwatch(), time.perf_counter()
    result = fedshed.optimize(
        data, algorithm="fib-shed", l2=1e-3, tol=1e-14, max_iterations=iterations, device=device,
        transport=watch.connect, watch=watch,
    )  # fmt: skip
    whole = time.perf_counter() - start
    return {**{kind: median(watch.by_kind[kind]) for kind in KINDS}, "run": whole}, result.theta


def compared(size: tuple[int, int, int], device: str, repeats: int) -> list[str]:
    """Two rows of the table."""
    data = federation(*size)
    runs: dict[str | None, list[tuple[dict[str, float], Any]]] = {None: [], device: []}
    for repeat in range(repeats):
        for where in runs:
            runs[where].append(run(data, where))
            print(size, where or "CPU", repeat, runs[where][-1][0], flush=True)
    theta = runs[None][0][1]
    lines = []
    for where, done in runs.items():
        seconds = " | ".join(f"{median(cost[k] for cost, _ in done):.2f}" for k in (*KINDS, "run"))
        apart = max(float(np.abs(other - theta).max()) for _, other in done)
        numbers = " x ".join(f"{x:,}" for x in size)
        lines.append(f"| {numbers} | {where or 'CPU'} | {seconds} | {apart:.0e} |")
    return lines


def versions(device: str) -> str:
    """What was measured with what."""
    packages = ("numpy", "scipy", "array-api-compat", device.partition(":")[0])
    return ", ".join([platform.python_version(), *(f"{name} {_version(name)}" for name in packages)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a folder without its metadata
        return str(getattr(__import__(package.replace("-", "_")), "__version__", "?"))


def main(device: str = "torch:cuda", repeats: int = 3, sizes: Iterable[tuple[int, int, int]] = SIZES) -> None:
    print(f"python {versions(device)}; {platform.machine()}; {device}", flush=True)
    run(federation(20, 8, 30), device)  # libraries are loaded and the device is up
    lines = [HEAD]
    for size in sizes:
        lines += compared(size, device, repeats)
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="torch:cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=lambda text: tuple(map(int, text.split(","))), action="append",
                        help="agents,n,rows; once for each")  # fmt: skip
    arguments = parser.parse_args()
    main(arguments.device, arguments.repeats, arguments.size or SIZES)
