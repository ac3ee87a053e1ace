"""`fit_problem`: a run, the inference at its end, and the check that the end is the only optimum."""

from __future__ import annotations

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from fedshed._utils.errors import Error, ProtocolError
from fedshed.algorithms.base import DIVERGED, AnyAlgorithm
from fedshed.algorithms.firth import Firth
from fedshed.exchange.sites import LocalSites, Sites
from fedshed.exchange.wire import SilenceError, Traffic
from fedshed.inference import Inference, gather, infer_from, robust_by_rows
from fedshed.inference.infer import Evidence, compared
from fedshed.inference.influence import one_step
from fedshed.inference.result import RowRobust, WeightType
from fedshed.inference.survival import BY_TIME, HazardsTest, check_survival
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.solve import off_centre
from fedshed.linalg.threads import one_thread
from fedshed.objectives import family_of
from fedshed.objectives.build import origin
from fedshed.protocol.conversation import Problem
from fedshed.solve import validation as checks
from fedshed.solve.checkpoint import Checkpoint
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.inspection import newton_step
from fedshed.solve.inspection_checks import contradiction
from fedshed.solve.run import Result, Watch, conclude, run
from fedshed.solve.separation import along, flat_part, separated, separating
from fedshed.solve.stages import decreases_without_bound, fit_stage, inspect, null_start

NEAR = 5e-7  # standard errors from the optimum; a smaller distance does not matter
NEWTON_REACH = 0.5  # standard errors within which a Newton step without a search can be trusted
MOST_STEPS = 5
DOUBTFUL = 0.05  # of a standard error: smaller estimates are rare, but for separated data
UNEVEN = 1e3  # ratio of the roots of two columns' curvatures at which a run can fail


class Fitted(Struct, frozen=True):
    """A run whose end has been checked, what was inferred there, and what that cost."""

    result: Result
    inference: Inference | None  # None if it was not asked for
    spent: Traffic
    parameter: float | UnsetType = UNSET  # of the family, if it was searched for


def fit_problem(
    problem: Problem, algorithm: AnyAlgorithm, sites: Sites, goal: Goal, *, why: str, intercept: bool,
    weight_type: WeightType = "auto", inference: bool = True, errors: RowRobust | None = None,
    count: int = 0, progress: Progress | None = None, saver: Checkpoint | None = None,
    watch: Watch | None = None, hazards: HazardsTest = BY_TIME,
    explain: checks.Explain = checks.unknown_cause,
) -> Fitted:  # fmt: skip
    """The run, from the model without columns or from `progress`, the inference, and checks of its end."""
    with one_thread():
        result = start_and_run(problem, algorithm, sites, goal, intercept, progress, saver, watch)
        result = replace(result, algorithm=why)
        silent = any(contact.silent >= goal.patience for contact in result.sites.values())
        firth = isinstance(algorithm, Firth)
        if (silent and firth) or (silent and not _separating(problem, result, sites)):
            conclude(result, watch)
            raise SilenceError(result.reason)  # a checkpoint stays: the study can be started again
        try:
            evidence = gather(sites, problem, result.theta, goal.patience) if inference else None
            _same_answers(result, evidence)
            found = infer_from(problem, result.theta, evidence, weight_type) if evidence else None
            result = _with_estimate(result, found)
            if found and firth:
                found = replace(found, firth=True, certificate=result.certificate)
            if evidence and found and result.converged and not firth:
                result, evidence, found = _polished(
                    problem, result, evidence, found, sites, goal, weight_type
                )
            if evidence and found and count:
                if problem.l1 is None:
                    evidence = compared(sites, problem, result.theta, evidence, count, goal.patience)
                    found = infer_from(problem, result.theta, evidence, weight_type)
                kept = {"firth": True, "certificate": result.certificate} if firth else {}
                found = replace(found, protected=count, **kept)
            if evidence and found and errors:
                found, traffic = robust_by_rows(
                    sites, problem, result.theta, evidence, found, errors, goal.patience
                )
                evidence = replace(evidence, traffic=traffic)
            if evidence and found and found.model_covariance and family_of(problem.loss).survival:
                found, traffic = check_survival(
                    sites, problem, result.theta, evidence, found, hazards, goal.patience
                )
                evidence = replace(evidence, traffic=traffic)
            if firth:
                result, spent = _penalised(result, evidence, found, goal)
            else:
                if evidence and found and problem.l1 is None:
                    found = replace(found, influence=one_step(problem, result.theta, evidence.sites))
                result, spent = _checked(problem, result, evidence, found, sites, goal, explain)
        except Error as error:
            conclude(replace(result, converged=False, reason=str(error)), watch)
            raise
        conclude(result, watch)
    return Fitted(result, replace(found, traffic=spent) if found else None, spent)


