"""A design of few distinct rows: gradients at soft points are linear in the counts of its cells."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks.attacks.master import DeniedError, Ear, Master
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import VISITS, Rows, patients
from benchmarks.attacks.target import SITE, nodes
from fedshed.deployment.config import StudyFile
from fedshed.exchange import Transport
from fedshed.preparation import Study
from fedshed.protocol.messages import Update

STUDY = Study(family="logistic", target="disease", columns=("visits", "sex", "smoker"))
POINTS = 30
FILE = StudyFile(STUDY, (SITE,), "lbfgs")
CEILING = 60  # numbers that one study may give, where the Master changes its name instead


def cells() -> Rows:
    """Every row that the design can have."""
    return np.array([(v, s, k, 1.0) for v, s, k in product(range(VISITS), (0, 1), (0, 1))], dtype=float)


def soft_points() -> Rows:
    """Random points at which no probability is near 0 or 1 in all cells, the steep part in each place."""
    rng = np.random.default_rng(2)
    slope = rng.uniform(0.3, 2.5, size=POINTS) * rng.choice([-1, 1], POINTS)
    middle = rng.uniform(0, VISITS - 1, POINTS)
    return np.column_stack([slope, rng.normal(size=(POINTS, 2)) * 1.5, -slope * middle])


def counts(points: Rows, answers: list[Rows], rows: int) -> Rows:
    """The rows in each cell, if enough was told to know it; else zeros.

    N f = sum_c n_c log(1 + e^z) - theta's and N g = sum_c n_c p_c x_c - s are linear in the counts n_c and in
    s, the sum of the rows with the disease.
    """
    x, told_at = cells(), points[: len(answers)]
    z = x @ told_at.T
    equations = [
        np.vstack([np.append(np.logaddexp(0, m), -theta), np.hstack([(expit(m)[:, None] * x).T, -np.eye(4)])])
        for m, theta in zip(z.T, told_at, strict=True)
    ]
    solution, _, rank, _ = np.linalg.lstsq(
        np.concatenate(equations), rows * np.concatenate(answers), rcond=1e-14
    )
    return np.round(solution[: len(x)]) if rank == len(x) + 4 else np.zeros(len(x))


def truth(frame: pd.DataFrame) -> Rows:
    """The site's own rows in each cell."""
    own = frame[["visits", "sex", "smoker"]].to_numpy(float)
    return np.array([(own == cell[:3]).all(axis=1).sum() for cell in cells()], dtype=float)


def told(site: Transport, ear: Ear, points: Rows, each: int) -> tuple[list[Rows], int]:
    """f and g at the points, `each` of them in a study of its own name, as far as the site answers."""
    answers, rows = list[Rows](), 0
    with suppress(DeniedError):
        for part in np.split(points, range(each, len(points), each)):
            master = Master(site, FILE, ear)
            plan, ready = master.agree(STUDY)
            play, rows = master.play(plan, "lbfgs"), ready.rows
            for theta in part:
                (answer,) = play.ask(Update(2, theta))
                answers.append(np.append(answer.loss, answer.gradient))
    return answers, rows


def solved(frame: pd.DataFrame, site: Transport, each: int) -> Found:
    """How many rows of the site are in cells whose count was found, if all of them were."""
    ear, points = Ear(), soft_points()
    answers, rows = told(site, ear, points, each)
    right = bool(answers) and np.array_equal(counts(points, answers, rows), truth(frame))
    return ear.found(len(frame), len(frame) if right else 0)


@attack("soft random points", "budget", rows=24, sizes=(100, 200, 1000), bounded=True)
def soft_random_points(mode: Mode, rows: int) -> Found:
    """Every row of visits x sex x smoker, by points that no rule on single points refuses."""
    frame = patients(rows)
    with nodes({SITE: frame}, FILE, mode, soft_random_points.rules) as site:
        return solved(frame, site, len(soft_points()))


@attack("study hopping, new names", "approval", "budget", rows=24, sizes=(100, 200))
def new_names(mode: Mode, rows: int) -> Found:
    """The same, in many studies of which each stays below a ceiling of its own."""
    frame, ceiling = patients(rows), {"max_scalars": CEILING}
    with nodes({SITE: frame}, FILE, mode, new_names.rules, ceiling) as site:
        return solved(frame, site, 5)
