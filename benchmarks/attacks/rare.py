"""Rare outcomes: in an honest study of numbers, one case at a site is the gradient's only odd row."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.master import Ear
from benchmarks.attacks.overhear import first_update, overheard, ready_of, three_sites
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import Rows, patients, recovered, with_intercept
from fedshed.deployment.config import StudyFile
from fedshed.linalg.arrays import unpack
from fedshed.preparation import Study

NAMES = columns(5)


def one_case(rows: int) -> dict[str, pd.DataFrame]:
    """A site with one case of the outcome, and two where it is common."""
    here = patients(rows).drop(columns="disease").rename(columns={"rare": "disease"})
    return three_sites((here, patients(rows, seed=1), patients(rows, seed=2)))


def overheard_fit(family: str, mode: Mode, rows: int, rules: tuple[str, ...]) -> tuple[Ear, Rows]:
    """An honest Newton fit of the outcome, and the rows of the site with one case."""
    frames = one_case(rows)
    study = Study(family=family, target="disease", columns=NAMES)
    ear = overheard(frames, StudyFile(study, tuple(frames), "newton"), mode, rules)
    return ear, with_intercept(frames["site"], NAMES)


@attack("rare outcome, linear", "classes", rows=40, sizes=(200, 1000))
def rare_linear(mode: Mode, rows: int) -> Found:
    """The linear family: -N g(0) = sum of y x is that patient's row, and g(0) = g - H theta."""
    ear, truth = overheard_fit("linear", mode, rows, rare_linear.rules)
    ready = ready_of(ear)
    cases = [
        -ready.rows * (answer.gradient - unpack(answer.hessian, 6) @ theta)
        for theta, answer in (first_update(ear) if ready else ())
    ]
    return ear.found(rows, recovered(cases, truth))


@attack("rare outcome, Poisson", "classes", rows=40, sizes=(200, 1000))
def rare_poisson(mode: Mode, rows: int) -> Found:
    """The Poisson family: at the null model N g = mu sum of x - sum of y x, and the means are known."""
    ear, truth = overheard_fit("poisson", mode, rows, rare_poisson.rules)
    ready = ready_of(ear)
    if ready is None or ready.means is None:
        return ear.found(rows, 0)
    N, means = ready.rows, np.append(ready.means, 1.0)
    cases = [N * (np.exp(theta[-1]) * means - answer.gradient) for theta, answer in first_update(ear)]
    return ear.found(rows, recovered(cases, truth))
