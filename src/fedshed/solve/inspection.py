"""The exchange: each site's exact score, information and fit at the estimate, and at the null model's."""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar

import numpy as np

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.linesearch import Fused
from fedshed.algorithms.newton import Newton
from fedshed.exchange import Transport
from fedshed.exchange.wire import Traffic, Wire
from fedshed.linalg.arrays import Packed, Scalars, Vector, pack
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message
from fedshed.solve.engine import Outcome, Progress, iterate, settled
from fedshed.solve.trace import Row

NO_TRAFFIC = Traffic()


class Inspect(Message, frozen=True):
    """The site's statistics at theta, without the ridge."""

    theta: Vector


class Inspected(Message, frozen=True):
    """Totals over a site's rows; loss, gradient, information are means, to be multiplied by its weight.

    `observed` is the Hessian where it is not the expected information; `pearson` is None where infinite;
    `moments` are the sums from which the null model starts.
    """

    rows: int
    weight: float
    loss: float
    deviance: float
    pearson: float | None
    constant: float
    gradient: Vector
    information: Packed
    observed: Packed | None
    moments: Scalars

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1 or self.weight <= 0:
            raise ValueError(f"a site has rows and a weight, not {self.rows} and {self.weight}")

    @property
    def hessian(self) -> Packed:
        """The Hessian of the mean loss."""
        return self.information if self.observed is None else self.observed


class Inspection(Conversation, frozen=True, tag=True):
    """One exchange that moves nothing: every site must answer, and exactly."""

    messages: ClassVar[tuple[type[Message], ...]] = (Inspect, Inspected)

    def flow(self, problem: Problem, theta: Vector) -> Flow[dict[AgentId, Inspected]]:
        """Each site's answer at theta, in sorted order."""
        replies = yield from everyone([Inspect(theta)], problem)
        for i, (answer,) in replies.items():
            if not isinstance(answer, Inspected):
                raise ProtocolError(f"agent {i!r} answered Inspect with {type(answer).__name__}")
        return {i: answer for i, (answer,) in replies.items()}

    def respond(self, agent: Agent, cache: None, part: Inspect, own_part: Any) -> tuple[None, Inspected]:
        """The exact statistics at theta, never those of an approximation."""
        point = agent.objective.at(part.theta)
        fit, factor, information = point.fit, point.factor, point.information
        return None, Inspected(
            rows=fit.rows,
            weight=agent.objective.weight,
            loss=point.value,
            deviance=fit.deviance,
            pearson=fit.pearson if isfinite(fit.pearson) else None,
            constant=fit.constant,
            gradient=point.gradient,
            information=pack(gram(information)),
            observed=None if information is factor else pack(gram(factor)),
            moments=agent.objective.null_moments(),
        )


def inspect_sites(
    transport: Transport, problem: Problem, theta: Vector, traffic: Traffic = NO_TRAFFIC
) -> tuple[dict[AgentId, Inspected], Traffic]:
    """Play the exchange over a transport whose sites run `Inspection`."""
    wire = Wire(Inspection(), problem, transport, traffic)
    return wire.play(Inspection().flow(problem, theta)), wire.traffic


NULL = Newton(line_search=Fused())
_NULL_TOL, _NULL_ITERATIONS = 1e-10, 100


def null_problem(problem: Problem, dim: int) -> Problem:
    """The intercept-only model of the same sites, without a ridge."""
    names = tuple(f"intercept {k + 1}" for k in range(dim))
    return Problem(np.zeros(dim), problem.weights, problem.loss, names, problem.stateless)


def null_loss(
    transport: Transport, problem: Problem, start: Vector, traffic: Traffic = NO_TRAFFIC
) -> tuple[float | None, Traffic]:
    """The least mean loss of a null problem, over a transport whose sites run `NULL`; None if not reached."""
    progress = Progress(NULL.start(problem, start), traffic, rows=[])
    run = iterate(NULL, problem, transport, progress, tol=_NULL_TOL, max_iterations=_NULL_ITERATIONS)
    while True:
        try:
            next(run)
        except StopIteration as done:
            outcome: Outcome = done.value
            found = settled(outcome.converged, outcome.reason)
            return (outcome.rows[-1].f if found else None), _traffic(outcome.rows[-1], len(problem.agents))


def _traffic(row: Row, agents: int) -> Traffic:
    """The totals that a row of the trace shows per agent."""
    return Traffic(
        row.exchanges,
        row.uplink_bytes,
        row.downlink_bytes,
        row.uplink_vectors * agents,
        round(row.hessians * agents),
    )
