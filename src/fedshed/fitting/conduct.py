"""`conduct`: a whole study over sites wherever they are, from their tables to the pooled model.

Four conversations: the preparation (schemas, levels, checks), the start (a few sums), the fit (gradients and
curvature), and the inspection (exact curvature once, and whether what was found is an optimum).
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, Error, ProtocolError
from fedshed.algorithms import Budget
from fedshed.algorithms.auto import choose_summable
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.firth import Firth, choose_firth
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.registry import build, check_for_studies, check_summable, with_one_exchange
from fedshed.exchange.sites import LocalSites, Sites
from fedshed.exchange.wire import SilenceError, Traffic
from fedshed.fitting.model import Conducted, Model, Run
from fedshed.fitting.private import conduct_private
from fedshed.fitting.search import At, Found, find
from fedshed.fitting.sites import TableSites
from fedshed.inference import Inference, gather, infer_from, per_class, robust_by_rows
from fedshed.inference.infer import Evidence, compared
from fedshed.inference.nuisance import FEW_SITES, Nuisance, few_sites, joint_covariance, log_error
from fedshed.inference.random_linear import with_random_intercept
from fedshed.inference.result import RowRobust, WeightType, packed
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.solve import off_centre
from fedshed.linalg.threads import one_thread
from fedshed.objectives import coefficient_names, family_of
from fedshed.objectives.build import origin
from fedshed.objectives.family import Parameter
from fedshed.preparation import DesignPlan, Study, negotiate
from fedshed.preparation.counts import RowCount
from fedshed.preparation.messages import Ready
from fedshed.preparation.scaling import mean_squares
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Problem, Size
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve import validation as checks
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Progress, settled
from fedshed.solve.goal import Goal
from fedshed.solve.inspection import newton_step
from fedshed.solve.inspection_checks import contradiction
from fedshed.solve.run import Result, Watch, conclude, run
from fedshed.solve.separation import along, flat_part, separated, separating
from fedshed.solve.stages import decreases_without_bound, fit_stage, inspect, null_start, profile

NEAR = 5e-7  # standard errors from the optimum: nearer is as good as there
NEWTON_REACH = 0.5  # standard errors within which a Newton step without a search can be trusted
MOST_STEPS = 5
DOUBTFUL = 0.05  # of a standard error: smaller estimates are rare, but for separated data
MANY_HESSIANS = 12  # as many as Newton and the inspection may take
UNEVEN = 1e3  # between the curvatures' roots of two columns, by which a run can fail


class Fitted(Struct, frozen=True):
    """A run whose end has been checked, what was inferred there, and what that cost."""

    result: Result
    inference: Inference | None  # None if it was not asked for
    spent: Traffic
    parameter: float | UnsetType = UNSET  # of the family, if it was searched for


def conduct(
    study: Study, tables: TableSites, goal: Goal, *, algorithm: str | Algorithm[Any] = "auto",
    budget: Budget = None, fused: bool = False, seed: int = 0, errors: RowRobust | None = None,
    checkpoint: Path | None = None, watch: Watch | None = None,
) -> Conducted:  # fmt: skip
    """The model of all rows of all sites; a fit that was cut off goes on from its checkpoint.

    `fused` asks for costs and update in one exchange where the algorithm would take two: the same iterates.
    """
    _possible_errors(study, errors)
    _possible_algorithm(study, algorithm)
    with one_thread():  # the same bits on any machine with this BLAS
        with tables.prepare() as transport:
            stateless = transport.stateless
            plan, ready, agreed = negotiate(study, transport, tables.names, goal.patience)
        _known_columns(plan, ready)
        problem = problem_of(plan, ready, stateless)
        counts = {
            site: RowCount(each.rows, each.dropped, dict(each.missing), each.digest)
            for site, each in sorted(ready.items())
        }
        if study.privacy is not None:
            return conduct_private(plan, problem, tables, counts, agreed)
        links = tables.budget() if budget is None else budget
        if study.firth:
            chosen, why = choose_firth()
        elif study.protected and algorithm == "auto":
            chosen, why = choose_summable(problem.n)
        else:
            chosen, why = checks.choose_algorithm(
                algorithm, links, None, seed, problem, stateless, tables.one_process
            )
        if algorithm == "auto" and not study.firth:
            cells = {site: each.rows * len(plan.coefficients) for site, each in ready.items()}
            chosen, why = within_budget(chosen, why, tables.curvature(cells), problem.n)
        chosen = with_one_exchange(chosen) if fused else chosen
        most = min(goal.max_iterations, tables.most_iterations(chosen) or goal.max_iterations)
        goal = replace(goal, max_iterations=most)
        settings: dict[str, Any] = {
            "why": why, "intercept": plan.intercept, "weight_type": weight_type_of(study), "errors": errors,
            "count": tables.sites, "watch": watch,
        }  # fmt: skip
        if study.searched:
            at = _at_values(plan, problem, tables, chosen)
            fitted = fit_searched(at, study.loss, chosen, goal, **settings)
            plan = replace(plan, parameter=fitted.parameter)
        else:
            sites = tables.play(plan, problem, chosen)
            saver, progress = _checkpoint(checkpoint, study, problem, chosen, goal)
            fitted = fit_problem(problem, chosen, sites, goal, progress=progress, saver=saver, **settings)
            if study.random_intercept:
                fitted = with_linear_intercepts(fitted, problem, sites, goal)
    return Conducted(assemble_model(plan, fitted, counts, agreed, tables.told()), fitted.result)


def within_budget(chosen: Algorithm[Any], why: str, left: float | None, n: int) -> tuple[Algorithm[Any], str]:
    """Gradients alone, where sites let out fewer entries of Hessians than a fit by them may need."""
    entries = n * (n + 1) // 2
    if left is None or left >= MANY_HESSIANS * entries:
        return chosen, why
    most = f"the budget of a site allows {max(0, int(left)):,} more entries of Hessians"
    return Lbfgs(), f"lbfgs: {most}, and {MANY_HESSIANS} Hessians have {MANY_HESSIANS * entries:,}"


def _possible_errors(study: Study, errors: RowRobust | None) -> None:
    """Refuse errors that a study cannot have, before anything is sent."""
    if errors is not None and study.privacy is not None:
        raise ConfigError(
            f"a private study has no errors by rows or clusters ({errors}), which would be released without "
            "noise; leave errors out"
        )
    if errors == "cluster" and study.cluster is None:
        raise ConfigError("errors by cluster need a column of clusters; name it (cluster = ..., --cluster)")
    if errors is not None and study.firth:
        raise ConfigError(
            f"Firth's estimates have errors from the information, not by rows or clusters ({errors}); leave "
            "errors out"
        )
    if errors is not None and study.random_intercept:
        raise ConfigError("rows that share a random intercept are not independent; leave errors out")
    if errors is not None and family_of(study.loss).classes in ("many", "ordered"):
        raise ConfigError(f"errors by rows are for one linear predictor, not for the {study.family} family")


def _possible_algorithm(study: Study, algorithm: str | Algorithm[Any]) -> None:
    """Refuse an algorithm that a study cannot have, before anything is sent."""
    if study.privacy is not None and algorithm != "auto":
        raise ConfigError("a private study has a fit of its own; leave algorithm out")
    if algorithm == "auto":
        return
    if study.firth and algorithm != "newton":
        raise ConfigError(
            f"Firth's penalty has an algorithm for it ('auto' or 'newton'), and {algorithm!r} is another; "
            "leave algorithm out"
        )
    chosen = build(algorithm) if isinstance(algorithm, str) else algorithm
    check_for_studies(chosen)
    if study.protected:
        check_summable(chosen)


def fit_problem(
    problem: Problem, algorithm: Algorithm[Any], sites: Sites, goal: Goal, *, why: str, intercept: bool,
    weight_type: WeightType = "auto", inference: bool = True, errors: RowRobust | None = None,
    count: int = 0, progress: Progress | None = None, saver: Checkpoint | None = None,
    watch: Watch | None = None,
) -> Fitted:  # fmt: skip
    """The run, from the model without columns or from `progress`, the inference, and checks of its end."""
    with one_thread():
        result = _run(problem, algorithm, sites, goal, intercept, progress, saver, watch)
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
            if found and firth:
                found = replace(found, firth=True, certificate=result.certificate)
            if evidence and found and settled(result.converged, result.reason) and not firth:
                result, evidence, found = _polished(
                    problem, result, evidence, found, sites, goal, weight_type
                )
            if evidence and found and count:
                evidence = compared(sites, problem, result.theta, evidence, count, goal.patience)
                kept = {"firth": True, "certificate": result.certificate} if firth else {}
                found = infer_from(problem, result.theta, evidence, weight_type)
                found = replace(found, protected=count, **kept)
            if evidence and found and errors:
                found, traffic = robust_by_rows(
                    sites, problem, result.theta, evidence, found, errors, goal.patience
                )
                evidence = replace(evidence, traffic=traffic)
            if firth:
                result, spent = _penalised(result, evidence, found)
            else:
                result, spent = _checked(problem, result, evidence, found, sites, goal)
        except Error as error:
            conclude(replace(result, converged=False, reason=str(error)), watch)
            raise
        conclude(result, watch)
    return Fitted(result, replace(found, traffic=spent) if found else None, spent)


def fit_searched(
    at: At, loss: str, algorithm: Algorithm[Any], goal: Goal, *, intercept: bool, **settings: Any
) -> Fitted:
    """The fit with the best value of the family's parameter; a search that is cut off begins again.

    Errors of a random intercept's model are those of the joint Hessian of all parameters.  Those of other
    families take the parameter as known, as R's MASS::glm.nb does: it is orthogonal to theta.
    """

    def fit(problem: Problem, sites: Sites, theta: Vector | None, spent: Traffic) -> Result:
        start = None if theta is None else Progress(algorithm.start(problem, theta), spent, rows=[])
        return _run(problem, algorithm, sites, goal, intercept, start, None, None)

    parameter = family_of(loss).parameter
    assert parameter is not None
    with one_thread():
        found = find(parameter, at, fit, goal.patience)
        problem, sites = at(found.value)
        theta = np.zeros(problem.n) if found.theta is None else found.theta
        progress = Progress(algorithm.start(problem, theta), found.traffic, rows=[])
        fitted = fit_problem(
            problem, algorithm, sites, goal, intercept=intercept, progress=progress, **settings
        )
        if found.trouble and settled(fitted.result.converged, fitted.result.reason):
            result = replace(fitted.result, converged=False, reason=found.trouble)
            fitted = replace(fitted, result=result)
        fitted = replace(fitted, parameter=found.value)
        return _with_parameter(parameter, found, fitted, problem, sites, goal)


def _with_parameter(
    parameter: Parameter, found: Found, fitted: Fitted, problem: Problem, sites: Sites, goal: Goal
) -> Fitted:
    """The fit with the parameter and its error, for one more exchange."""
    if fitted.inference is None:
        return fitted
    few = parameter.squared and fitted.inference.site_count < FEW_SITES
    nuisance = Nuisance(parameter.name, found.value, found=True)
    inference, spent = fitted.inference, fitted.spent
    if found.value == 0.0:
        nuisance = replace(nuisance, note=parameter.none)
    else:
        point, spent = profile(sites, problem, fitted.result.theta, spent, goal.patience)
        nuisance = replace(nuisance, log_error=log_error(inference.weight, point.profile_curvature))
        if parameter.squared:
            covariance = joint_covariance(point, inference.weight)
            inference = replace(inference, model_covariance=packed(covariance))
    if few:
        nuisance = replace(nuisance, note=f"{nuisance.note} {few_sites(inference.site_count)}".strip())
    return replace(fitted, inference=replace(inference, nuisance=nuisance, traffic=spent), spent=spent)


def with_linear_intercepts(fitted: Fitted, problem: Problem, sites: Sites, goal: Goal) -> Fitted:
    """A linear fit with a random intercept per site, from what the sites say at the estimate."""
    result, inference = fitted.result, fitted.inference
    if (
        inference is None
        or inference.model_covariance is None
        or not settled(result.converged, result.reason)
    ):
        return fitted
    inspected, spent = inspect(sites, problem, result.theta, fitted.spent, goal.patience)
    theta, found = with_random_intercept(inference, result.theta, inspected)
    return Fitted(replace(result, theta=theta), replace(found, traffic=spent), spent)


def _at_values(plan: DesignPlan, problem: Problem, tables: TableSites, algorithm: Algorithm[Any]) -> At:
    """The problem and the sites at a value of the family's parameter."""

    def at(value: float) -> tuple[Problem, Sites]:
        there = replace(plan, parameter=value)
        own = replace(problem, loss=there.loss)
        return own, tables.play(there, own, algorithm)

    return at


