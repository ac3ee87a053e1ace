"""What masked sums cost a site: CPU time per exchange of a message as large as Newton's, and bytes both ways.

`python -m benchmarks masked` plays exchanges of n + 1 wide numbers (cost and gradient) and n(n + 1)/2 slim
ones (packed Hessian) with real sites in this process.  Measured at each site: reading the request, checking
the sums of the exchange before, encoding, tags, masks, and opening; not its rows, its disk or the line.  The
error is the largest of the sums, relative to the largest of them.  Then a logistic model of n coefficients is
fitted by Newton in both modes, and the largest difference of a coefficient taken, in standard errors.
`--json` prints a list of {n, sites, ms_per_site, sum_error, theta_error_se, bytes_down, bytes_up}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from statistics import median
from time import process_time

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

import fedshed
from fedshed.preparation import Study
from fedshed.privacy import masks
from fedshed.privacy.addends import Addends, Totals, add
from fedshed.privacy.fixed_point import fraction_for
from fedshed.protected import MaskedSums, Member
from fedshed.protected.stores import MemoryStore

SIZES, SITES = (10, 60, 300), (3, 10, 30)
TARGETS = {10: 2.0, 60: 5.0, 300: 25.0}  # ms per site and exchange
STUDY, RUN = bytes(32), bytes(8)
EXCHANGES = 8
WEIGHT = 1000.0  # rows of a site
ROWS, ROWS_PER_COEFFICIENT = 2000, 10  # of all sites together, in whole fits


class Newton:
    """Steps that answer any request with a cost, a gradient and a Hessian drawn at random."""

    def __init__(self, n: int, seed: int, sites: int) -> None:
        rng = np.random.default_rng(seed)
        slim = n * (n + 1) // 2
        wide = WEIGHT * rng.normal(size=n + 1) * 10.0 ** rng.uniform(-3, 0, n + 1)
        zeros = np.zeros(n + 1, dtype=np.intp), np.zeros(slim, dtype=np.intp)
        self.part = Addends(wide, zeros[0], WEIGHT * rng.normal(size=slim), zeros[1], np.zeros(1, dtype=bool))
        self._fraction = fraction_for(WEIGHT * sites)

    def check(self, label: int, payload: bytes) -> None:
        """Anything follows."""

    def addends(self, label: int, payload: bytes) -> tuple[bytes, Addends, int]:
        """The same numbers at every point."""
        return b"", self.part, self._fraction

    def take(self, label: int, payload: bytes, public: bytes, totals: Totals) -> None:
        """Nothing is made of the sums."""


class Timed:
    """Sites in this process, and the CPU seconds of each."""

    stateless = False

    def __init__(self, n: int, count: int) -> None:
        names = [f"site-{i:03}" for i in range(count)]
        keys = {name: sha256(name.encode()).digest() for name in names}
        roster = {name: masks.identity_public(key) for name, key in keys.items()}
        self.steps = {name: Newton(n, i, count) for i, name in enumerate(names)}
        self._members = {
            name: Member(name, keys[name], roster, STUDY, RUN, 3, MemoryStore(), self.steps[name])
            for name in names
        }
        self.spent = dict.fromkeys(names, 0.0)
        self.down = self.up = 0

    def agents(self) -> Sequence[str]:
        """Names of the sites."""
        return sorted(self._members)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Every site answers, on its own clock."""
        replies = []
        for name, payload in payloads.items():
            start = process_time()
            replies.append((name, self._members[name].handle(payload)))
            self.spent[name] += process_time() - start
        self.down += sum(map(len, payloads.values()))
        self.up += sum(len(reply) for _, reply in replies)
        return replies


def measured(n: int, count: int) -> dict[str, float]:
    """One row: medians over exchanges of the mean over sites."""
    sites = Timed(n, count)
    master = MaskedSums(sites, sites.agents(), STUDY, RUN, 3, MemoryStore())
    theta = np.random.default_rng(0).bytes(8 * n)
    master.exchange(0, theta)  # with the set-up, and without sums to check
    times = []
    sites.down = sites.up = 0
    for number in range(EXCHANGES):
        before = sum(sites.spent.values())
        _, totals = master.exchange(number + 1, theta)
        times.append((sum(sites.spent.values()) - before) / count)
    true = add([step.part for step in sites.steps.values()])
    return {
        "n": n, "sites": count, "ms_per_site": round(1e3 * median(times), 3),
        "sum_error": max(_error(totals.wide, true.wide), _error(totals.slim, true.slim)),
        "theta_error_se": theta_error(n, count),
        "bytes_down": sites.down // (EXCHANGES * count), "bytes_up": sites.up // (EXCHANGES * count),
    }  # fmt: skip


def theta_error(n: int, count: int) -> float:
    """The largest |protected - plain| of a coefficient of whole fits, in standard errors."""
    rng, names = np.random.default_rng((n, count)), [f"x{j}" for j in range(n - 1)]
    tables = {}
    for k in range(count):
        X = rng.normal(size=(max(ROWS, ROWS_PER_COEFFICIENT * n) // count, n - 1))
        y = (X.sum(axis=1) / np.sqrt(n) + rng.logistic(size=len(X)) > 0).astype(int)
        tables[f"site-{k:03}"] = {**dict(zip(names, X.T, strict=True)), "y": y}
    study = Study(family="logistic", target="y", columns=tuple(names), classes=(0, 1))
    plain, masked = (
        fedshed.fit(tables, replace(study, protected=protected), algorithm="newton").inference
        for protected in (False, True)
    )
    apart = np.subtract(masked.coefficients, plain.coefficients)
    return float(np.abs(apart / plain.std_err()).max())


def _error(found: np.ndarray, true: np.ndarray) -> float:
    """The largest error of these sums, relative to the largest of them."""
    return float(np.abs(found - true).max() / np.abs(true).max())


def main() -> None:
    with threadpool_limits(1):
        rows = [measured(n, count) for n in SIZES for count in SITES]
    if "--json" in sys.argv:
        print(json.dumps(rows))
        return
    print("    n  sites  ms per site  at most  error of sums  of theta / se  bytes down      up")
    for row in rows:
        print(
            f"{row['n']:5} {row['sites']:6} {row['ms_per_site']:12.2f} {TARGETS[int(row['n'])]:8.0f}"
            f" {row['sum_error']:14.1e} {row['theta_error_se']:14.1e}"
            f" {row['bytes_down']:11} {row['bytes_up']:7}",
            flush=True,
        )
