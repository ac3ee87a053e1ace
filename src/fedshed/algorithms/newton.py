"""Exact Newton with the packed Hessian of every agent in every round: the reference method."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, Info, SiteModel, State, gradient
from fedshed.algorithms.composite import direction
from fedshed.algorithms.linesearch import LineSearch, TwoExchange
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Packed, Vector, unpack
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, Replies
from fedshed.protocol.messages import LocalHessian, Message, Update


class PackedHessian(Struct, frozen=True):
    """One agent's Hessian as it was sent."""

    packed: Packed

    def matvec(self, s: Vector) -> Vector:
        """H s."""
        product: Vector = unpack(self.packed, len(s)) @ s
        return product


class Newton(Algorithm[State[PackedHessian], Update, None, LocalHessian, None], frozen=True, tag=True):
    """Newton's method: theta^{t+1} = theta^t - eta_t H_t^-1 g_t.

    Every agent sends its Hessian, n (n + 1) / 2 numbers, in every round.

    Parameters
    ----------
    precision : Exact, Bits or EntropyCoded, default Exact()
        How precisely an agent's arrays travel.
    line_search : TwoExchange or Fused, default TwoExchange()
        How the step size eta_t is found.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Newton(line_search=fedshed.Fused())
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    line_search: LineSearch = TwoExchange()  # how eta_t is found

    partial: ClassVar[bool] = True
    summable: ClassVar[bool] = True
    composite: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, LocalHessian)
    state = State[PackedHessian]
    cache = None

    def ask(self, problem: Problem, state: State[PackedHessian]) -> Ask:
        """f_i, g_i and H_i at theta^t."""
        return Ask((self.update(state),), dict.fromkeys(problem.agents))

    def absorb(
        self, problem: Problem, state: State[PackedHessian], replies: Replies[LocalHessian]
    ) -> State[PackedHessian]:
        """Each agent that answered is known exactly at theta^t."""
        known = dict(state.known)
        for i, (local,) in replies.items():
            known[i] = SiteModel(state.theta, local.loss, local.gradient, PackedHessian(local.hessian))
        return replace(state, known=known)

    def step(self, problem: Problem, state: State[PackedHessian]) -> Flow[tuple[State[PackedHessian], Info]]:
        """The Newton step, damped by the line search."""
        g = gradient(problem, state)
        H = hessian(problem, state)
        d = direction(problem, state.theta, g, make_definite(H, problem) if self.lossy else H)
        step = yield from self.line_search(self, problem, state, g, d)
        answered = len(problem.agents) - len(state.silent(problem))
        return step.state, Info(
            step.eta, 1 + self.line_search.rounds, renewed=answered, q_max=problem.n, stopped=step.stopped
        )

    def exact_curvature(self, problem: Problem, state: State[PackedHessian]) -> DensePlusRidge | None:
        """H_t, when every agent answered at theta^t."""
        return None if state.silent(problem) or self.precision.lossy else hessian(problem, state)

    def answer_kind(self, part: Any) -> type[Message]:
        """f_i, g_i and H_i."""
        return LocalHessian

    def respond(self, agent: Agent, cache: None, part: Update, own_part: None) -> tuple[None, LocalHessian]:
        """f_i, g_i and H_i at theta^t."""
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        return None, LocalHessian(point.value, point.gradient, point.hessian)


def hessian(problem: Problem, state: State[Any]) -> DensePlusRidge:
    """sum_i p_i H_i + diag(l2), with the Hessian that each agent sent last."""
    packed = np.zeros(problem.n * (problem.n + 1) // 2)
    part, p, known = np.empty_like(packed), problem.p, state.known
    for i in problem.agents:
        packed += np.multiply(known[i].curvature.packed, p[i], out=part)
    return DensePlusRidge(unpack(packed, problem.n), problem.l2, problem.columns)


def make_definite(H: DensePlusRidge, problem: Problem) -> DensePlusRidge:
    """|H| in place of H, which rounding to few bits may have made indefinite."""
    values, columns = np.linalg.eigh(H.dense)
    return DensePlusRidge((columns * np.abs(values)) @ columns.T, problem.l2, problem.columns)