def _same_answers(result: Result, evidence: Evidence | None) -> None:
    """Refuse a site whose statistics at the estimate are not those of its last answer in the fit."""
    for site, said in evidence.sites.items() if evidence else ():
        if site in result.answers and (why := contradiction(result.theta, *result.answers[site], said)):
            raise ProtocolError(f"site {site!r} is not believed: {why}; check its table and its software")


def _known_columns(plan: DesignPlan, ready: dict[str, Ready]) -> None:
    """A site counts missing values of the study's columns, and of no others."""
    known = {*plan.study.beside, *plan.columns}
    for site, each in ready.items():
        if not {name for name, _ in each.missing} <= known:
            raise ProtocolError(f"site {site!r} counts missing values of columns that the study does not use")


def problem_of(plan: DesignPlan, ready: dict[str, Ready], stateless: bool) -> Problem:
    """The problem as the Master sees it."""
    contrasts = family_of(plan.study.loss).contrasts(len(plan.classes or ()))
    columns = coefficient_names(plan.names, plan.intercept, contrasts)
    if family_of(plan.study.loss).classes == "ordered":
        if not plan.intercept:
            raise ConfigError("an ordinal model has thresholds in place of an intercept; leave out '- 1'")
        columns = plan.coefficients
    weights = {site: each.weight for site, each in ready.items()}
    sizes = {site: Size(each.rows, mean_squares(plan, each)) for site, each in ready.items()}
    return Problem(np.tile(plan.l2(), contrasts), weights, plan.loss, columns, stateless, sizes)


