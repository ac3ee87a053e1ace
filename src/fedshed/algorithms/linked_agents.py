"""The agents' half of algorithms over coded links: what they hold, and how they answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, State
from fedshed.algorithms.eigenpair_cache import Spectrum
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.protocol import links
from fedshed.protocol.conversation import Agent
from fedshed.protocol.links import (
    AgentLink,
    AlongDirection,
    AtCurrentPoint,
    FirstExchange,
    FirstReply,
    FirstRequest,
)
from fedshed.protocol.messages import Local, LocalWhole, Update, at_trial_point

OVER_LINKS = (AtCurrentPoint, AlongDirection)  # a tuple: a union would be made anew at every look


class LinkCache(Struct, frozen=True, gc=False):
    """What an agent holds: the point with its last search, and its gradient as the Master knows it.

    `before` is the gradient before its last answer, which may not have arrived.
    """

    theta: Vector
    frame: bytes = b""
    direction: Vector | None = None
    etas: Scalars | None = None
    g: Vector | None = None
    before: Vector | None = None
    units: Vector | None = None  # of the gradient that is being sent; None: it is exact
    inner: Spectrum | None = None


S = TypeVar("S", bound=State[Any])
G = TypeVar("G", bound=Local | LocalWhole)


class LinkedAgents(Algorithm[S, Any, Any, Any, Any], Generic[S], frozen=True):
    """Agents that know theta by the directions sent to them, and their gradient as the Master knows it."""

    cache: ClassVar[Any] = LinkCache
    updates_cache_when_sent: ClassVar[bool] = True

    def located(
        self, cache: LinkCache | None, parts: Sequence[Any], own_part: Any, n: int
    ) -> tuple[Any, Sequence[Any], Any] | None:
        """The request in full, from what the agent holds; None where it holds something else."""
        first = parts[0] if parts else None
        if isinstance(first, FirstExchange):
            return *_first_request(first, parts, n), None
        if not (isinstance(first, OVER_LINKS) and isinstance(own_part, AgentLink)):
            return cache, parts, own_part
        held = _recall_cache(cache or LinkCache(np.zeros(n)), first.frame, own_part)
        if held is None:
            return None
        if isinstance(first, AtCurrentPoint):
            return held, [Update(first.t, held.theta, first.accuracy), *parts[1:]], own_part.part
        search, rest = _complete_search(held.theta, held.frame, parts)
        return replace(held, direction=search.direction, etas=search.etas), [search, *rest], own_part.part

    def code_gradient(self, agent: Agent, held: LinkCache, part: Update, answer: G) -> tuple[LinkCache, G]:
        """An answer with what is new of its gradient in place of the gradient."""
        if not part.accuracy:
            return replace(held, units=None), answer
        units = self._units(held.frame, agent.objective.dim)
        change = answer.gradient if held.before is None else answer.gradient - held.before
        coded = replace(answer, gradient=change if units is None else change / units)
        return replace(held, units=units), coded

    def respond_first(
        self, agent: Agent, held: LinkCache, part: FirstRequest
    ) -> tuple[LinkCache, FirstReply]:
        """f_i, g_i and the diagonal of H_i, in whose units gradients are rounded."""
        point = agent.objective.at(part.theta)
        coded = links.encode_diagonal(point.diagonal)
        units = self._units(coded, agent.objective.dim)
        g = point.gradient if units is None else point.gradient / units
        return replace(held, units=units), FirstReply(point.value, g, coded)

    def sent(self, cache: Any, answer: Any) -> Any:
        """The agent's gradient becomes what the Master makes of its answer."""
        if not isinstance(cache, LinkCache) or not hasattr(answer, "gradient"):
            return cache
        reference = None if cache.units is None else cache.before
        return replace(cache, g=links.copied(reference, cache.units, answer.gradient), units=None)

    def _units(self, coded: bytes, n: int) -> Vector | None:
        """The units of gradients, where they are rounded."""
        return links.units_of(coded, n) if self.lossy else None


def _first_request(begin: FirstExchange, parts: Sequence[Any], n: int) -> tuple[LinkCache, list[Any]]:
    """What an agent holds at the start, and the first request in full."""
    theta = _origin(n) if begin.start is None else begin.start
    return LinkCache(theta), [FirstRequest(theta, begin.accuracy), *parts[1:]]


@lru_cache(maxsize=4)  # agents of one process start at one point
def _origin(n: int) -> Vector:
    origin = np.zeros(n)
    origin.flags.writeable = False
    return origin


def _complete_search(theta: Vector, frame: bytes, parts: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A search in full and the parts that follow it; of agents that read one request at one point, once."""
    key, (known, kept) = (theta, frame, parts), _LAST[0]
    found: tuple[Any, list[Any]] = kept
    if not all(map(is_, known, key)):
        search = links.search_from(theta, parts[0], frame)
        trial = links.moved(theta, 1.0, search.direction)
        rest = [replace(part, theta=trial) if at_trial_point(part) else part for part in parts[1:]]
        found = search, rest
        _LAST[0] = key, found
    return found


_LAST: list[tuple[tuple[Any, ...], Any]] = [((None, None, None), None)]  # found by identity only


def _recall_cache(held: LinkCache, frame: bytes, own: AgentLink) -> LinkCache | None:
    """What the digests name: what was sent along, or the point held, or a step of its last search."""
    if own.whole is not None:
        whole = own.whole
        return replace(held, theta=whole.theta, frame=whole.frame, g=whole.gradient, before=whole.gradient)
    frame = frame or held.frame
    theta = next((p for p in _known_points(held) if links.digest_of_point(p, frame) == own.point), None)
    copies = [g for g in (held.g, held.before) if g is not None]
    copy = next((g for g in copies if links.digest(g.tobytes()) == own.gradient), None)
    if theta is None or (own.gradient is not None and copy is None):
        return None
    return replace(held, theta=theta, frame=frame, g=copy, before=copy)


def _known_points(held: LinkCache) -> Iterator[Vector]:
    yield held.theta
    if held.direction is not None and held.etas is not None:
        for eta in held.etas.tolist():
            yield links.moved(held.theta, eta, held.direction)
