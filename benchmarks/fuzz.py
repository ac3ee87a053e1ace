"""Mutated messages and files at every border: how many exceptions are not fedshed's own?

`python -m benchmarks fuzz 500000` prints one table; the same seed gives the same cases.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import fuzz_targets
from benchmarks.fuzz_mutations import mutated
from fedshed._utils.errors import Error

SEED = 16


@dataclass(frozen=True)
class Target:
    """A border: valid inputs, how they are mutated, and what reads them; `share` of all cases."""

    name: str
    samples: list[bytes]
    read: Callable[[bytes], Any]
    style: str = "message"
    share: float = 1.0


@dataclass(frozen=True)
class Line:
    """What became of the cases of one border."""

    name: str
    cases: int
    refused: int
    foreign: Counter[str]
    seconds: float

    @property
    def kind(self) -> str:
        """What the border reads, whatever the algorithm or the study."""
        return self.name.partition(":")[0]


def main() -> None:
    """Print the table; the number of cases is the first number on the command line."""
    counts = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    lines = list(fuzz(counts[0] if counts else 20_000, show=True))
    kinds = dict.fromkeys(line.kind for line in lines)
    print(f"{'kind':<28}{'borders':>9}{'cases':>10}{'refused':>10}{'foreign':>9}{'seconds':>9}")
    for kind in kinds:
        _print(kind, [line for line in lines if line.kind == kind])
    _print("all", lines)
    if any(line.foreign for line in lines):
        sys.exit(1)


def _print(kind: str, lines: list[Line]) -> None:
    cases, refused = sum(line.cases for line in lines), sum(line.refused for line in lines)
    foreign = sum(sum(line.foreign.values()) for line in lines)
    seconds = sum(line.seconds for line in lines)
    print(f"{kind:<28}{len(lines):>9}{cases:>10,}{refused:>10,}{foreign:>9,}{seconds:>9.1f}")


def fuzz(cases: int, seed: int = SEED, *, show: bool = False) -> Iterator[Line]:
    """About so many cases, shared out over all borders."""
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"), _silence():
        targets = [Target(*made) for made in fuzz_targets.targets(Path(folder))]
        whole = sum(target.share for target in targets)
        for number, target in enumerate(targets):
            count = max(1, round(cases * target.share / whole))
            yield _fuzzed(target, count, (seed, number), show)


@contextmanager
def _silence() -> Iterator[None]:
    """Neither warnings nor notes of what is read."""
    log = logging.getLogger("fedshed")
    level = log.level
    log.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(level)


def _fuzzed(target: Target, count: int, seed: tuple[int, int], show: bool) -> Line:
    if target.style != "reply":
        target.read(target.samples[0])  # valid before it is mutated: a border that refuses all shows nothing
    rng, foreign, refused, start = np.random.default_rng(seed), Counter[str](), 0, perf_counter()
    for _ in range(count):
        data = mutated(target.samples, target.style, rng)
        try:
            target.read(data)
        except Error:
            refused += 1
        except Exception as error:
            where = _where(error)
            if show and where not in foreign:
                print(f"{target.name}: {type(error).__name__} at {where}: {error!s:.150} {data[:80]!r}")
            foreign[where] += 1
    return Line(target.name, count, refused, foreign, perf_counter() - start)


def _where(error: Exception) -> str:
    """The kind of an exception, and the innermost line of this package that it passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "fedshed" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {Path(last.filename).name}:{last.lineno}"
