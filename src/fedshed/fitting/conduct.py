"""`conduct`: a whole study over sites wherever they are, from their tables to the pooled model.

Four conversations: the preparation (schemas, levels, checks), the start (a few sums), the fit (gradients and
curvature), and the inspection (exact curvature once, and whether what was found is an optimum).
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import Error
from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.linesearch import Fused, TwoExchange
from fedshed.exchange.sites import LocalSites, Sites
from fedshed.exchange.wire import SilenceError, Traffic
from fedshed.fitting.model import Model, Run
from fedshed.fitting.sites import TableSites
from fedshed.inference import Inference, gather, infer_from, per_class
from fedshed.inference.infer import Evidence
from fedshed.objectives import coefficient_names, family_of
from fedshed.preparation import DesignPlan, Study, negotiate
from fedshed.preparation.messages import Ready
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Problem
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve import validation as checks
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Progress, settled
from fedshed.solve.goal import Goal
from fedshed.solve.inspection import newton_step
from fedshed.solve.run import Result, Watch, conclude, run
from fedshed.solve.separation import along, separated, separating
from fedshed.solve.stages import decreases_without_bound, fit_stage, null_start


class Conducted(Struct, frozen=True):
    """The model, and the run it comes from."""

    model: Model
    result: Result


def conduct(
    study: Study, tables: TableSites, goal: Goal, *, algorithm: str | Algorithm[Any] = "auto",
    budget: Budget = None, fused: bool = False, seed: int = 0, checkpoint: Path | None = None,
    watch: Watch | None = None,
) -> Conducted:  # fmt: skip
    """The model of all rows of all sites; a fit that was cut off goes on from its checkpoint.

    `fused` asks for costs and update in one exchange where the algorithm would take two: the same iterates.
    """
    with threadpool_limits(1):  # the same bits on any machine with this BLAS
        with tables.prepare() as transport:
            stateless = transport.stateless
            plan, ready, agreed = negotiate(study, transport, tables.names, goal.patience)
        problem = problem_of(plan, ready, stateless)
        links = tables.budget() if budget is None else budget
        chosen, why = checks.choose_algorithm(algorithm, links, None, seed, problem, stateless)
        chosen = with_one_exchange(chosen) if fused else chosen
        sites = tables.play(plan, problem, chosen)
        result = replace(_fit(study, plan, problem, chosen, sites, goal, checkpoint, watch), algorithm=why)
        if any(contact.silent >= goal.patience for contact in result.sites.values()):
            conclude(result, watch)
            raise SilenceError(result.reason)  # a checkpoint stays: the study can be started again
        try:
            evidence = gather(sites, problem, result.theta, goal.patience)
            inference = infer_from(problem, result.theta, evidence)
            result, spent = _checked(problem, result, evidence, inference, sites, goal)
        except Error as error:
            conclude(replace(result, converged=False, reason=str(error)), watch)
            raise
        conclude(result, watch)
    told = Traffic(downlink_bytes=tables.told())
    inference = replace(inference, traffic=spent)
    return Conducted(assemble_model(plan, result, inference, agreed, spent, told), result)


def problem_of(plan: DesignPlan, ready: dict[str, Ready], stateless: bool) -> Problem:
    """The problem as the Master sees it."""
    contrasts = family_of(plan.study.loss).contrasts(len(plan.classes or ()))
    columns = coefficient_names(plan.names, plan.intercept, contrasts)
    weights = {site: each.weight for site, each in ready.items()}
    return Problem(np.tile(plan.l2(), contrasts), weights, plan.study.loss, columns, stateless)


def with_one_exchange(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The algorithm with costs and update in one exchange, where it searches in two."""
    if isinstance(getattr(algorithm, "line_search", None), TwoExchange):
        return replace(algorithm, line_search=Fused())
    return algorithm


def _fit(
    study: Study, plan: DesignPlan, problem: Problem, algorithm: Algorithm[Any], sites: Sites, goal: Goal,
    checkpoint: Path | None, watch: Watch | None,
) -> Result:  # fmt: skip
    """The run, from the model without columns or from where it was cut off."""
    data = blake2b(encode((study, problem)), digest_size=16).hexdigest()
    settings = Settings(problem.loss, problem.l2, False, goal)
    saver = None if checkpoint is None else Checkpoint(checkpoint, algorithm, settings, data)
    if checkpoint is not None and checkpoint.exists():
        _, _, progress = checkpoints.load(checkpoint, data, algorithm)
        progress = replace(progress, state=algorithm.assume_forgotten(progress.state))
    else:
        theta, spent = np.zeros(problem.n), Traffic()
        if plan.intercept:
            theta, spent = null_start(sites, problem, goal.patience)
        progress = Progress(algorithm.start(problem, theta), spent, rows=[])
    with sites.open(fit_stage(algorithm)) as transport:
        checks.reachable(transport, problem.agents)
        problem = replace(problem, stateless=transport.stateless)
        return run(algorithm, problem, transport, progress, goal, saver, watch)


def _checked(
    problem: Problem, result: Result, evidence: Evidence, inference: Inference, sites: Sites, goal: Goal
) -> tuple[Result, Traffic]:
    """Whether a run ended at the one optimum, as exact curvature shows; without a ridge there may be none."""
    spent, why, names = evidence.traffic, None, tuple[str, ...]()
    ended = settled(result.converged, result.reason)
    free = not problem.l2.all()
    if free and isinstance(sites, LocalSites):  # the rows are at hand: a linear program decides
        names = separating(sites.objectives, problem, result.theta)
    elif free and ended:
        H, step = newton_step(problem, result.theta, evidence.sites)
        if family_of(problem.loss).objective.can_recede:
            unbounded, spent = decreases_without_bound(
                sites, problem, result.theta, step, H, spent, goal.patience
            )
            names = along(step, H, problem.columns) if unbounded else ()
        why = checks.collinear_columns(H, problem.columns)
    why = separated(names) if names else why or (inference.shortfall if result.converged else None)
    return (replace(result, converged=False, reason=why) if why else result), spent


def assemble_model(plan: DesignPlan, result: Result, inference: Inference, *others: Traffic) -> Model:
    """The model of a fit and what was inferred from it."""
    return Model(plan, original_scale(plan, inference), _account(result, *others), result.trace)


def original_scale(plan: DesignPlan, inference: Inference) -> Inference:
    """The estimates as the reader knows them: in the units of the table, and of each class."""
    A, names = plan.to_original()
    if plan.classes is None or family_of(plan.study.loss).classes == "two":
        return inference.transformed(A, names)
    several = per_class(inference, plan.classes, names)
    return several.transformed(
        np.asarray(np.kron(np.eye(len(plan.classes)), A), dtype=np.float64), several.names
    )


def _account(result: Result, *others: Traffic) -> Run:
    """What the fit and the conversations before and after it cost together."""
    end = result.trace[-1]
    return Run(
        converged=settled(result.converged, result.reason),
        reason=result.reason,
        algorithm=result.algorithm,
        iterations=end.iteration,
        exchanges=end.exchanges + sum(other.exchanges for other in others),
        uplink_bytes=end.uplink_bytes + sum(other.uplink_bytes for other in others),
        downlink_bytes=end.downlink_bytes + sum(other.downlink_bytes for other in others),
    )
