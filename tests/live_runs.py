"""Runs of the live page, for its tests with and without a browser."""

from __future__ import annotations

import time

from fedshed.experiments import ComparisonSpec

KEY = "the-key"  # of the address of a live page
SMALL = ComparisonSpec(agents=4, l2=1e-2, algorithms=("fib-shed", "newton"), max_iterations=200)


def wait(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
