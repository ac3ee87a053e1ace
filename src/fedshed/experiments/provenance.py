"""Where results come from: commit, versions, seeds and machine, on each page and in each figure."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from html import escape
from pathlib import Path

from msgspec import Struct

import fedshed
from fedshed._utils.files import write_atomically
from fedshed.report.model import versions

PACKAGE = Path(fedshed.__file__).parent
CODE = ("src", "benchmarks", "docs/figures/*.py")  # a change here that is not committed is said
SHOWN = ("fedshed", "numpy", "scipy", "Python")
_DESCRIPTION = re.compile(rb"\s*<dc:description>.*?</dc:description>", re.S)
_SENTENCE = re.compile(rb"Recorded at [^\n]*")


class Stamp(Struct, frozen=True):
    """What a page or a figure was made with; no commit where the package is no checkout."""

    commit: str
    date: str  # of the commit
    changed: bool  # whether code has changed since and is not committed
    versions: dict[str, str]
    machine: str
    seeds: tuple[int, ...] = ()

    def sentence(self, quote: str = "`") -> str:
        """All of it in a line; `quote` is put around hashes."""
        changed = " with uncommitted changes" if self.changed else ""
        where = f"commit {quote}{self.commit}{quote} of {self.date}{changed}" if self.commit else "no commit"
        used = ", ".join(f"{name} {self.versions[name]}" for name in SHOWN if name in self.versions)
        seeds = f"; {_seeds(self.seeds)}" if self.seeds else ""
        return f"Recorded at {where}; {used}{seeds}; {self.machine}."


def stamp(seeds: Sequence[int] = ()) -> Stamp:
    """Where results of today come from."""
    commit, _, date = _git("log", "-1", "--format=%h %cs").partition(" ")
    changed = bool(_git("status", "--porcelain", "--", *CODE))
    return Stamp(commit, date, changed, versions(), machine(), tuple(seeds))


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"partition seed {seeds[0]}"
    return f"partition seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"


def machine() -> str:
    """The processor, and how many cores there are."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    cores = os.cpu_count() or 1
    return f"{name}, {cores} core{'s' * (cores > 1)}"


def stamped(svg: bytes, made: Stamp) -> bytes:
    """A figure of matplotlib with the stamp among its metadata."""
    said = f"\n    <dc:description>{escape(made.sentence(quote=''))}</dc:description>".encode()
    return _DESCRIPTION.sub(b"", svg).replace(b"\n   </cc:Work>", said + b"\n   </cc:Work>", 1)


def save(path: Path, data: bytes) -> Path:
    """Write a page or a figure, unless only its stamp would change."""
    if path.exists() and _without_stamp(path.read_bytes()) == _without_stamp(data):
        return path
    return write_atomically(path, data, private=False)


def _without_stamp(data: bytes) -> bytes:
    return _SENTENCE.sub(b"", _DESCRIPTION.sub(b"", data))


def _git(*words: str) -> str:
    """What git says in the checkout of this package; nothing where there is none."""
    root = PACKAGE.parents[1]
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
