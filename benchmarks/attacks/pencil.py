"""Two Hessians of the same few rows: their generalised eigenvectors are the rows (a matrix pencil)."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import scipy.linalg

from benchmarks.attacks.cuts import RULES, Vector, columns, separating_cuts
from benchmarks.attacks.master import DeniedError, Played
from benchmarks.attacks.protected import master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import Rows, patients, recovered, with_intercept
from benchmarks.attacks.target import SITE, nodes, study_file
from fedshed.linalg.arrays import unpack
from fedshed.preparation import Study
from fedshed.protocol.messages import Update

GROUP = 10  # rows in a window, as many as coefficients
OUTSIDE = 38.0  # |z| at which a row's curvature vanishes in rounding


@attack("matrix pencil", *RULES, rows=60, sizes=(200, 600))
def matrix_pencil(mode: Mode, rows: int) -> Found:
    """Windows of ten rows between two soft cuts, two Hessians for each, in an approved study."""
    frame, names = patients(rows, GROUP - 1), columns(GROUP - 1)
    study = Study(family="logistic", target="disease", columns=names)
    file = study_file(study, "newton", mode)
    with nodes({SITE: frame}, file, mode, matrix_pencil.rules) as site:
        master, found = master_of(mode, site, file), list[Rows]()
        with suppress(DeniedError):
            plan, ready = master.agree(study)
            play = master.play(plan, "newton")
            a = np.random.default_rng(1).normal(size=len(names))
            cuts = separating_cuts(play, a, ready.rows)
            for k in range(GROUP // 2, len(cuts) - GROUP // 2, 2):
                found.append(rows_of_window(play, a, cuts, k))
        truth = with_intercept(frame, names)
        return master.ear.found(rows, recovered(np.concatenate(found) if found else [], truth))


def rows_of_window(play: Played, a: Vector, cuts: Vector, k: int) -> Rows:
    """The ten rows around cut k, as far as the pencil of two Hessians tells them apart."""
    t, half = cuts[k], GROUP // 2
    steep = OUTSIDE / min(t - cuts[k - half], cuts[k + half] - t)
    theta = steep * np.append(a, -t)
    tilt = np.random.default_rng(k).normal(size=len(theta))
    H1, H2 = hessian(play, theta), hessian(play, theta + tilt)
    with suppress(scipy.linalg.LinAlgError):
        _, vectors = scipy.linalg.eig(H1, H2)
        found = np.linalg.pinv(np.real(vectors))
        return np.asarray(found / found[:, -1:])
    return np.zeros((0, len(theta)))


def hessian(play: Played, theta: Vector) -> Rows:
    """The site's Hessian at a point."""
    (answer,) = play.ask(Update(1, theta))
    return np.asarray(unpack(answer.hessian, len(theta)))
