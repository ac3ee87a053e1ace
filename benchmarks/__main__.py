"""Run every benchmark, or those that are named.

    python -m benchmarks                  all of them, some of which need FEDSHED_DATA (docs/data.md)
    python -m benchmarks NAME [NAME ...]  some of them
    python -m benchmarks NAME --help      what one measures

`fuzz`, `workers` and `figures` run only where they are named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import takewhile

BENCHMARKS = (
    "speed", "scale", "storage", "pairs", "fashion_mnist", "claims", "chaos", "large", "engines", "rules",
    "attacks", "honest", "seldom", "lbfgs", "private", "masked", "rivals", "path", "auc",
    "cox", "messages", "agents", "automatic",
)  # fmt: skip
NAMED_ONLY = ("fuzz", "workers", "figures")


def main(words: list[str]) -> None:
    """Run the benchmarks that are named, or say what there is."""
    first = takewhile(lambda word: not word.startswith("-"), words)
    named = [word for word in first if word.isidentifier()]  # numbers and options are for the benchmark
    if unknown := [name for name in named if name not in (*BENCHMARKS, *NAMED_ONLY)]:
        sys.exit(f"unknown benchmark {unknown[0]!r}; known: {', '.join((*BENCHMARKS, *NAMED_ONLY))}")
    if {"-h", "--help"} & set(words):
        said = [str(import_module(f"benchmarks.{name}").__doc__) for name in named]
        print(*said or [__doc__, f"known: {', '.join((*BENCHMARKS, *NAMED_ONLY))}"], sep="\n")
        return
    for name in named or BENCHMARKS:
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