def weight_type_of(study: Study) -> WeightType:
    """What the weights of a study are: the trials of a row belong to one observation."""
    return "precision" if study.trials is not None else study.weight_type


def _checkpoint(
    path: Path | None, study: Study, problem: Problem, algorithm: Algorithm[Any], goal: Goal
) -> tuple[Checkpoint | None, Progress | None]:
    """Where the run is saved, and how far it had come when it was cut off."""
    if path is None:
        return None, None
    data = blake2b(encode((study, replace(problem, sizes={}))), digest_size=16).hexdigest()
    saver = Checkpoint(path, algorithm, Settings(problem.loss, problem.l2, False, goal), data)
    if not path.exists():
        return saver, None
    _, _, progress = checkpoints.load(path, data, algorithm)
    return saver, replace(progress, state=algorithm.assume_forgotten(progress.state))


def _run(
    problem: Problem, algorithm: Algorithm[Any], sites: Sites, goal: Goal, intercept: bool,
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
    goal: Goal,
) -> tuple[Result, Traffic]:  # fmt: skip
    """Whether a run ended at the one optimum, as exact curvature shows; without a ridge there may be none."""
    spent, why = evidence.traffic if evidence else Traffic(), None
    names = _separating(problem, result, sites)
    ended = settled(result.converged, result.reason)
    if not problem.l2.all() and not isinstance(sites, LocalSites) and ended and evidence:
        H, step = newton_step(problem, result.theta, evidence.sites)
        separable = family_of(problem.loss).objective.can_recede
        if separable:
            names, spent = _separated(problem, result, step, H, inference, sites, spent, goal)
        why = checks.collinear_columns(H, problem.columns, separable=separable)
    if evidence and not ended and not names:
        why = f"{result.reason}; {_hint(problem, result, evidence)}"
    if names:
        why = separated(names, problem.loss)
    elif why is None and inference and result.converged:
        why = inference.shortfall
    elif why is None and evidence and inference and not (ended and inference.near):
        far = off_centre(newton_step(problem, result.theta, evidence.sites)[0], problem.columns)
        why = f"{result.reason}; {far}" if far else None
    return (replace(result, converged=False, reason=why) if why else result), spent


