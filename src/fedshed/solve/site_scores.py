"""The exchange in which sites compare their scores themselves, where nobody may see those of one site.

Heterogeneity, errors clustered by site and how many sites inform a coefficient are sums over sites; what each
adds is computed here, at the Master from what a site said, or at the site itself in a protected study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.solve import inverse_root
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import FINE, TOTAL, Rule
from fedshed.solve.inspection import Inspect, Inspected, Inspection
from fedshed.solve.scatter import SCATTER, SHARES, SQUARED_SHARES


class AskScores(Message, frozen=True):
    """Asks how a site's score at theta differs from what all sites together say.

    `excess` is I^+ sum_j s_j, `ridge` is l2 theta, and `inverse` the inverse information of all sites, ridge
    included.  Without it only the test of heterogeneity is asked for: of few sites, errors by site mean
    nothing, and u_i u_i' summed over three that add up to 0 gives all three away but for one angle.
    """

    theta: Vector
    excess: Vector
    ridge: Vector
    inverse: Packed | None


class Scores(Message, frozen=True):
    """What `sites` sites add to the statistics of all; u_i = W_i (g_i + l2 theta), s_i = -W_i g_i.

    `squares` is u_i u_i'; `statistic` is |R'(s_i - I_i excess)|^2 with RR' = I_i^+, on `rank` degrees of
    freedom; `shares` is the diagonal of A I_i A with the inverse A, and `squared_shares` its squares.
    """

    squares: Packed | None
    statistic: float
    rank: Count
    shares: Vector | None
    squared_shares: Vector | None
    sites: Count = 1

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "squares": SCATTER, "statistic": FINE, "rank": TOTAL, "shares": SHARES,
        "squared_shares": SQUARED_SHARES, "sites": TOTAL,
    }  # fmt: skip

    def __add__(self, other: Scores) -> Scores:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        sums: list[Any] = [None if a is None or b is None else a + b for a, b in pairs]
        return Scores(*sums)


class Whitened(Struct, frozen=True):
    """The information I_i of a site, R with RR' = I_i^+, and R'(s_i - I_i excess)."""

    information: Matrix
    root: Matrix
    u: Vector

    @property
    def statistic(self) -> float:
        """u'u."""
        return float(self.u @ self.u)


def whitened(site: Inspected, excess: Vector) -> Whitened:
    """A site's score in units in which its information is 1, without its share of what all scores sum to."""
    own = site.weight * unpack(site.information, len(excess))
    R = inverse_root(own)
    return Whitened(own, R, R.T @ (-site.weight * site.gradient - own @ excess))


def scores_of(site: Inspected, asked: AskScores, own: Whitened) -> Scores:
    """What one site adds to the statistics of all."""
    if asked.inverse is None:
        return Scores(None, own.statistic, len(own.u), None, None)
    u = site.weight * (site.gradient + asked.ridge)
    A = unpack(asked.inverse, len(u))
    variances = np.maximum(((A @ own.information) * A).sum(axis=1), 0.0)
    squares = pack(np.outer(u, u))
    return Scores(squares, own.statistic, len(own.u), variances, np.square(variances))


def total(scores: Iterable[Scores]) -> Scores:
    """The sums over sites."""
    return reduce(Scores.__add__, scores)


class SiteScores(Conversation, frozen=True, tag=True):
    """One exchange at the estimate, of a protected study only."""

    messages: ClassVar[tuple[type[Message], ...]] = (AskScores, Scores)
    requests = ((AskScores, None),)

    def flow(self, problem: Problem, asked: AskScores) -> Flow[Scores]:
        """The sums over all sites."""
        replies = yield from everyone([asked], problem)
        answers: dict[AgentId, Scores] = answers_of(replies, Scores, AskScores)
        return total(answers.values())

    def respond(self, agent: Agent, cache: None, part: AskScores, own_part: Any) -> tuple[None, Scores]:
        """What this site adds, from its exact statistics at theta."""
        _, site = Inspection().respond(agent, None, Inspect(part.theta), None)
        return None, scores_of(site, part, whitened(site, part.excess))
