"""A private study: the fit from noised sums, and the model that says what it promises."""

from __future__ import annotations

import logging

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.exchange.wire import Traffic
from fedshed.fitting.all_sites import AllTables
from fedshed.fitting.model import Conducted, Model, Run
from fedshed.fitting.sites import TableSites
from fedshed.inference import Inference
from fedshed.inference.records import Promise, Score, numbers, packed
from fedshed.preparation import DesignPlan
from fedshed.preparation.counts import RowCount
from fedshed.protocol.conversation import Problem
from fedshed.solve.certificate import Certificate
from fedshed.solve.private_fit import PrivateFit, PrivateResult
from fedshed.solve.private_plan import PrivatePlan, predict
from fedshed.solve.run import Result, play
from fedshed.solve.stages import private_stage
from fedshed.solve.trace import Trace

log = logging.getLogger("fedshed")
REASON = "a private fit has a fixed number of steps"


def conduct_private(
    plan: DesignPlan, problem: Problem, tables: TableSites, counts: dict[str, RowCount], agreed: Traffic
) -> Conducted:
    """The private model; no privacy budget is spent if noise would dominate it."""
    private = private_plan(plan, problem, tables)
    fit = PrivateFit(plan=private)
    assert isinstance(tables, AllTables)
    sites = tables.play_private(plan, problem, fit)
    found, traffic = play(sites, private_stage(fit), problem, fit.flow(problem), agreed, 1)
    for said in found.warnings:
        log.warning("%s", said)
    model = _model(plan, problem, found, counts, _together(traffic, tables.told()))
    nothing = Certificate(float("nan"), None, None)
    return Conducted(model, Result(found.theta, True, REASON, nothing, Trace([]), problem.columns))


def private_plan(plan: DesignPlan, problem: Problem, tables: TableSites) -> PrivatePlan:
    """The plan of releases and their noise, from public numbers; ConfigError if noise would dominate."""
    privacy = plan.study.privacy
    if privacy is None or not isinstance(tables, AllTables):
        raise ConfigError(
            "privacy needs a protected study, in which only sums leave the sites; set protected = true"
        )
    (size,) = problem.sizes.values()
    found = PrivatePlan(
        rows=size.rows, columns=problem.n - plan.intercept, sites=tables.sites, privacy=privacy,
        intercept=plan.intercept,
    )  # fmt: skip
    expected = predict(
        found.rows, found.columns, privacy.epsilon, privacy.delta, privacy.clip, found.sites, plan.intercept
    )
    if expected.nonsense:
        raise ConfigError(expected.nonsense)
    return found


def _model(
    plan: DesignPlan, problem: Problem, found: PrivateResult, counts: dict[str, RowCount], spent: Traffic
) -> Model:
    """The estimates with errors that include the noise; measures of fit are not released."""
    privacy, n = found.plan.privacy, problem.n
    inference = Inference(
        loss=problem.loss, names=problem.columns, coefficients=numbers(found.theta),
        model_covariance=packed(found.covariance), cluster_covariance=None, dispersion=1.0,
        l2=numbers(problem.l2), rows=found.plan.rows, weight=float(found.plan.rows), parameters=float(n),
        deviance=None, null_deviance=None, pearson=None, log_likelihood=None, certificate=None,
        heterogeneity=Score(0.0, 0, None), sites={}, traffic=spent, protected=found.plan.sites,
        promise=Promise(privacy.epsilon, privacy.delta, privacy.clip, numbers(found.noise_errors)),
        intercepts=int(plan.intercept),
    )  # fmt: skip
    run = Run(
        converged=True, reason=REASON, algorithm="a private fit: noised sums of clipped rows",
        iterations=found.plan.steps, exchanges=spent.exchanges, uplink_bytes=spent.uplink_bytes,
        downlink_bytes=spent.downlink_bytes,
    )  # fmt: skip
    A, names = plan.to_original()
    assert np.array_equal(A, np.eye(n))  # a private study does not standardise
    return Model(plan, inference.transformed(A, names), run, None, counts)


def _together(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(
        exchanges=one.exchanges + other.exchanges,
        uplink_bytes=one.uplink_bytes + other.uplink_bytes,
        downlink_bytes=one.downlink_bytes + other.downlink_bytes,
    )
