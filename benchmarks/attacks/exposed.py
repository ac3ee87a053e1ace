"""How well an honest fit identifies the most exposed row of a site, by its size and the algorithm.

This is the table of `fedshed.privacy.exposure`: simulated sites with standard normal columns, the largest
identifiability (`benchmarks.attacks.identify`) of a row of the first of three sites, its median over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np
from msgspec import Struct

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.identify import identifiability
from benchmarks.attacks.overhear import overheard, three_sites, told
from benchmarks.attacks.simulated import patients, with_intercept
from benchmarks.attacks.target import SITE
from fedshed.deployment.config import StudyFile
from fedshed.preparation import Study

ALGORITHMS = {"whole Hessians": "newton", "eigenpairs": "fib-shed", "gradients": "lbfgs"}
SIZES = ((30, 6), (110, 6), (110, 12), (300, 6), (300, 12), (300, 30), (1000, 6), (1000, 12), (1000, 30))
SEEDS = range(3)
RIDGE = 1e-3
RULES = ("rows", "parameters", "classes", "cells", "budget", "effective rows", "deviance", "refusals")


class Exposed(Struct, frozen=True):
    """The most exposed row of a site."""

    family: str
    rows: int
    columns: int  # of the design, the intercept included
    identifiability: float
    numbers: int  # told in the fit and in the inspection at its end


def most_exposed(algorithm: str, rows: int, n: int, seed: int) -> tuple[float, int]:
    """The largest identifiability of a row in an honest fit, and how many numbers were told of the site."""
    frames = three_sites([patients(rows, n - 1, 3 * seed + k) for k in range(3)])
    study = Study(family="logistic", target="disease", columns=columns(n - 1), l2=RIDGE)
    points, numbers = told(overheard(frames, StudyFile(study, tuple(frames), algorithm), "rule off", RULES))
    X, y = with_intercept(frames[SITE], columns(n - 1)), np.where(frames[SITE]["disease"] == 1, 1.0, -1.0)
    return float(identifiability(X, y, points).max()), len(numbers)


def measured() -> Iterator[Exposed]:
    """The table, family by family."""
    for family, algorithm in ALGORITHMS.items():
        for rows, n in SIZES:
            found = [most_exposed(algorithm, rows, n, seed) for seed in SEEDS]
            yield Exposed(family, rows, n, median(share for share, _ in found), found[0][1])


def main() -> None:
    """Print the table as it is measured."""
    print(f"{'family':16} {'rows':>6} {'columns':>8} {'rows/column':>12} {'most exposed':>13} {'numbers':>8}")
    for one in measured():
        ratio = one.rows / one.columns
        print(
            f"{one.family:16} {one.rows:6} {one.columns:8} {ratio:12.1f} "
            f"{one.identifiability:13.2f} {one.numbers:8}",
            flush=True,
        )
