"""The evaluation of a study's model on the rows that the study holds out."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

from fedshed._utils.errors import Error
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.fitting.sites import TableSites
from fedshed.inference.evaluation import Evaluation, evaluation_of
from fedshed.objectives import Family, family_of
from fedshed.preparation import DesignPlan
from fedshed.protocol.conversation import Problem
from fedshed.solve.evaluating import BINS
from fedshed.solve.run import Result
from fedshed.solve.stages import evaluate

KINDS: dict[str, Any] = {"two": "two", "many": "many", "ordered": "many", "none": "number"}
FAR = 700.0  # a linear predictor beyond those of all probabilities
EXACT = 0  # bins: every score is one


def cut_of(family: Family, threshold: float) -> float:
    """The linear predictor of two classes at which the probability is the threshold; 0 of other families."""
    if family.classes != "two":
        return 0.0
    if family.link == "logit":
        return float(np.log(threshold / (1 - threshold)))
    return float(brentq(lambda z: float(family.mean(np.array([z]))[0]) - threshold, -FAR, FAR, xtol=1e-13))


def evaluate_held(
    plan: DesignPlan, problem: Problem, sites: Sites, result: Result, tables: TableSites, patience: int
) -> tuple[Evaluation | None, Traffic]:
    """The evaluation on the rows held out, and its traffic; None if the fit did not converge.

    If a site refuses, the evaluation ends with its reason as a note, and the study continues.
    """
    study = plan.study
    if study.holdout is None or not result.converged:
        return None, Traffic()
    about = (
        f"rows of column {study.holdout!r}"
        if isinstance(study.holdout, str)
        else f"{study.holdout:.0%} of rows"
    )
    kind, alone = KINDS[family_of(study.loss).classes], not study.protected
    bins, cut = EXACT if tables.one_process else BINS, cut_of(family_of(study.loss), 0.5)
    try:
        told, traffic = evaluate(sites, problem, result.theta, bins, cut, alone, patience=patience)
    except Error as error:
        if study.protected:
            raise
        refused = Evaluation(
            about=f"{about}, held out", kind=kind, rows=0, pooled={}, notes=(f"Refused: {error}",)
        )
        return refused, Traffic()
    found = evaluation_of(
        told, kind, classes=plan.shown_classes, about=f"{about}, held out", alone=alone,
        exchanges=traffic.exchanges,
    )  # fmt: skip
    return found, traffic
