"""The command: the steps one after the other, each with its time, or a check of what was recorded."""

from __future__ import annotations

import argparse
import os
import sys
import time

from benchmarks.figures.recorded import stale
from benchmarks.figures.steps import STEPS


def main() -> None:
    """Run the steps that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks figures")
    parser.add_argument("figures")  # the name of this benchmark
    parser.add_argument("--steps", default=",".join(STEPS), help="some of them, with commas; all by default")
    parser.add_argument("--check", action="store_true", help="say which files are stale")
    parser.add_argument("--strict", action="store_true", help="which is an error")
    asked = parser.parse_args()
    steps = asked.steps.split(",")
    if unknown := [name for name in steps if name not in STEPS]:
        parser.error(f"unknown step {unknown[0]!r}; known: {', '.join(STEPS)}")
    if asked.check:
        sys.exit(checked() and asked.strict)
    if not os.environ.get("FEDSHED_DATA"):
        sys.exit("FEDSHED_DATA is not set; docs/data.md says how to get the data")
    run(steps)


def run(names: list[str]) -> None:
    """The steps, and how long each took."""
    took: dict[str, float] = {}
    for k, name in enumerate(names, 1):
        began = time.monotonic()
        print(f"=== step {k} of {len(names)}: {name}", flush=True)
        STEPS[name]()
        took[name] = time.monotonic() - began
    for name, seconds in (*took.items(), ("in all", sum(took.values()))):
        print(f"{name:10} {seconds / 60:6.1f} min", flush=True)


def checked() -> bool:
    """Say which files are stale; whether there are any."""
    found = stale()
    for line in found:
        print(f"stale: {line}")
    print("run `make figures`" if found else "no recorded result is stale", flush=True)
    return bool(found)
