"""Study hopping: what one study does not tell, the difference between two studies does."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd

from benchmarks.attacks.cuts import columns
from benchmarks.attacks.master import DeniedError, Ear
from benchmarks.attacks.protected import master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import Rows, patients, recovered, with_intercept
from benchmarks.attacks.target import SITE, cover, nodes
from fedshed.deployment.config import StudyFile
from fedshed.exchange import Transport
from fedshed.preparation import Study
from fedshed.protocol.messages import Update

MISSED = 5


def with_gaps(rows: int) -> pd.DataFrame:
    """Patients with columns m0, m1, ..., each of which is missing in one row, another one each time."""
    frame = patients(rows)
    for j in range(MISSED):
        frame[f"m{j}"] = (np.arange(rows) % (rows // 4)).astype(float)
        frame.loc[3 * j, f"m{j}"] = np.nan
    return frame


def total_gradient(mode: Mode, site: Transport, study: Study, name: StudyFile | None, ear: Ear) -> Rows:
    """The sum of gradients over the rows of a study, at theta = 0."""
    master = master_of(mode, site, name, ear)
    plan, ready = master.agree(study)
    (answer,) = master.play(plan, "lbfgs").ask(Update(2, np.zeros(len(plan.coefficients))))
    return np.asarray(ready.rows * answer.gradient)


@attack("study hopping, one row less", "approval", "budget", "refusals", rows=40, sizes=(200,))
def one_row_less(mode: Mode, rows: int) -> Found:
    """The same model with another column beside it, whose missing value drops one row."""
    frame, names = with_gaps(rows), columns(5)
    study = Study(family="logistic", target="disease", columns=names, missing="drop")
    others = [
        Study(family="logistic", target="disease", columns=names, missing="drop", cluster=f"m{j}")
        for j in range(MISSED)
    ]
    file = StudyFile(study, (SITE,), "lbfgs")
    with nodes({SITE: frame}, file, mode, one_row_less.rules) as site:
        ear, found, name = Ear(), [], cover(mode, file)
        with suppress(DeniedError):
            whole = total_gradient(mode, site, study, name, ear)
            for other in others:
                row = whole - total_gradient(mode, site, other, name, ear)
                found.append(row / row[-1])
    return ear.found(rows, recovered(found, with_intercept(frame, names)))
