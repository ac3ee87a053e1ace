"""Fits with a parameter beside theta: that of a family, or the spread of a random intercept."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed.algorithms.base import AnyAlgorithm
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.fitting.fit_problem import Fitted, fit_problem, start_and_run
from fedshed.fitting.search import At, Fit, Found, find, profile_interval
from fedshed.inference.nuisance import FEW_SITES, Nuisance, few_sites, joint_covariance, log_error
from fedshed.inference.random_linear import with_random_intercept
from fedshed.inference.records import packed
from fedshed.linalg.arrays import Vector
from fedshed.linalg.threads import one_thread
from fedshed.objectives import family_of
from fedshed.objectives.family import Parameter
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.run import Result
from fedshed.solve.stages import inspect, profile


def fit_searched(
    at: At, loss: str, algorithm: AnyAlgorithm, goal: Goal, *, intercept: bool, **settings: Any
) -> Fitted:
    """The fit with the best value of the family's parameter; a search that is cut off begins again.

    Errors of a random intercept's model are those of the joint Hessian of all parameters.  Those of other
    families take the parameter as known, as R's MASS::glm.nb does: it is orthogonal to theta.
    """

    def fit(problem: Problem, sites: Sites, theta: Vector | None, spent: Traffic) -> Result:
        start = None if theta is None else Progress(algorithm.start(problem, theta), spent, rows=[])
        return start_and_run(problem, algorithm, sites, goal, intercept, start, None, None)

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
        if found.trouble and fitted.result.converged:
            result = replace(fitted.result, converged=False, reason=found.trouble)
            fitted = replace(fitted, result=result)
        fitted = replace(fitted, parameter=found.value)
        fitted = _with_parameter(parameter, found, fitted, problem, sites, goal)
        ended = fitted.result.converged and fitted.inference is not None
        if not parameter.squared or not ended:
            return fitted
        return _with_interval(parameter, at, fit, found, fitted, goal)


def _with_parameter(
    parameter: Parameter, found: Found, fitted: Fitted, problem: Problem, sites: Sites, goal: Goal
) -> Fitted:
    """The fit with the parameter and its standard error, which take one more exchange."""
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


def _with_interval(
    parameter: Parameter, at: At, fit: Fit, found: Found, fitted: Fitted, goal: Goal
) -> Fitted:
    """The fit with the interval of its parameter from the profile likelihood, by a few more fits."""
    inference = fitted.inference
    assert inference is not None
    assert inference.nuisance is not None
    own = inference.nuisance
    ends, spent = profile_interval(
        parameter, at, fit, found, fitted.result, own.log_error, fitted.spent, goal.patience
    )
    inference = replace(inference, nuisance=replace(own, profile=ends), traffic=spent)
    return replace(fitted, inference=inference, spent=spent)


def with_linear_intercepts(
    fitted: Fitted, problem: Problem, sites: Sites, goal: Goal, varying: NDArray[np.bool_]
) -> Fitted:
    """A linear fit with a random intercept per site, from the sites' answers at the estimate.

    `varying` says of each column whether it varies within some site.
    """
    result, inference = fitted.result, fitted.inference
    if inference is None or inference.model_covariance is None or not result.converged:
        return fitted
    inspected, spent = inspect(sites, problem, result.theta, fitted.spent, goal.patience)
    theta, found = with_random_intercept(inference, result.theta, inspected, varying)
    return Fitted(replace(result, theta=theta), replace(found, traffic=spent), spent)
