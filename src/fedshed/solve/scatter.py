"""The exchange for errors that are robust by rows: sums of squared scores, perhaps by leverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.protocol.conversation import (
    Agent,
    AgentId,
    Conversation,
    Flow,
    Problem,
    answers_of,
    everyone,
    require_plausible,
)
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import TOTAL, Added, Rule

MOST_ROWS = 2**31 - 1
SCATTER = Added(power=2, matrix=True, fine=True)  # sums of squared scores
SHARES = Added(power=-2, fine=True)  # of variances: in units of 1 / c_j^2
SQUARED_SHARES = Added(power=-4, fine=True)


class Scatter(Message, frozen=True):
    """Asks for sum_j u_j u_j' / (1 - h_j)^power over the rows, u_j being the score of row j at theta.

    h_j is its leverage, from the inverse of the information over all sites, which HC2 and HC3 need (power 1
    and 2; MacKinnon and White 1985).  With `counts` a weight is a number of rows.  With `clustered` it is the
    sum over clusters of rows instead, each with the score of all its rows.
    """

    theta: Vector
    inverse: Packed | None
    power: Annotated[int, Meta(ge=0, le=2)]
    counts: bool
    clustered: bool = False


class Scattered(Message, frozen=True):
    """The sum, a symmetric matrix; and over how many clusters it is, with sum_c s_cj and sum_c s_cj^2.

    s_cj is what cluster c adds to the variance of coefficient j, as far as the inverse information tells.
    """

    squares: Packed
    clusters: int = 0
    shares: Vector | None = None
    squared_shares: Vector | None = None

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "squares": SCATTER, "clusters": TOTAL, "shares": SHARES, "squared_shares": SQUARED_SHARES
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        n = int(np.sqrt(2 * len(self.squares)))
        values = np.linalg.eigvalsh(unpack(self.squares, n))
        if values[0] < -1e-8 * max(values[-1], 0.0) - np.finfo(float).tiny:
            raise ValueError("a sum of squares is not negative in any direction")
        for given in (self.shares, self.squared_shares):
            if given is not None and given.min(initial=0.0) < 0:
                raise ValueError("a share of a variance is at least 0")


def _impossible(problem: Problem, site: AgentId, asked: Scatter, answer: Scattered) -> str | None:
    """Why no site can have this answer, if it cannot."""
    rows = problem.sizes[site].rows if site in problem.sizes else MOST_ROWS
    if not asked.clustered <= answer.clusters <= rows * asked.clustered:
        return f"sent a sum over {answer.clusters} clusters of its {rows} rows"
    if {answer.shares is None, answer.squared_shares is None} != {
        not asked.clustered or asked.inverse is None
    }:
        return "sent shares of variances that were not asked for, or left them out"
    return None


class RowScatter(Conversation, frozen=True, tag=True):
    """One exchange at the estimate."""

    messages: ClassVar[tuple[type[Message], ...]] = (Scatter, Scattered)
    requests = ((Scatter, None),)

    def flow(self, problem: Problem, asked: Scatter) -> Flow[dict[AgentId, Scattered]]:
        """Each site's sum, in sorted order."""
        replies = yield from everyone([asked], problem)
        answers = answers_of(replies, Scattered, Scatter)
        return require_plausible(answers, lambda i, answer: _impossible(problem, i, asked, answer))

    def respond(self, agent: Agent, cache: None, part: Scatter, own_part: Any) -> tuple[None, Scattered]:
        """The sum over this site's rows, or its clusters."""
        if part.clustered:
            scores, shares = agent.objective.cluster_scores(part.theta, _inverse(agent, part))
            return None, Scattered(
                pack(gram(scores)), len(scores),
                None if shares is None else shares.sum(axis=0),
                None if shares is None else np.square(shares).sum(axis=0),
            )  # fmt: skip
        factor = agent.objective.scatter(part.theta, _inverse(agent, part), part.power, part.counts)
        return None, Scattered(pack(gram(factor)))


def _inverse(agent: Agent, part: Scatter) -> Matrix | None:
    return None if part.inverse is None else unpack(part.inverse, agent.objective.dim)
