"""Saturated cuts: where the logistic loss is saturated, a gradient is a sum over one side of a plane."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.master import DeniedError, Played
from benchmarks.attacks.protected import master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import patients, recovered, with_intercept
from benchmarks.attacks.target import SITE, nodes, study_file
from fedshed.preparation import Study
from fedshed.protocol.messages import Search, Update

Vector: TypeAlias = NDArray[np.float64]
STEEP = 1e9
FAR = 1e3  # beyond every value of a'x
MOST_STEPS = 32  # sizes of one search, as an honest one may have
RULES = ("effective rows", "deviance", "budget", "refusals")


def columns(count: int) -> tuple[str, ...]:
    """The names of the first standardised columns."""
    return tuple(f"x{j}" for j in range(count))


@attack("saturated cuts", *RULES, rows=40, sizes=(200, 2000))
def saturated_cuts(mode: Mode, rows: int) -> Found:
    """Differences of the gradients at neighbouring cuts are the rows between them, in an approved study."""
    frame, names = patients(rows), columns(5)
    study = Study(family="logistic", target="disease", columns=names)
    file = study_file(study, "lbfgs", mode)
    with nodes({SITE: frame}, file, mode, saturated_cuts.rules) as site:
        master, sums = master_of(mode, site, file), list[Vector]()
        with suppress(DeniedError):
            plan, ready = master.agree(study)
            play = master.play(plan, "lbfgs")
            a = np.random.default_rng(1).normal(size=len(names))
            cuts = separating_cuts(play, a, ready.rows)
            for cut in cuts:
                sums.append(ready.rows * gradient(play, a, cut))
        found = [one - other for one, other in pairwise(sums)]
        return master.ear.found(rows, recovered(found, with_intercept(frame, names)))


def gradient(play: Played, a: Vector, cut: float) -> Vector:
    """The mean gradient at theta = K (a, -t): a sum over the rows on the wrong side of the cut."""
    (answer,) = play.ask(Update(2, STEEP * np.append(a, -cut)))
    return np.asarray(answer.gradient)


def rows_below(play: Played, a: Vector, cuts: Vector, rows: int) -> Vector:
    """Up to a constant, how many rows have a'x < t, from the slopes of one search along the intercept."""
    n = len(a) + 1
    answers = [
        play.ask(Search(STEEP * np.append(a, 0.0), -STEEP * np.eye(n)[-1], part, True))[0]
        for part in np.split(cuts, range(MOST_STEPS, len(cuts), MOST_STEPS))
    ]
    slopes = np.concatenate([answer.slopes for answer in answers])
    if not np.isfinite(slopes).all():
        raise DeniedError("the site tells no slopes at these points")
    return np.round(rows / STEEP * slopes)


def separating_cuts(play: Played, a: Vector, rows: int) -> Vector:
    """Cuts between all neighbouring values of a'x, by bisection of the intervals that hold several rows."""
    cuts = np.array([-FAR, FAR])
    below = rows_below(play, a, cuts, rows)
    while (several := np.flatnonzero(np.diff(below) > 1)).size:
        middle = (cuts[several] + cuts[several + 1]) / 2
        more = rows_below(play, a, middle, rows)
        cuts, below = np.insert(cuts, several + 1, middle), np.insert(below, several + 1, more)
    return cuts[np.append(True, np.diff(below) > 0)]
