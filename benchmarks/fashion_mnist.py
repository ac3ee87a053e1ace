"""Fib-SHED on Fashion-MNIST, non-i.i.d., mu = 1e-5 (docs/paper.md 11): iterations, Hessians, seconds.

The yardstick is exact Newton in the same run.  Target: 228 +- 15 iterations, 10 or 11 Hessians, under 10 s.
"""

from __future__ import annotations

from statistics import median

import fedshed

MU, GAP, REPEATS = 1e-5, 1e-11, 3


def main() -> None:
    federation = fedshed.datasets.load("fashion-mnist")
    _, f_star = fedshed.optimum(federation, l2=MU)
    print(f"Fashion-MNIST, {len(federation.sites)} agents, two-class, mu = {MU:g}, f* = {f_star:.4f}")
    for name in ("fib-shed", "newton"):
        runs = [
            fedshed.optimize(federation, algorithm=name, l2=MU, f_star=f_star).trace.first_below(GAP)
            for _ in range(REPEATS)
        ]
        row = runs[0]
        assert row is not None
        print(
            f"{name:10} {row.iteration:4} iterations {row.rounds:4} rounds {row.hessians:5.1f} Hessians "
            f"{row.uplink_bytes / len(federation.sites) / 1000:8.0f} KB up per agent "
            f"{median(run.seconds for run in runs if run):6.2f} s (median of {REPEATS})"
        )
