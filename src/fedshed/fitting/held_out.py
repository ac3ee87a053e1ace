"""The evaluation of a study's model on the rows that the study holds out."""

from __future__ import annotations

from typing import Any

from fedshed._utils.errors import Error
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.fitting.sites import TableSites
from fedshed.inference.evaluation import Evaluation, evaluation_of
from fedshed.objectives import family_of
from fedshed.preparation import DesignPlan
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import settled
from fedshed.solve.evaluating import BINS
from fedshed.solve.run import Result
from fedshed.solve.stages import evaluate

KINDS: dict[str, Any] = {"two": "two", "many": "many", "none": "number"}
EXACT = 0  # bins: every score is one


def evaluate_held(
    plan: DesignPlan, problem: Problem, sites: Sites, result: Result, tables: TableSites, patience: int
) -> tuple[Evaluation | None, Traffic]:
    """Measures on the rows held out, and what they cost; none where the fit did not converge.

    A site that refuses ends the evaluation, with its reason as a note, and not the study.
    """
    study = plan.study
    if study.holdout is None or not settled(result.converged, result.reason):
        return None, Traffic()
    about = (
        f"rows of column {study.holdout!r}"
        if isinstance(study.holdout, str)
        else f"{study.holdout:.0%} of rows"
    )
    kind, alone = KINDS[family_of(study.loss).classes], not study.protected
    bins = EXACT if tables.one_process else BINS
    try:
        told, traffic = evaluate(sites, problem, result.theta, bins, 0.0, alone, patience=patience)
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