def _same_answers(result: Result, evidence: Evidence | None) -> None:
    """Refuse a site whose statistics at the estimate are not those of its last answer in the fit."""
    for site, said in evidence.sites.items() if evidence else ():
        if site in result.answers and (why := contradiction(result.theta, *result.answers[site], said)):
            raise ProtocolError(
                f"the answer of site {site!r} is not plausible: {why}; check its table and its software"
            )


def _with_estimate(result: Result, found: Inference | None) -> Result:
    """The result with an estimate of the gap at its end, which the exact Hessian there gives."""
    if found is None or found.certificate is None or result.certificate.estimate is not None:
        return result
    certificate = replace(result.certificate, estimate=found.certificate.estimate)
    return replace(result, certificate=certificate)


def start_and_run(
    problem: Problem, algorithm: AnyAlgorithm, sites: Sites, goal: Goal, intercept: bool,
    progress: Progress | None, saver: Checkpoint | None, watch: Watch | None,
) -> Result:  # fmt: skip
    """The run, from the model without columns or from where it was cut off."""
    if progress is None:
        theta, spent = np.zeros(problem.n), Traffic()
        if intercept:
            theta, spent = null_start(sites, problem, goal.patience)
        progress = Progress(algorithm.start(problem, theta), spent, rows=[])
    with sites.open(fit_stage(algorithm)) as transport:
        checks.reachable(transport, problem.agents)
        problem = replace(problem, stateless=transport.stateless)
        return run(algorithm, problem, transport, progress, goal, saver, watch)


def _polished(
    problem: Problem, result: Result, evidence: Evidence, found: Inference, sites: Sites, goal: Goal,
    weight_type: WeightType,
) -> tuple[Result, Evidence, Inference]:  # fmt: skip
    """Exact Newton steps from what the inspection told, until an estimate is as near as its errors can tell.

    A gradient below tol may leave it further away, where rows are many or units small.  The Hessian is at
    hand, so each step costs no more than an inspection of where it leads.
    """
    reach = np.inf if family_of(problem.loss).quadratic else NEWTON_REACH
    for _ in range(MOST_STEPS):
        if found.distance is None or not NEAR < found.distance <= reach:
            break
        _, step = newton_step(problem, result.theta, evidence.sites)
        theta = result.theta - step
        inspected, traffic = inspect(sites, problem, theta, evidence.traffic, goal.patience)
        moved = replace(evidence, sites=inspected, traffic=traffic)
        again = infer_from(problem, theta, moved, weight_type)
        if again.distance is None or again.distance > found.distance / 10:  # rounding, or no optimum
            return result, replace(evidence, traffic=traffic), found
        result, evidence, found = replace(result, theta=theta), moved, again
    return result, evidence, found


