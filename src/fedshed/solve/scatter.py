"""The exchange for errors that are robust by rows: sums of squared scores, perhaps by leverage."""

from __future__ import annotations

from typing import Any, ClassVar

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Packed, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message


class Scatter(Message, frozen=True):
    """Asks for sum_j u_j u_j' / (1 - h_j)^power over the rows, u_j being the score of row j at theta.

    h_j is its leverage, from the inverse of the information over all sites, which HC2 and HC3 need (power 1
    and 2; MacKinnon and White 1985).  With `counts` a weight is a number of rows.  With `clustered` it is the
    sum over clusters of rows instead, each with the score of all its rows.
    """

    theta: Vector
    inverse: Packed | None
    power: int
    counts: bool
    clustered: bool = False


class Scattered(Message, frozen=True):
    """The sum, a symmetric matrix, and how many clusters it is over."""

    squares: Packed
    clusters: int = 0


class RowScatter(Conversation, frozen=True, tag=True):
    """One exchange at the estimate."""

    messages: ClassVar[tuple[type[Message], ...]] = (Scatter, Scattered)

    def flow(self, problem: Problem, asked: Scatter) -> Flow[dict[AgentId, Scattered]]:
        """Each site's sum, in sorted order."""
        replies = yield from everyone([asked], problem)
        for i, (answer,) in replies.items():
            if not isinstance(answer, Scattered):
                raise ProtocolError(f"agent {i!r} answered Scatter with {type(answer).__name__}")
        return {i: answer for i, (answer,) in replies.items()}

    def respond(self, agent: Agent, cache: None, part: Scatter, own_part: Any) -> tuple[None, Scattered]:
        """The sum over this site's rows, or its clusters."""
        if part.clustered:
            scores = agent.objective.cluster_scores(part.theta)
            return None, Scattered(pack(gram(scores)), len(scores))
        inverse = None if part.inverse is None else unpack(part.inverse, agent.objective.dim)
        factor = agent.objective.scatter(part.theta, inverse, part.power, part.counts)
        return None, Scattered(pack(gram(factor)))
