"""Run every benchmark, or those that are named; `fuzz`, `workers` and `figures` run only where named."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import takewhile

BENCHMARKS = (
    "speed", "scale", "storage", "pairs", "fashion_mnist", "claims", "chaos", "large", "engines", "rules",
    "attacks", "honest", "seldom", "private", "masked", "rivals", "path", "auc",
    "cox", "messages", "agents", "automatic",
)  # fmt: skip

words = takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
named = [word for word in words if word.isidentifier()]  # numbers and options are for the benchmark
for name in named or BENCHMARKS:
    import_module(f"benchmarks.{name}").main()
