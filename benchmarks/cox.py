"""Cox regression of 100,000 simulated rows at 20 sites: exchanges, and CPU time beside pooled fits.

    python -m benchmarks cox [ROWS]

The pooled fits are those of lifelines and statsmodels, stratified by site too.
"""

from __future__ import annotations

import sys
import warnings
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

import fedshed

ROWS, SITES, COLUMNS = 100_000, 20, 30
MOST_EXCHANGES, MOST_RATIO, NEAR = 14, 3.0, 1e-6


def simulated(rows: int) -> pd.DataFrame:
    """Weibull times with a scale of each site, a third of them censored; sites of very unequal sizes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    site = rng.choice(SITES, rows, p=np.arange(1, SITES + 1) / (SITES * (SITES + 1) / 2))
    hazard = np.exp(X @ rng.normal(scale=0.2, size=COLUMNS) + 0.1 * site)
    event, censored = rng.exponential(1 / hazard) ** 0.7, rng.exponential(2.0, rows)
    data = pd.DataFrame(X, columns=[f"x{j}" for j in range(COLUMNS)])
    return data.assign(
        time=np.minimum(event, censored),
        event=(event <= censored).astype(int),
        site=[f"s{k:02}" for k in site],
    )


def timed(run: Any) -> tuple[Any, float]:
    """What a function gives, and its CPU time in seconds, on one thread."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = process_time()
        found = run()
        return found, process_time() - start


def main() -> None:
    """Fit the same rows by all three, and compare."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    data = simulated(numbers[0] if numbers else ROWS)
    tables = {site: table.drop(columns="site") for site, table in data.groupby("site")}
    study = fedshed.Study(family="cox", time="time", event="event")
    model, ours = timed(lambda: fedshed.fit(tables, study))
    rivals = {"lifelines": _lifelines, "statsmodels": _statsmodels}
    found = {name: timed(lambda fit=fit: fit(data)) for name, fit in rivals.items()}
    fastest = min(seconds for _, seconds in found.values())
    apart = max(float(np.abs(model.inference.coef - coef).max()) for coef, _ in found.values())
    print(f"Cox regression: {len(data):,} rows, {SITES} sites, {COLUMNS} columns")
    print(f"  fedshed      {ours:7.2f} s  {model.run.exchanges} exchanges, {model.run.algorithm}")
    for name, (_, seconds) in found.items():
        print(f"  {name:<12} {seconds:7.2f} s  (pooled)")
    print(f"  ratio to the fastest pooled fit {ours / fastest:.2f}, coefficients within {apart:.1e}")
    kept = model.run.exchanges <= MOST_EXCHANGES and ours <= MOST_RATIO * fastest and apart < NEAR
    print(f"  asked: {MOST_EXCHANGES} exchanges, ratio {MOST_RATIO}: {'kept' if kept else 'NOT KEPT'}")


def _lifelines(data: pd.DataFrame) -> Any:
    from lifelines import CoxPHFitter

    return CoxPHFitter().fit(data, "time", "event", strata="site").params_.to_numpy()


def _statsmodels(data: pd.DataFrame) -> Any:
    from statsmodels.duration.hazard_regression import PHReg

    X = data.drop(columns=["time", "event", "site"])
    return PHReg(data.time, X, status=data.event, strata=data.site, ties="efron").fit().params
