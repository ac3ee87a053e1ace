"""A design of few distinct rows: gradients at soft points are linear in the counts of its cells."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np
import pandas as pd
from msgspec.structs import replace
from scipy.special import expit

from benchmarks.attacks.master import DeniedError, Ear
from benchmarks.attacks.protected import Sums, master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import VISITS, YES_NO, Rows, patients
from benchmarks.attacks.target import SITE, Protected, nodes
from fedshed._utils.errors import Error
from fedshed.deployment.config import StudyFile
from fedshed.exchange import Transport
from fedshed.preparation import Study
from fedshed.protocol.messages import Update
from fedshed.solve.stages import FIT

COLUMNS = ("visits", *YES_NO)
STUDY = Study(family="logistic", target="disease", columns=COLUMNS)
FILE = StudyFile(STUDY, (SITE,), "lbfgs")
POINTS = 40
CEILING = 60  # numbers that one study may give, where the Master changes its name instead


def cells() -> Rows:
    """Every row that the design can have."""
    grid = np.array(list(product(range(VISITS), *[(0, 1)] * len(YES_NO))), dtype=float)
    return np.column_stack([grid, np.ones(len(grid))])


def soft_points() -> Rows:
    """Random points at which all probabilities are moderate, the steepest part in each place."""
    rng = np.random.default_rng(2)
    slope = rng.uniform(0.1, 0.35, size=POINTS) * rng.choice([-1, 1], POINTS)
    others = 0.5 * rng.normal(size=(POINTS, len(YES_NO)))
    middle = slope * rng.uniform(0.3, 0.7, POINTS) * (VISITS - 1) + others.sum(axis=1) / 2
    return np.column_stack([slope, others, -middle])


def counts(points: Rows, answers: list[Rows], rows: int) -> Rows:
    """The rows in each cell, if enough was told to know it; else zeros.

    N f = sum_c n_c log(1 + e^z) - theta's and N g = sum_c n_c p_c x_c - s are linear in the counts n_c and in
    s, the sum of the rows with the disease.
    """
    x, told_at = cells(), points[: len(answers)]
    identity = -np.eye(x.shape[1])
    equations = [
        np.vstack([np.append(np.logaddexp(0, z), -theta), np.hstack([(expit(z)[:, None] * x).T, identity])])
        for z, theta in zip((x @ told_at.T).T, told_at, strict=True)
    ]
    A, b = np.concatenate(equations), rows * np.concatenate(answers)
    solution, _, rank, _ = np.linalg.lstsq(A, b, rcond=1e-15)
    return np.round(solution[: len(x)]) if rank == A.shape[1] else np.zeros(len(x))


def truth(frame: pd.DataFrame) -> Rows:
    """The site's own rows in each cell."""
    own = frame[list(COLUMNS)].to_numpy(float)
    return np.array([(own == cell[:-1]).all(axis=1).sum() for cell in cells()], dtype=float)


def asked_at(mode: Mode, site: Transport, ear: Ear, points: Rows, each: int) -> tuple[list[Rows], int]:
    """f and g at the points, `each` of them in a study of its own name, as far as the site answers."""
    answers, rows = list[Rows](), 0
    with suppress(DeniedError):
        for k, part in enumerate(np.split(points, range(each, len(points), each))):
            other = replace(FILE, max_iterations=FILE.max_iterations + k)  # has another name
            master = master_of(mode, site, other, ear)
            plan, ready = master.agree(STUDY)
            play, rows = master.play(plan, "lbfgs"), ready.rows
            for theta in part:
                (answer,) = play.ask(Update(2, theta))
                answers.append(np.append(answer.loss, answer.gradient))
    return answers, rows


def overheard_at(site: Protected, ear: Ear) -> tuple[Rows, list[Rows]]:
    """The points of the honest fit, and the sums of f and g there."""
    with suppress(Error):
        Sums(site, ear).fit_all()
    said = (one for one in ear.said if one.stage == FIT)
    updates = [one for one in said if getattr(one.answer, "gradient", None) is not None]
    answers = [np.append(one.answer.loss, one.answer.gradient) for one in updates]
    return np.array([one.asked.theta for one in updates]), answers


def solved(mode: Mode, frame: pd.DataFrame, site: Transport, each: int) -> Found:
    """How many rows of the site are in cells whose count was found, if all of them were.

    A Master that is answered at no point of its own makes do with those of the honest fit.
    """
    ear, points = Ear(), soft_points()
    answers, rows = asked_at(mode, site, ear, points, each)
    if isinstance(site, Protected) and not answers and each == POINTS:
        points, answers = overheard_at(site, ear)
        rows = len(frame)
    right = bool(answers) and np.array_equal(counts(points, answers, rows), truth(frame))
    return ear.found(len(frame), len(frame) if right else 0)


@attack("soft random points", "budget", rows=30, sizes=(60, 100, 1000), bounded=True)
def soft_random_points(mode: Mode, rows: int) -> Found:
    """Every row of visits and four yes-no columns, by points that no rule on single points refuses."""
    frame = patients(rows)
    with nodes({SITE: frame}, FILE, mode, soft_random_points.rules) as site:
        return solved(mode, frame, site, len(soft_points()))


@attack("study hopping, new names", "approval", "budget", rows=30, sizes=(100, 1000))
def new_names(mode: Mode, rows: int) -> Found:
    """The same, in many studies of which each stays below a ceiling of its own."""
    frame, ceiling = patients(rows), {"max_scalars": CEILING}
    with nodes({SITE: frame}, FILE, mode, new_names.rules, ceiling) as site:
        return solved(mode, frame, site, 5)
