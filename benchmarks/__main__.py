"""Run every benchmark, or those named on the command line (`fuzz` only where it is named)."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import takewhile

BENCHMARKS = (
    "speed", "storage", "agents", "pairs", "fashion_mnist", "claims", "chaos", "large", "engines", "rules",
    "attacks", "honest", "seldom", "private", "masked", "rivals", "path", "auc",
    "cox", "messages",
)  # fmt: skip

words = takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
named = [word for word in words if word.isidentifier()]  # numbers and options are for the benchmark
for name in named or BENCHMARKS:
    import_module(f"benchmarks.{name}").main()
