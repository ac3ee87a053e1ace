"""Run every benchmark, or those named on the command line (`fuzz` only where it is named)."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = (
    "speed", "storage", "pairs", "fashion_mnist", "beyond", "claims", "chaos", "large", "engines", "rules",
    "attacks", "honest", "seldom", "private", "masked",
)  # fmt: skip

named = [word for word in sys.argv[1:] if word.isidentifier()]  # numbers and options are for the benchmark
for name in named or BENCHMARKS:
    import_module(f"benchmarks.{name}").main()
