"""Reports shared by the tests: a small comparison, and made-up runs of any length and any name."""

from __future__ import annotations

import numpy as np

from fedshed.experiments import ComparisonSpec
from fedshed.experiments.sources import of_comparison
from fedshed.report import Agent, Coefficient, Fit, Problem, Report, Rerun, Run
from fedshed.solve.trace import Row

NAMES = ("fib-shed", "gn-shed+", "newton", "lbfgs")
STUDY = ComparisonSpec(
    agents=6, partition="two-class", l2=1e-3, algorithms=NAMES, max_iterations=40
).resolved()
RERUN = Rerun("fedshed compare", 0, {"digits": "0123"}, {"fedshed": "0"})
EVIL = "<script>document.title='owned'</script>&amp;<b>\"'</script x><!--<script \u2028"


def compared() -> tuple:
    """A comparison, what was recorded of it, and its report."""
    comparison = STUDY.run()
    return comparison, comparison.trials[0].recorders, of_comparison(comparison)


def rows(gaps, renewed=lambda t: 0) -> list[Row]:
    """A trace with these gaps."""
    return [
        Row(
            iteration=t, rounds=2 * t, exchanges=2 * t + 1, uplink_bytes=4000 * t, downlink_bytes=5000 * t,
            uplink_vectors=1.5 * t, hessians=t / 8, f=gap, gap=gap, grad_norm=float(np.sqrt(abs(gap))),
            eta=1.0 if t else None, renewed=renewed(t), q_max=t % 40, seconds=t / 300,
        )
        for t, gap in enumerate(map(float, gaps))
    ]  # fmt: skip


def report(
    *runs: Run, agents: tuple[Agent, ...] = (), title: str = "a problem", fit: Fit | None = None
) -> Report:
    """A report of one problem."""
    return Report(title, (Problem(title, runs, max(1, len(agents)), agents),), RERUN, fit)


def bumpy(length: int, seed: int = 0) -> np.ndarray:
    """Gaps that fall from 1 to 1e-14, not always."""
    noise = np.random.default_rng(seed).uniform(-1, 1, length)
    return 10.0 ** (np.linspace(0, -14, length) + noise)


FIT = Fit(
    (Coefficient("age", 0.5, 0.1, 0.3, 0.7, 1e-6), Coefficient(EVIL, -1.0)),
    summary="n = 100 <rows>",
    level=0.9,
)
