"""The search for a family's parameter v: Newton's method on the profile cost, one fit for each value.

For each v the sites build their objectives with it, theta is fitted from where the last step predicts it, and
one exchange (`solve/profile.py`) tells how to improve v.  Steps are of log v, and stay between values whose
slopes have different signs.  The search begins at v = 0, where one exchange decides whether there is anything
to search for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log, sqrt
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.inference.nuisance import NORMAL
from fedshed.linalg.arrays import Vector
from fedshed.objectives.family import Parameter
from fedshed.protocol.conversation import Problem
from fedshed.solve.profile import JointPoint
from fedshed.solve.run import Result
from fedshed.solve.stages import profile

MOST_VALUES = 25  # of the parameter
LONGEST = 1.5  # step of its logarithm
CLOSE = 1e-3  # a step of the logarithm after which an end of the interval is known to about its square
LAST = 1e-5  # a step of the logarithm below which the next error is its square

At: TypeAlias = Callable[[float], tuple[Problem, Sites]]
Fit: TypeAlias = Callable[[Problem, Sites, Vector | None, Traffic], Result]


class Found(Struct, frozen=True):
    """A value, theta there to first order, the traffic, and the reason if it is not an optimum."""

    value: float
    theta: Vector | None
    traffic: Traffic
    values: int
    trouble: str = ""
    at_zero: float = 0.0  # the mean cost for v = 0
    guess: float = 0.0  # where v = 0 is the best, a value from which the interval is searched


class _Bracket(Struct, frozen=True):
    """The logarithms between which the profile cost has its minimum."""

    low: float
    high: float

    def narrowed(self, at: float, slope: float) -> _Bracket:
        """The bracket after the slope at a point is known."""
        return replace(self, low=at) if slope < 0 else replace(self, high=at)

    def step(self, at: float, point: JointPoint) -> float:
        """Newton's step if it stays inside the bracket, otherwise half of the way to its end."""
        slope, curvature = point.profile_slope, point.profile_curvature
        step = -slope / curvature if curvature > 0 else -LONGEST * float(np.sign(slope))
        step = min(max(step, -LONGEST), LONGEST)
        if self.low < at + step < self.high:
            return step
        end = self.low if slope > 0 else self.high
        return (end - at) / 2


def find(parameter: Parameter, at: At, fit: Fit, patience: int = 20) -> Found:
    """The value with the smallest profile cost; 0 if no larger value is better."""
    problem, sites = at(0.0)
    result = fit(problem, sites, None, Traffic())
    if not result.converged:
        return Found(0.0, result.theta, result.traffic, 1, result.reason)
    point, traffic = profile(sites, problem, result.theta, result.traffic, patience)
    at_zero = result.trace[-1].f
    if not point.slope < 0:
        rise = 2 * sum(problem.weights.values()) * point.slope  # of -2 L by v, or by v^2
        guess = NORMAL**2 / rise if rise > 0 else parameter.start
        guess = sqrt(guess) if parameter.squared else guess
        return Found(0.0, result.theta, traffic, 1, at_zero=at_zero, guess=guess)
    start = -point.slope / point.curvature if point.curvature > 0 else parameter.start
    value = sqrt(start) if parameter.squared else start
    value = min(max(value, 2 * parameter.least), parameter.most / 2)
    found = _newton(parameter, at, fit, value, result.theta, traffic, patience)
    return replace(found, at_zero=at_zero, guess=value)


def _newton(
    parameter: Parameter, at: At, fit: Fit, value: float, theta: Vector, traffic: Traffic, patience: int
) -> Found:
    """Newton's method on the profile cost, from a value."""
    bracket = _Bracket(log(parameter.least), log(parameter.most))
    for count in range(2, MOST_VALUES + 2):
        problem, sites = at(value)
        result = fit(problem, sites, theta, traffic)
        theta, traffic = result.theta, result.traffic
        if not result.converged:
            return Found(value, theta, traffic, count, result.reason)
        point, traffic = profile(sites, problem, theta, traffic, patience)
        bracket = bracket.narrowed(log(value), point.profile_slope)
        step = bracket.step(log(value), point)
        value, theta = exp(log(value) + step), point.moved(step)
        if abs(step) < LAST:
            return _ended(parameter, bracket, value, theta, traffic, count)
    return Found(
        value,
        theta,
        traffic,
        MOST_VALUES,
        f"the search for {parameter.name} did not converge; give its value",
    )


def _ended(
    parameter: Parameter, bracket: _Bracket, value: float, theta: Vector, traffic: Traffic, count: int
) -> Found:
    """The value found: 0 at the lower end of the range, and not determined at the upper end."""
    if value < parameter.least * (1 + 10 * LAST):
        return Found(0.0, None, traffic, count)
    if value > parameter.most * (1 - 10 * LAST):
        why = f"{parameter.name} grows beyond {parameter.most:g}, because the data do not determine it"
        return Found(value, theta, traffic, count, why)
    return Found(value, theta, traffic, count)


def profile_interval(
    parameter: Parameter, at: At, fit: Fit, found: Found, result: Result, error: float | None, spent: Traffic,
    patience: int,
) -> tuple[tuple[float, float] | None, Traffic]:  # fmt: skip
    """The values at which -2 L is at most 3.84 above its least, and the traffic; None where a fit fails.

    With d^2 the rise of -2 L, Newton's method solves d = 1.96 in log v, along which d is nearly linear.  The
    lower end is 0 where v = 0 lies inside, which the search knows.
    """
    least = result.trace[-1].f
    start = found.value or found.guess
    weight = sum(at(start)[0].weights.values())

    def end(side: int) -> float | None:
        nonlocal spent
        s, theta = log(start), result.theta
        s += side * min(NORMAL * error, LONGEST) if error is not None and found.value else 0.0
        for _ in range(MOST_VALUES):
            if not log(parameter.least) < s < log(parameter.most):
                return 0.0 if side < 0 else inf
            problem, sites = at(exp(s))
            there = fit(problem, sites, theta, spent)
            if not there.converged:
                spent = there.traffic
                return None
            point, spent = profile(sites, problem, there.theta, there.traffic, patience)
            d = sqrt(max(2 * weight * (there.trace[-1].f - least), 0.0))
            slope = weight * point.profile_slope  # d times its derivative by s
            step = -(d - NORMAL) * d / slope if side * slope > 0 else side * LONGEST
            step = min(max(step, -LONGEST), LONGEST)
            s, theta = s + step, point.moved(step)
            if abs(step) < CLOSE:
                return exp(s)
        return None

    high = end(1)
    inside = not found.value or 2 * weight * (found.at_zero - least) <= NORMAL**2
    low = 0.0 if inside else end(-1)
    return (None if low is None or high is None else (low, high)), spent
