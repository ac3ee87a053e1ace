"""`conduct`: a whole study over sites wherever they are, from their tables to the pooled model.

Four conversations: the preparation (schemas, levels, checks), the start (a few sums), the fit (gradients and
curvature), and the inspection (exact curvature once, and whether what was found is an optimum).
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.costs import HERE, Network
from fedshed.algorithms.lbfgs import Lbfgs
from fedshed.algorithms.registry import (
    build,
    check_composite,
    check_for_studies,
    check_summable,
    with_one_exchange,
)
from fedshed.exchange.grouped_sites import BY_GROUPS
from fedshed.exchange.groups import group_problem
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.fitting.curves import study_curves
from fedshed.fitting.estimates import own_estimates
from fedshed.fitting.fit_problem import Fitted, fit_problem
from fedshed.fitting.held_out import evaluate_held
from fedshed.fitting.model import Conducted, Model, Run
from fedshed.fitting.private import conduct_private
from fedshed.fitting.search import At
from fedshed.fitting.searched import fit_searched, with_linear_intercepts
from fedshed.fitting.sites import TableSites
from fedshed.inference import Inference, reference_class
from fedshed.inference.result import RowRobust, WeightType
from fedshed.inference.survival import HazardsTest
from fedshed.inference.wording import which_weights
from fedshed.linalg.threads import one_thread
from fedshed.objectives import coefficient_names, family_of
from fedshed.preparation import DesignPlan, Study, negotiate
from fedshed.preparation.cells import empty_reference_cell
from fedshed.preparation.combinations import check_spread
from fedshed.preparation.counts import RowCount, counted
from fedshed.preparation.messages import Ready
from fedshed.preparation.scaling import mean_squares, standard_deviations
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Problem, Size
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve import validation as checks
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.run import Result, Watch


def conduct(
    study: Study, tables: TableSites, goal: Goal, *, algorithm: str | AnyAlgorithm = "auto",
    budget: Budget = None, fused: bool = False, seed: int = 0, errors: RowRobust | None = None,
    checkpoint: Path | None = None, watch: Watch | None = None, network: Network | None = None,
) -> Conducted:  # fmt: skip
    """The model of all rows of all sites; a fit that was interrupted continues from its checkpoint.

    `fused` asks for costs and update in one exchange if the algorithm would take two; the iterates are the
    same. "auto" assumes `network`, by default none if the tables are in this process.
    """
    _possible_errors(study, errors)
    _possible_algorithm(study, algorithm)
    if tables.groups:
        named = (
            Lbfgs() if algorithm == "auto" else algorithm
        )  # "auto" chooses an algorithm that only needs sums
        check_summable(build(named) if isinstance(named, str) else named, BY_GROUPS, budget)
    check_spread(study.random_intercept, len(tables.names))
    with one_thread():  # the same bits on any machine with this BLAS
        with tables.prepare() as transport:
            stateless = transport.stateless
            plan, ready, agreed = negotiate(study, transport, tables.names, goal.patience)
        _known_columns(plan, ready)
        _known_weights(study, ready, errors)
        problem = group_problem(problem_of(plan, ready, stateless), tables.groups)
        if not problem.n:
            raise ConfigError(
                "a model without columns has no coefficients; name a column, or ask for survival curves"
            )
        filled = plan.columns if study.fills_in else ()
        counts = {
            site: counted(each.rows, each.dropped, each.missing, each.digest, filled)
            for site, each in sorted(ready.items())
        }
        if study.privacy is not None:
            return conduct_private(plan, problem, tables, counts, agreed)
        links = tables.budget() if budget is None else budget
        between = HERE if network is None and tables.one_process else network
        approved = tables.approved_algorithm(problem.n) if algorithm == "auto" else None
        chosen, why = approved or checks.choose_algorithm(
            algorithm, links, None, seed, problem, stateless, between, firth=study.firth,
            protected=study.protected or bool(tables.groups),
        )  # fmt: skip
        chosen = with_one_exchange(chosen) if fused else chosen
        most = min(goal.max_iterations, tables.most_iterations(chosen) or goal.max_iterations)
        goal = replace(goal, max_iterations=most)
        settings: dict[str, Any] = {
            "why": why, "intercept": plan.intercept, "weight_type": weight_type_of(study), "errors": errors,
            "count": tables.sites, "watch": watch, "explain": partial(empty_reference_cell, plan),
        }  # fmt: skip
        if study.searched:
            curves, counted_up = None, Traffic()
            at = _at_values(plan, problem, tables, chosen)
            fitted = fit_searched(at, study.loss, chosen, goal, **settings)
            plan = replace(plan, parameter=fitted.parameter)
            assert isinstance(fitted.parameter, float)
            problem, sites = at(fitted.parameter)
        else:
            sites = tables.play(plan, problem, chosen)
            curves, counted_up = study_curves(plan, problem, sites, ready, goal.patience, tables.sites)
            saver, progress = _checkpoint(checkpoint, study, problem, chosen, goal)
            hazards = HazardsTest(study.ph_transform, None if curves is None else curves.table)
            fitted = fit_problem(
                problem, chosen, sites, goal, progress=progress, saver=saver, hazards=hazards, **settings
            )
            if study.random_intercept:
                varying = np.ones(problem.n, dtype=bool)
                varying[[*set.intersection(*(set(each.constant) for each in ready.values())), -1]] = False
                fitted = with_linear_intercepts(fitted, problem, sites, goal, varying)
        found, asked = evaluate_held(plan, problem, sites, fitted.result, tables, goal.patience)
        estimates, told = own_estimates(plan, problem, sites, fitted.result.theta, goal.patience)
    model = assemble_model(plan, fitted, counts, agreed, counted_up, asked, told, tables.told())
    model.evaluation, model.estimates = found, estimates
    model.certificate, model.contacts = fitted.result.certificate, fitted.result.sites
    model.deviations = standard_deviations(plan, ready)
    return Conducted(model, fitted.result, curves)


def _possible_errors(study: Study, errors: RowRobust | None) -> None:
    """Refuse errors that a study cannot have, before anything is sent."""
    if errors is not None and study.privacy is not None:
        raise ConfigError(
            f"a private study cannot have errors = {errors}, because they would be released without noise; "
            "leave out errors"
        )
    if errors is not None and study.selects:
        raise ConfigError(
            f"a fit with an absolute penalty (l1) cannot have errors = {errors}; leave out errors, or set "
            "l1 = 0 and name the columns that were selected"
        )
    if errors == "cluster" and study.cluster is None:
        raise ConfigError("errors by cluster need a column of clusters; name it (cluster, or --cluster)")
    if errors is not None and errors.startswith(("HC2", "HC3")) and family_of(study.loss).survival:
        raise ConfigError(
            f"errors = {errors} needs leverages, which rows of a Cox model do not have; use HC0 or HC1"
        )
    if errors is not None and study.random_intercept:
        raise ConfigError(
            f"a model with a random intercept cannot have errors = {errors}, because the rows of a site are "
            "not independent; leave out errors"
        )
    if errors is not None and study.firth:
        raise ConfigError(
            f"a fit with Firth's penalty cannot have errors = {errors}; its errors come from the information "
            "matrix, so leave out errors"
        )
    if errors is not None and family_of(study.loss).classes in ("many", "ordered"):
        raise ConfigError(
            f"errors = {errors} needs one linear predictor, which the {study.family} family does not have; "
            "leave out errors"
        )


def _possible_algorithm(study: Study, algorithm: str | AnyAlgorithm) -> None:
    """Refuse an algorithm that a study cannot have, before anything is sent."""
    if study.privacy is not None and algorithm != "auto":
        raise ConfigError("a private study has its own algorithm; leave out algorithm")
    if algorithm == "auto":
        return
    if study.firth and algorithm != "newton":
        raise ConfigError(
            f"Firth's penalty needs algorithm 'auto' or 'newton', not {algorithm!r}; leave out algorithm"
        )
    chosen = build(algorithm) if isinstance(algorithm, str) else algorithm
    check_for_studies(chosen)
    if study.protected:
        check_summable(chosen)
    if study.selects:
        check_composite(chosen)


def _at_values(plan: DesignPlan, problem: Problem, tables: TableSites, algorithm: AnyAlgorithm) -> At:
    """The problem and the sites at a value of the family's parameter."""

    def at(value: float) -> tuple[Problem, Sites]:
        there = replace(plan, parameter=value)
        own = replace(problem, loss=there.loss)
        return own, tables.play(there, own, algorithm)

    return at


