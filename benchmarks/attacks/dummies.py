"""A formula that is huge in one row and nothing elsewhere: its column's sum is that person's value."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd

from benchmarks.attacks.master import DeniedError, Master
from benchmarks.attacks.oracles import APPROVED
from benchmarks.attacks.protected import master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import Rows, patients, recovered
from benchmarks.attacks.target import SITE, cover, nodes
from fedshed.preparation import DesignPlan, Study
from fedshed.preparation.formulas import formula_of
from fedshed.preparation.messages import Build

SOFT = 1e-14
KNOWN = 20  # patients whose age and bmi the Master knows
WANTED = ("x0", "x1", "x2", "x3")


@attack("soft dummies", "approval", "budget", "refusals", "cells", rows=40, sizes=(200,))
def soft_dummies(mode: Mode, rows: int) -> Found:
    """Twenty patients whose age and bmi the Master knows: sums for standardising give their other values."""
    frame = patients(rows)
    with nodes({SITE: frame}, APPROVED, mode, soft_dummies.rules) as site:
        master, found = master_of(mode, site, cover(mode, APPROVED)), []
        for _, person in frame.head(KNOWN).iterrows():
            with suppress(DeniedError):
                found.append(values_of(master, person))
    return master.ear.found(rows, recovered(found, frame[list(WANTED)].to_numpy(float)))


def values_of(master: Master, person: pd.Series) -> Rows:
    """What the sums of soft dummies tell of one person."""
    near = f"({SOFT} + (age - {person['age']!r}) ** 2 + (bmi - {person['bmi']!r}) ** 2)"
    terms = " + ".join(f"I({name} / {near})" for name in WANTED)
    study = Study(family="logistic", formula=f"disease ~ {terms}", standardize=True)
    plan = DesignPlan(study, formula_of(study).columns, {}, classes=(0, 1))
    return np.asarray(master.prepare(Build(plan)).sums) * SOFT
