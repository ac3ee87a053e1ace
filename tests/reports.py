"""Reports shared by the tests: a small comparison, and made-up runs of any length and any name."""

from __future__ import annotations

import numpy as np

import fedshed
from fedshed.experiments import ComparisonSpec
from fedshed.experiments.sources import of_comparison
from fedshed.report import Agent, Coefficient, Fit, Problem, Recorder, Report, Rerun, Run
from fedshed.report.fitted import of_model
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


def fitted_report() -> tuple:
    """A logistic model over three sites with rows held out, and its report; one name is long."""
    rng, tables = np.random.default_rng(1), {}
    for site, count in (("north", 300), ("south_of_the_long_river_hospital", 150), ("west", 90)):
        age, dose = rng.normal(60, 11, count), rng.normal(0.004, 0.001, count)
        stage, smoker = rng.choice(["I", "II", "III"], count), rng.integers(0, 2, count)
        z = 0.05 * (age - 60) + 500 * (dose - 0.004) + 0.9 * smoker + 0.5 * (stage == "III") - 0.5
        tables[site] = {
            "age": age, "dose_at_admission_in_grams_per_day": dose, "stage": stage, "smoker": smoker,
            "ill": (z + rng.logistic(size=count) > 0).astype(int),
        }  # fmt: skip
    recorder = Recorder()
    study = fedshed.Study(family="logistic", target="ill", holdout=0.3)
    model = fedshed.fit(tables, study, algorithm="fib-shed", watch=recorder)
    return model, of_model(model, recorder, RERUN, model.summary())


FIT = Fit(
    (Coefficient("age", 0.5, 0.1, 0.3, 0.7, 1e-6), Coefficient(EVIL, -1.0)),
    summary="n = 100 <rows>",
    level=0.9,
)
