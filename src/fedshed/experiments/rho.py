"""rho = lambda_{q+1} with the step size that is best for it, for the comparison of Figure 4.

eta* = 2 rho / (lambda_{q+1} + lambda_n) (Theorem 1); over several agents the p-weighted means stand for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms import build
from fedshed.algorithms.base import State, advance
from fedshed.algorithms.linesearch import Step
from fedshed.algorithms.rho import NextEigenvalue
from fedshed.linalg import leading_eigenpairs
from fedshed.linalg.arrays import Vector
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem

if TYPE_CHECKING:
    from fedshed.algorithms.base import AnyAlgorithm
    from fedshed.protocol.conversation import Flow
    from fedshed.tables import Federation


class OptimalStep(Struct, frozen=True, tag=True):
    """eta* from the mean of rho and the mean of lambda_n, ridge included; known in a simulation only."""

    smallest: float
    rounds: ClassVar[int] = 0

    def __call__(
        self, algorithm: AnyAlgorithm, problem: Problem, state: State[Any], g: Vector, direction: Vector
    ) -> Flow[Step]:
        """theta + eta* direction."""
        rho = sum(problem.p[i] * state.known[i].curvature.rho for i in problem.agents) + problem.l2.min()
        eta = float(2 * rho / (rho + self.smallest))
        return Step(eta, advance(state, state.theta + eta * direction, g))
        yield  # a flow that asks nothing


def with_optimal_step(federation: Federation, l2: float) -> Any:
    """SHED-LS with rho = lambda_{q+1} and eta*."""
    objectives = local_objectives(federation, "least-squares")
    N = sum(objective.weight for objective in objectives.values())
    start = np.zeros(federation.dim)
    smallest = sum(
        objective.weight / N * leading_eigenpairs(objective.at(start).factor)[0][-1]
        for objective in objectives.values()
    )
    shed: Any = build("shed-ls")
    return replace(shed, rho=NextEigenvalue(), line_search=OptimalStep(float(smallest) + l2))
