"""AUC of several sites from 1,000 bins: is its true error below the bound that is reported?

`python -m benchmarks auc` simulates 1,000 federations and compares each with the AUC of the pooled scores.
"""

from __future__ import annotations

import sys

import numpy as np
from msgspec import Struct
from sklearn.metrics import roc_auc_score

from fedshed.exchange.sites import LocalSites
from fedshed.inference.evaluation import evaluation_of
from fedshed.inference.roc import Measure
from fedshed.objectives.build import held_objective
from fedshed.protocol.conversation import Problem
from fedshed.solve.evaluating import BINS
from fedshed.solve.stages import evaluate
from fedshed.tables.stored import Table

LEAST = 5  # rows in each cell, as the usual policy demands


class Case(Struct, frozen=True):
    """A simulated federation: true AUC, and what was found."""

    true: float
    found: Measure
    rows: int

    @property
    def error(self) -> float:
        """By how much the AUC is wrong."""
        return abs((self.found.value or 0.0) - self.true)


def simulated(seed: int, bins: int = BINS, least: int = LEAST) -> Case:
    """Two to eight sites of 20 to 2,000 rows whose scores differ in place, spread, ties and events."""
    rng = np.random.default_rng((19, seed))
    tables = {}
    for k in range(int(rng.integers(2, 9))):
        rows = int(np.exp(rng.uniform(np.log(20), np.log(2000))))
        z = rng.normal(rng.normal(), rng.uniform(0.3, 2.0), size=rows)
        z = z.round(int(rng.integers(0, 3))) if rng.random() < 0.3 else z
        y = (rng.random(rows) < 1 / (1 + np.exp(-rng.uniform(0, 2) * z - rng.normal()))).astype(int)
        y[: 2 * LEAST] = np.arange(2 * LEAST) % 2  # as many rows of each class as the policy demands
        tables[f"site{k}"] = Table(z[:, None], y)
    objectives = {
        site: held_objective(site, table, "logistic", (0, 1), False, least) for site, table in tables.items()
    }
    weights = {site: model.weight for site, model in objectives.items()}
    problem = Problem(np.zeros(1), weights, "logistic", ("z",), False, {})
    told, _ = evaluate(LocalSites({}, held=objectives), problem, np.ones(1), bins)
    z = np.concatenate([table.X[:, 0] for table in tables.values()])
    y = np.concatenate([table.y for table in tables.values()])
    return Case(float(roc_auc_score(y, z)), evaluation_of(told, "two", classes=(0, 1)).pooled["auc"], len(y))


def main() -> None:
    """Print how often the true error is below the bound, and how large both are."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    count = numbers[0] if numbers else 1000
    for least in (1, LEAST):
        cases = [simulated(seed, BINS, least) for seed in range(count)]
        below = sum(case.error <= case.found.bound + 1e-12 for case in cases)
        errors = np.array([case.error for case in cases])
        bounds = np.array([case.found.bound for case in cases])
        print(f"cells of at least {least} rows: error within the bound in {below} of {count} cases")
        print(f"  error: median {np.median(errors):.2e}, largest {errors.max():.2e}")
        print(f"  bound: median {np.median(bounds):.2e}, largest {bounds.max():.2e}")
