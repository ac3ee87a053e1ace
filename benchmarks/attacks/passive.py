"""Passive reconstruction: the rows that fit all that a site told in an honest fit (Levenberg-Marquardt)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.master import Ear
from benchmarks.attacks.overhear import overheard, three_sites, told
from benchmarks.attacks.sensitivity import Array, Told, jacobian, values
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import laboratory, patients, recovered, with_intercept
from benchmarks.attacks.target import SITE, split
from fedshed.deployment.config import StudyFile
from fedshed.preparation import Study

RIDGE = 1e-3
NOISE = (1e-4, 1e-8, 1e-12, 1e-16)  # variances of what is told, from coarse to fine
EVALUATIONS = 60  # of the model at each of them
STARTS = 12
DRAWS = 300  # of rows before anything is told, whose numbers say how each varies
EXACT = 1e-6  # sum of squares at which all that was told is met


class Puzzle:
    """What a site of so many rows has told, to be met by rows that are drawn from the standard normal."""

    def __init__(self, points: list[Told], numbers: Array, rows: int, positives: int) -> None:
        self.points, self.numbers, self.rows = points, numbers, rows
        self.y = np.where(np.arange(rows) < positives, 1.0, -1.0)  # the order of rows says nothing
        self.free = len(points[0].theta) - 1
        rng = np.random.default_rng(0)
        drawn = [values(self.full(self.start(rng)), self.y, points) for _ in range(DRAWS)]
        variances, self._axes = np.linalg.eigh(np.cov(np.array(drawn).T))
        self._variances = np.maximum(variances, 0.0)

    def start(self, rng: np.random.Generator) -> Array:
        """Random rows, as one vector."""
        return rng.normal(size=self.rows * self.free)

    def full(self, x: Array) -> Array:
        """The rows of a vector, with the intercept."""
        return np.column_stack([x.reshape(self.rows, self.free), np.ones(self.rows)])

    def solve(self, start: Array) -> tuple[Array, float]:
        """Rows that meet what was told, first roughly and then exactly; and what is left."""
        x, left = start, np.inf
        method = "lm" if len(self.numbers) >= len(start) else "trf"
        for noise in NOISE:
            white = (self._axes / np.sqrt(self._variances + noise)).T
            error, slope = partial(self._error, white), partial(self._slope, white)
            found: Any = least_squares(error, x, slope, method=method, max_nfev=EVALUATIONS)
            x, left = found.x, 2 * found.cost
        return self.full(x), left

    def _error(self, white: Array, x: Array) -> Array:
        """What is left, in units in which it is noise."""
        return np.asarray(white @ (values(self.full(x), self.y, self.points) - self.numbers))

    def _slope(self, white: Array, x: Array) -> Array:
        """Its derivatives by the entries of the rows."""
        J = jacobian(self.full(x), self.y, self.points, self.rows)
        return np.asarray(white @ J.reshape(len(white), -1))


def puzzle_of(ear: Ear, rows: int) -> Puzzle | None:
    """What was overheard of a site as a puzzle, without mere costs; None if it told too little."""
    points, numbers = told(ear)
    ends = np.cumsum([point.numbers for point in points])
    parts = np.split(numbers, ends[:-1]) if points else []
    curved = [(point, part) for point, part in zip(points, parts, strict=True) if point.whole]
    if len(curved) < 2:
        return None
    first, gradient = curved[0][0].theta, curved[0][1][1 : 1 + len(curved[0][0].theta)]
    share = 1 / (1 + np.exp(-first[-1]))  # at the null model all rows have the same probability
    positives = round(rows * (share - gradient[-1]))
    return Puzzle(
        [point for point, _ in curved], np.concatenate([part for _, part in curved]), rows, positives
    )


def reconstructed(ear: Ear, truth: Array, starts: int = STARTS) -> int:
    """The most rows that one of several starts recovers; one that meets everything is the last."""
    puzzle, most = puzzle_of(ear, len(truth)), 0
    for k in range(starts if puzzle else 0):
        assert puzzle is not None
        rows, left = puzzle.solve(puzzle.start(np.random.default_rng(k)))
        most = max(most, recovered(rows, truth))
        if left < EXACT:
            break
    return most


def newton_fit(
    made: Callable[[int, int, int], pd.DataFrame], rows: int, n: int, mode: Mode, rules: tuple[str, ...]
) -> tuple[Ear, Array]:
    """An honest Newton fit of three sites, overheard, and the rows of the first.

    In protected mode nothing but the rules of the attack can help against what sums over few rows tell: they
    are kept, and hold for the rows of all sites.
    """
    frames = three_sites([made(rows, n - 1, seed) for seed in range(3)])
    attacked = with_intercept(frames[SITE], columns(n - 1))
    if mode == "protected":  # the sums are over as many rows as one site has in plain mode
        frames = split(frames[SITE])
    study = Study(family="logistic", target="disease", columns=columns(n - 1), l2=RIDGE)
    ear = overheard(frames, StudyFile(study, tuple(frames), "newton"), mode, rules, kept=rules)
    return ear, attacked


@attack("passive reconstruction, n = 5", "parameters", "budget", rows=10, bounded=True)
def ten_rows(mode: Mode, rows: int) -> Found:
    """All rows of a site of ten, from an honest Newton fit of 5 coefficients."""
    ear, truth = newton_fit(patients, rows, 5, mode, ten_rows.rules)
    return ear.found(rows, reconstructed(ear, truth))


@attack("passive reconstruction, n = 6", "budget", rows=30, sizes=(60,), bounded=True)
def thirty_rows(mode: Mode, rows: int) -> Found:
    """All rows of a site of thirty, from an honest Newton fit of 6 coefficients; columns have heavy tails."""
    ear, truth = newton_fit(laboratory, rows, 6, mode, thirty_rows.rules)
    return ear.found(rows, reconstructed(ear, truth))
