"""Which commit the runs are of: the last that changed what decides their figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ("algorithms", "datasets", "exchange", "linalg", "objectives", "protocol", "solve")
DECISIVE = (
    *(f"src/fedshed/{folder}" for folder in LIBRARY),
    *(f"benchmarks/rivals/{name}.py" for name in ("contenders", "problems", "runs")),
)


def commit() -> str:
    """Its short hash, marked where those files have changed since."""
    changed = _git("status", "--porcelain", "--", *DECISIVE)
    return _git("log", "-1", "--format=%h", "--", *DECISIVE) + ("-changed" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
