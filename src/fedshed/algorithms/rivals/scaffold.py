"""SCAFFOLD: local steps whose drift is corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1 with option II, every agent in every
round and whole gradients.  c_i follows from what agent i sends, so the Master keeps it and sends c - c_i,
which is as long as the c of the paper.  So agents need no cache.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.base import Info, cost
from fedshed.algorithms.rivals.divergence import divergence_reason
from fedshed.algorithms.rivals.local_steps import MOST_STEPS, LocalState, Shift, _LocalSteps
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import AgentId, Problem

HINT = "lower rate or local_steps"


class ControlState(LocalState, frozen=True):
    """The Master's state with the control variate c_i of each agent, and the cost at the start."""

    controls: dict[AgentId, Vector] = field(default_factory=dict)
    first: float | None = None


class Scaffold(_LocalSteps[ControlState], frozen=True, tag=True):
    """SCAFFOLD: local gradient steps, corrected by control variates c_i.

    Agent i takes steps y <- y - s (g_i(y) - c_i + c), and theta^{t+1} = theta^t + eta (sum_i p_i y_i -
    theta^t). Then c_i becomes the mean of the gradients that agent i computed on its way, and c their mean
    over agents. They start as g_i at theta^1, which needs no further message. At the pooled optimum g_i - c_i
    + c = 0 for every agent, so nothing moves.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    local_steps : int, default 5
        The number of local steps per round.
    rate : float, default 1.0
        The local step size in units of 1/K, where K = max_i lambda_1(H_i(theta^1)) + max l2.
    global_rate : float, default 1.0
        The step size eta of the Master.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Scaffold()
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm, tol=1e-3).converged
    True
    """

    local_steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 5
    global_rate: float = 1.0  # eta
    state: ClassVar[type[ControlState]] = ControlState

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.global_rate < np.inf:
            raise ConfigError(f"global_rate must be a finite number > 0, not {self.global_rate}")

    def own_part(self, problem: Problem, state: ControlState, i: AgentId) -> Shift | None:
        """c - c_i; nothing before the first local steps."""
        if self.step_length(problem, state) == 0:
            return None
        c_i = self.controls(problem, state)
        return Shift(mean_control(problem, c_i) - c_i[i])

    def controls(self, problem: Problem, state: ControlState) -> dict[AgentId, Vector]:
        """c_i of each agent; at the start its gradient there."""
        return state.controls or {i: state.known[i].g + problem.l2 * state.theta for i in problem.agents}

    def average(self, problem: Problem, state: ControlState, rounds: int) -> tuple[ControlState, Info]:
        """The step along the mean gradient, and c_i <- c_i - c + the mean that agent i followed."""
        before, f = self.controls(problem, state), cost(problem, state)
        c = mean_control(problem, before)
        after, info = super().average(problem, state, rounds)
        theta = state.theta + self.global_rate * (after.theta - state.theta)
        controls = {i: before[i] - c + state.followed[i] for i in problem.agents}
        first = f if state.first is None else state.first
        after = replace(after, theta=theta, controls=controls, first=first)
        return after, replace(info, stopped=divergence_reason(state, f, first, HINT))


def mean_control(problem: Problem, controls: dict[AgentId, Vector]) -> Vector:
    """c = sum_i p_i c_i."""
    c: Vector = np.sum([problem.p[i] * controls[i] for i in problem.agents], axis=0)
    return c
