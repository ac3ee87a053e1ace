"""Run every benchmark, or those named on the command line."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = (
    "speed", "storage", "pairs", "fashion_mnist", "beyond", "claims", "chaos", "large", "engines", "attacks",
)  # fmt: skip

named = [word for word in sys.argv[1:] if not word.startswith("--")]  # a benchmark reads its own flags
for name in named or BENCHMARKS:
    import_module(f"benchmarks.{name}").main()