def _penalised(
    result: Result, evidence: Evidence | None, inference: Inference | None
) -> tuple[Result, Traffic]:
    """Firth's estimates are finite, so a run that has ended need only be near enough."""
    spent = evidence.traffic if evidence else Traffic()
    why = inference.shortfall if inference and result.converged else None
    return (replace(result, converged=False, reason=why) if why else result), spent


def _separated(
    problem: Problem, result: Result, step: Vector, H: Matrix, inference: Inference | None, sites: Sites,
    spent: Traffic, goal: Goal,
) -> tuple[tuple[str, ...], Traffic]:  # fmt: skip
    """The coefficients along which the data are separated, as slopes along the Newton step show.

    Where an estimate is tiny beside its error, as it is in that case (Hauck and Donner 1977), they are looked
    at along the flat part of the step too, for one more inspection, at theta = 0.
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
    """The coefficients along which the data are separated, as a linear program of rows at hand decides."""
    if problem.l2.all() or not isinstance(sites, LocalSites):
        return ()
    return separating(sites.objectives, problem, result.theta)


def _hint(problem: Problem, result: Result, evidence: Evidence) -> str:
    """What may help a run that did not end: units that differ by much, or data without an optimum."""
    H, _ = newton_step(problem, result.theta, evidence.sites)
    if far := off_centre(H, problem.columns):
        return far
    sizes = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))
    if sizes.max() > UNEVEN * sizes.min():
        small, large = (problem.columns[j] for j in (int(sizes.argmin()), int(sizes.argmax())))
        return f"the units of {small} and {large} differ too much: standardise, or use algorithm = newton"
    separable = family_of(problem.loss).objective.can_recede and not problem.l2.all()
    more = ", or set l2 > 0 if the data are separated" if separable else ""
    return f"allow more iterations, or use algorithm = newton{more}"


def assemble_model(plan: DesignPlan, fitted: Fitted, counts: dict[str, RowCount], *others: Traffic) -> Model:
    """The model of a fit and what was inferred from it."""
    assert fitted.inference is not None
    run = _account(fitted.result, fitted.spent, *others)
    return Model(plan, original_scale(plan, fitted.inference), run, fitted.result.trace, counts)


def original_scale(plan: DesignPlan, inference: Inference) -> Inference:
    """The estimates as the reader knows them: in the units of the table, and of each class."""
    A, names = plan.to_original()
    if plan.classes is None or family_of(plan.study.loss).classes in ("two", "ordered"):
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