def _known_columns(plan: DesignPlan, ready: dict[str, Ready]) -> None:
    """Refuse a site that counts missing values of columns that the study does not use."""
    known = {*plan.study.beside, *plan.columns}
    for site, each in ready.items():
        if not {name for name, _ in each.missing} <= known:
            raise ProtocolError(f"site {site!r} counts missing values of columns that the study does not use")


def _known_weights(study: Study, ready: dict[str, Ready], errors: RowRobust | None) -> None:
    """Ask for the type of weights whose sums are whole numbers above the rows: they may count rows.

    The errors of a survival model are the same for both types, unless they are robust by rows.
    """
    if family_of(study.loss).survival and errors is None:
        return
    rows, weight = (float(sum(getattr(each, name) for each in ready.values())) for name in ("rows", "weight"))
    whole = all(float(each.weight).is_integer() for each in ready.values())
    if study.weight is not None and weight_type_of(study) == "auto" and whole and weight > rows:
        raise ConfigError(which_weights(f"column {study.weight!r}", rows, weight))


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
    l2 = np.tile(plan.l2(), contrasts)
    return Problem(l2, weights, plan.loss, columns, stateless, sizes, plan.l1())


def weight_type_of(study: Study) -> WeightType:
    """The type of the weights of a study; the trials of a row belong to one observation."""
    return "precision" if study.trials is not None else study.weight_type


