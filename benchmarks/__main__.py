"""Run every benchmark, or those named on the command line."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = (
    "speed",
    "storage",
    "pairs",
    "fashion_mnist",
    "beyond",
    "claims",
    "chaos",
    "large",
    "engines",
    "rules",
)

for name in sys.argv[1:] or BENCHMARKS:
    import_module(f"benchmarks.{name}").main()
