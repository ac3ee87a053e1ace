"""`fit`: from a table at each site to the pooled model with its standard errors, in four conversations.

Preparation (schemas, levels, checks), the start (a few sums), the fit (gradients and curvature), and the
inspection (exact curvature once).  Nothing is asked for before every site has agreed on what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.exchange import InProcess, Transport
from fedshed.exchange.wire import Traffic
from fedshed.fitting.model import Model, Run
from fedshed.inference import Inference, infer, per_class
from fedshed.preparation import Plan, Study, prepare
from fedshed.solve.engine import Progress, settled
from fedshed.solve.optimize import Result, optimize, pose


def fit(
    tables: Mapping[str, Any],
    study: Study,
    *,
    algorithm: str | Algorithm[Any] = "auto",
    budget: Budget = None,
    tol: float = 1e-9,
    max_iterations: int = 500,
    seed: int = 0,
    transport: Callable[[Mapping[str, Any]], Transport] = InProcess,
    watch: Callable[[Progress], None] | None = None,
) -> Model:
    """The model of all rows of all tables, one for each site, which stay where they are.

    A table is a pandas or polars frame, an Arrow table, or a dict of arrays.
    `study` says which model of which columns; the rest is as in `fedshed.optimize`.
    """
    prepared = prepare(tables, study, connect=transport)
    plan = prepared.plan
    problem_of = (prepared.federation, study.loss, plan.l2(), plan.intercept)
    result = optimize(
        prepared.federation, loss=study.loss, l2=plan.l2(), intercept=plan.intercept, algorithm=algorithm,
        budget=budget, theta0="null" if plan.intercept else None, tol=tol, max_iterations=max_iterations,
        seed=seed, transport=transport, watch=watch,
    )  # fmt: skip
    objectives, problem = pose(*problem_of)
    inference = infer(objectives, problem, result.theta, connect=transport)
    return concluded(plan, result, inference, prepared.traffic, inference.traffic)


def concluded(plan: Plan, result: Result, inference: Inference, *others: Traffic) -> Model:
    """The model of a fit and what was inferred from it; exact curvature may show it stopped too early."""
    if result.converged and (shortfall := inference.shortfall):
        result = replace(result, converged=False, reason=shortfall)
    return Model(plan, original_scale(plan, inference), _account(result, *others), result.trace)


def original_scale(plan: Plan, inference: Inference) -> Inference:
    """The estimates as the reader knows them: in the units of the table, and of each class."""
    A, names = plan.to_original()
    if plan.classes is None or plan.study.loss == "logistic":
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
