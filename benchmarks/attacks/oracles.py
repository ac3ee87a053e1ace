"""Refusals and bounds that answer yes or no: enough of them spell out a person."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from benchmarks.attacks.master import DeniedError, Master
from benchmarks.attacks.protected import master_of
from benchmarks.attacks.shape import Found, Mode, attack
from benchmarks.attacks.simulated import NEAR, patients, recovered
from benchmarks.attacks.target import SITE, cover, nodes
from fedshed._utils.errors import ConfigError
from fedshed.deployment.config import StudyFile
from fedshed.preparation import DesignPlan, Study
from fedshed.preparation.formulas import formula_of
from fedshed.preparation.messages import Build, Describe

APPROVED = StudyFile(Study(family="logistic", target="disease", columns=("x0", "age")), (SITE,))
BITS = 26


def defined(master: Master, formula: str) -> bool:
    """Whether a formula is defined in all rows of the site, as its refusal to build it tells."""
    study = Study(family="logistic", formula=formula)
    plan = DesignPlan(study, formula_of(study).columns, {}, classes=(0, 1))
    try:
        master.prepare(Build(plan))
    except (DeniedError, ConfigError):
        return False
    return True


def bisected(below: Callable[[float], bool], low: float, high: float) -> float | None:
    """The number up to which `below` holds; None where its answer never changes."""
    if below(high) or not below(low):
        return None
    for _ in range(BITS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def least(master: Master, expression: str) -> float | None:
    """The least value of an expression over the rows: log(expression - c) is defined for smaller c only."""
    return bisected(lambda c: defined(master, f"disease ~ log({expression} - ({c!r}))"), -200.0, 200.0)


@attack("refusal oracle", "approval", "budget", "refusals", "cells", rows=40, sizes=(200,))
def refusal_oracle(mode: Mode, rows: int) -> Found:
    """The youngest patient's age, then each of the other values, by formulas that may be undefined."""
    frame = patients(rows)
    names = ["age", "bmi", "x0", "x1"]
    with nodes({SITE: frame}, APPROVED, mode, refusal_oracle.rules) as site:
        master = master_of(mode, site, cover(mode, APPROVED))
        age = least(master, "age")
        where = None if age is None else f"1e9 * (age - {round(age)}) ** 2"
        others = [least(master, f"{where} + {name}") for name in names[1:]] if where else [None] * 3
        row = np.array([np.nan if value is None else value for value in (age, *others)])
        return master.ear.found(rows, recovered(row, frame[names].to_numpy(float)))


@attack("spline bounds", "approval", "budget", "refusals", rows=40, sizes=(200,))
def spline_bounds(mode: Mode, rows: int) -> Found:
    """The minimum and the maximum of a column: a spline is not defined beyond the bounds it is given."""
    frame = patients(rows)
    term = "disease ~ bs(x0, knots=[{knot}], lower_bound={low!r}, upper_bound={high!r})"
    with nodes({SITE: frame}, APPROVED, mode, spline_bounds.rules) as site:
        master = master_of(mode, site, cover(mode, APPROVED))
        low = bisected(lambda c: defined(master, term.format(knot=100.0, low=c, high=200.0)), -200.0, 50.0)
        high = bisected(
            lambda c: defined(master, term.format(knot=-100.0, low=-200.0, high=-c)), -200.0, 50.0
        )
        ends = np.array([np.nan if low is None else low, np.nan if high is None else -high])
    truth = np.array([frame["x0"].min(), frame["x0"].max()])
    return master.ear.found(rows, int((np.abs(ends - truth) <= NEAR * np.abs(truth)).sum()))


@attack("membership by positive", "approval", "budget", "refusals", rows=40, sizes=(200,))
def positive_membership(mode: Mode, rows: int) -> Found:
    """Whether anyone at the site is of a given age: a study of that age is answered otherwise."""
    frame = patients(rows)
    ages = range(18, 100, 6 if mode == "protected" else 1)  # where each costs the sites a run of their own
    with nodes({SITE: frame}, APPROVED, mode, positive_membership.rules) as site:
        master = master_of(mode, site, cover(mode, APPROVED))
        absent = [age for age in ages if _answered(master, age)]
    said = set(ages) - set(absent)
    return master.ear.found(rows, int(frame["age"].isin(said).sum()) if absent else 0)


def _answered(master: Master, age: int) -> bool:
    """Whether the site describes a study of one age; it refuses where few are of that age."""
    with suppress(DeniedError):
        study = Study(family="logistic", target="age", positive=(age,), columns=("x0",))
        return master.prepare(Describe(study)).labels == (False,)
    return False