def _checked(
    problem: Problem, result: Result, evidence: Evidence | None, inference: Inference | None, sites: Sites,
    goal: Goal, explain: checks.Explain,
) -> tuple[Result, Traffic]:  # fmt: skip
    """The result, marked as not converged if exact curvature shows that it is not the only optimum."""
    spent, why = evidence.traffic if evidence else Traffic(), None
    names = _separating(problem, result, sites)
    ended = result.converged
    if not problem.penalised.all() and not isinstance(sites, LocalSites) and ended and evidence:
        H, step = newton_step(problem, result.theta, evidence.sites)
        separable = family_of(problem.loss).objective.can_recede
        if separable:
            names, spent = _separated(problem, result, step, H, inference, sites, spent, goal)
        free = np.arange(problem.n) if problem.l1 is None else np.flatnonzero(problem.l1 == 0)
        names_of = [problem.columns[j] for j in free]
        why = checks.collinear_columns(H[np.ix_(free, free)], names_of, separable=separable, explain=explain)
    if evidence and not ended and not names:
        why = f"{result.reason}; {_hint(problem, result, evidence)}"
    if names:
        why = separated(names, problem.loss)
    elif why is None and inference and _within_tol(result, goal):
        why = inference.shortfall
    elif why is None and evidence and inference and not (ended and inference.near):
        far = off_centre(newton_step(problem, result.theta, evidence.sites)[0], problem.columns)
        why = f"{result.reason}; {far}" if far else None
    return (replace(result, converged=False, reason=why) if why else result), spent


def _penalised(
    result: Result, evidence: Evidence | None, inference: Inference | None, goal: Goal
) -> tuple[Result, Traffic]:
    """The result of a fit with Firth's penalty; its optimum is finite, so only the distance is checked."""
    spent = evidence.traffic if evidence else Traffic()
    why = inference.shortfall if inference and _within_tol(result, goal) else None
    return (replace(result, converged=False, reason=why) if why else result), spent


def _within_tol(result: Result, goal: Goal) -> bool:
    """Whether a run ended with a gradient below tol, not at one that rounding keeps above it."""
    return result.converged and result.trace[-1].grad_norm <= goal.tol


def _separated(
    problem: Problem, result: Result, step: Vector, H: Matrix, inference: Inference | None, sites: Sites,
    spent: Traffic, goal: Goal,
) -> tuple[tuple[str, ...], Traffic]:  # fmt: skip
    """The coefficients along which the data are separated, as slopes along the Newton step show.

    If an estimate is tiny compared with its error, as it is for separated data (Hauck and Donner 1977), the
    slopes along the flat part of the step are checked too, by one more inspection at theta = 0.
    """
    patience, theta = goal.patience, result.theta
    found, spent = decreases_without_bound(sites, problem, theta, step, H, spent, patience)
    if not found and inference is not None and bool((np.abs(inference.z()) < DOUBTFUL).any()):
        zero = origin(problem.loss, problem.columns, problem.n)
        start, spent = inspect(sites, problem, zero, spent, patience)
        H_0 = newton_step(problem, zero, start)[0]
        step, found = flat_part(step, H, H_0)
        if not found:
            found, spent = decreases_without_bound(sites, problem, theta, step, H, spent, patience)
        H = H_0  # in whose units the coefficients of a flat direction are compared
    return (along(step, H, problem.columns) if found else ()), spent


def _separating(problem: Problem, result: Result, sites: Sites) -> tuple[str, ...]:
    """The coefficients along which the data are separated, by a linear program on local rows."""
    diverged = result.reason.startswith(DIVERGED)
    if problem.penalised.all() or not isinstance(sites, LocalSites) or diverged:
        return ()
    return separating(sites.objectives, problem, result.theta)


def _hint(problem: Problem, result: Result, evidence: Evidence) -> str:
    """Advice for a run that did not converge: units that differ too much, or data without an optimum."""
    H, _ = newton_step(problem, result.theta, evidence.sites)
    if far := off_centre(H, problem.columns):
        return far
    sizes = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))
    if sizes.max() > UNEVEN * sizes.min():
        small, large = (problem.columns[j] for j in (int(sizes.argmin()), int(sizes.argmax())))
        return f"the units of {small} and {large} differ too much; standardise, or use algorithm = newton"
    separable = family_of(problem.loss).objective.can_recede and not problem.penalised.all()
    more = ", or set l2 > 0 if the data are separated" if separable else ""
    return f"allow more iterations, or use algorithm = newton{more}"