def _checkpoint(
    path: Path | None, study: Study, problem: Problem, algorithm: AnyAlgorithm, goal: Goal
) -> tuple[Checkpoint | None, Progress | None]:
    """The saver of the run, and its progress if it was interrupted."""
    if path is None:
        return None, None
    data = blake2b(encode((study, replace(problem, sizes={}))), digest_size=16).hexdigest()
    saver = Checkpoint(path, algorithm, Settings(problem.loss, problem.l2, False, goal, problem.l1), data)
    if not path.exists():
        return saver, None
    _, _, progress = checkpoints.load(path, data, algorithm)
    return saver, replace(progress, state=algorithm.assume_forgotten(progress.state))


def assemble_model(plan: DesignPlan, fitted: Fitted, counts: dict[str, RowCount], *others: Traffic) -> Model:
    """The model of a fit and what was inferred from it."""
    assert fitted.inference is not None
    run = _account(fitted.result, fitted.spent, *others)
    return Model(plan, original_scale(plan, fitted.inference), run, fitted.result.trace, counts)


def original_scale(plan: DesignPlan, inference: Inference) -> Inference:
    """The estimates in the units of the table; those of several classes against the reference class."""
    A, names = plan.to_original()
    if plan.classes is None or family_of(plan.study.loss).classes in ("two", "ordered"):
        # neither units nor centres change the level of a column
        return replace(inference.transformed(A, names), level_freedom=inference.level_freedom)
    several = reference_class(inference, plan.classes, names, plan.reference_class)
    B = np.asarray(np.kron(np.eye(len(plan.classes) - 1), A), dtype=np.float64)
    return replace(several.transformed(B, several.names), coding=several.coding)


def _account(result: Result, *others: Traffic) -> Run:
    """The total traffic of the fit and of the conversations before and after it."""
    end = result.trace[-1]
    return Run(
        converged=result.converged,
        reason=result.reason,
        algorithm=result.algorithm,
        iterations=end.iteration,
        exchanges=end.exchanges + sum(other.exchanges for other in others),
        uplink_bytes=end.uplink_bytes + sum(other.uplink_bytes for other in others),
        downlink_bytes=end.downlink_bytes + sum(other.downlink_bytes for other in others),
    )
