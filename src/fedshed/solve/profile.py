"""The exchange about a family's parameter v: how the cost at theta depends on both, up to second order.

The Master searches for v by Newton's method on the profile cost P(v) = min over theta of f(theta, v), whose
derivatives by s = log v at the minimum are (with H the Hessian by theta and m the mixed derivatives)

    P' = f_s,    P'' = f_ss - m'H^-1 m,    d theta / ds = -H^-1 m,

sums over rows that add up over sites (Barndorff-Nielsen and Cox 1994, Inference and Asymptotics, 3.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from fedshed.linalg.arrays import Matrix, Packed, Vector, unpack
from fedshed.linalg.solve import unit_diagonal
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import GRADIENT, HESSIAN, MEAN, Rule
from fedshed.solve.inspection_checks import semidefinite


class AskProfile(Message, frozen=True):
    """Asks for the derivatives of the cost at theta by theta and by the parameter."""

    theta: Vector


class Profiled(Message, frozen=True):
    """A site's means: the cost, its gradient and Hessian by theta, and the derivatives by the parameter."""

    loss: float
    gradient: Vector
    hessian: Packed
    slope: float
    curvature: float
    mixed: Vector

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "loss": MEAN, "gradient": GRADIENT, "hessian": HESSIAN, "slope": MEAN, "curvature": MEAN,
        "mixed": GRADIENT,
    }  # fmt: skip


class JointPoint(Struct, frozen=True):
    """The cost of all sites at a point (theta, v), penalties included."""

    theta: Vector
    gradient: Vector
    hessian: Matrix
    slope: float
    curvature: float
    mixed: Vector

    @property
    def profile_slope(self) -> float:
        """P', to first order where theta is not quite the minimum: f_s - m'H^-1 g."""
        return float(self.slope - self.mixed @ self.solved(self.gradient))

    @property
    def profile_curvature(self) -> float:
        """P''."""
        return float(self.curvature - self.mixed @ self.solved(self.mixed))

    def moved(self, step: float) -> Vector:
        """The minimum by theta after a step of log v, to first order."""
        return self.theta - self.solved(self.gradient + step * self.mixed)

    def solved(self, b: Vector) -> Vector:
        """H^-1 b, without directions in which H is 0 to rounding."""
        scale, unit = unit_diagonal(self.hessian)
        rcond = len(b) * np.finfo(float).eps
        return np.asarray(scale * np.linalg.lstsq(unit, scale * b, rcond=rcond)[0])


def _where_it_moves(
    theta: Vector, l1: Vector, g: Vector, H: Matrix, m: Vector
) -> tuple[Vector, Matrix, Vector]:
    """With the slope of an absolute penalty; coefficients that it holds at 0 stay there as v changes."""
    held = (theta == 0) & (l1 > 0)
    H = np.where(held[:, None] | held, np.diag(held.astype(np.float64)), H)
    return np.where(held, 0.0, g + l1 * np.sign(theta)), H, np.where(held, 0.0, m)


class Profile(Conversation, frozen=True, tag=True):
    """One exchange at the minimum by theta for one value of the parameter, with which sites have begun."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskProfile, Profiled)
    requests = ((AskProfile, None),)

    def flow(self, problem: Problem, theta: Vector) -> Flow[JointPoint]:
        """The derivatives of the cost of all sites, penalties included; sums in sorted order."""
        replies = yield from everyone([AskProfile(theta)], problem)
        answers: dict[AgentId, Profiled] = answers_of(replies, Profiled, AskProfile)
        n = problem.n
        g, H, m = problem.l2 * theta, np.diag(problem.l2), np.zeros(n)
        slope = curvature = 0.0
        for i in sorted(answers):
            p, one = problem.p[i], answers[i]
            g, H, m = g + p * one.gradient, H + p * unpack(one.hessian, n), m + p * one.mixed
            slope, curvature = slope + p * one.slope, curvature + p * one.curvature
        if problem.l1 is not None:
            g, H, m = _where_it_moves(theta, problem.l1, g, H, m)
        return JointPoint(theta, g, H, slope, curvature, m)

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """A Hessian is not negative in any direction."""
        if isinstance(answer, Profiled) and not semidefinite(unpack(answer.hessian, problem.n)):
            return "its Hessian is negative in some direction"
        return None

    def respond(self, agent: Agent, cache: None, part: AskProfile, own_part: Any) -> tuple[None, Profiled]:
        """The means over this site's rows."""
        point, by = agent.objective.at(part.theta), agent.objective.sensitivity(part.theta)
        return None, Profiled(
            point.value,
            point.gradient,
            point.hessian,
            float(by.slope),
            float(by.curvature),
            by.mixed,
        )
