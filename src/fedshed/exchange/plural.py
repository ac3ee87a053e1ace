"""Many sites of one process answer in the plural: a request is read once, alike replies are written together.

`Site.handle` stays the reference: what is answered here is the same to the bit, and what cannot be answered
together is answered one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedshed._utils.errors import Error
from fedshed.exchange.site import UNEXPECTED, Site, UnanswerableError
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.plural import along_together
from fedshed.protocol.codec import Reply, Request
from fedshed.protocol.columns import Columns, columns_of
from fedshed.protocol.conversation import AgentId, Conversation
from fedshed.protocol.messages import Costs, Search, at_trial_point

MOST = 256  # sites that answer at a time: their answers are there twice, as numbers and as bytes


def answer_all(
    sites: Mapping[AgentId, Any], payloads: Mapping[AgentId, bytes]
) -> list[tuple[AgentId, bytes]]:
    """The encoded reply of every site that is asked, in the order of the payloads."""
    return list(answers(sites, payloads))


def answers(
    sites: Mapping[AgentId, Any], payloads: Mapping[AgentId, bytes]
) -> Iterator[tuple[AgentId, bytes]]:
    """The same, some hundred sites at a time: never are all replies there at once."""
    party = Party()
    for name, payload in payloads.items():
        site = sites[name]
        if not (isinstance(site, Site) and site.plain):
            yield from party.leave()
            yield name, site.handle(payload)
        else:
            request = party.read(site, payload)
            if not party.admits(site, request):
                yield from party.leave()
            party.join(name, site, payload, request)
    yield from party.leave()


class Party:
    """Sites of one conversation that were sent the same request, but for their own parts."""

    def __init__(self) -> None:
        self._names, self._sites = list[AgentId](), list[Site]()
        self._payloads, self._requests = list[bytes](), list[Request]()

    def read(self, site: Site, payload: bytes) -> Request:
        """A site's request; the very same bytes are read once."""
        if self._sites and payload is self._payloads[-1] and site.codec is self._sites[-1].codec:
            return self._requests[-1]
        return site.codec.decode_request(payload)

    def admits(self, site: Site, request: Request) -> bool:
        """Whether a site can answer with those that are here."""
        if not self._sites:
            return True
        last = self._sites[-1]
        same = site.conversation is last.conversation and site.codec is last.codec
        return same and request.located is self._requests[-1].located and len(self._sites) < MOST

    def join(self, name: AgentId, site: Site, payload: bytes, request: Request) -> None:
        """One more site."""
        self._names.append(name)
        self._sites.append(site)
        self._payloads.append(payload)
        self._requests.append(request)

    def leave(self) -> list[tuple[AgentId, bytes]]:
        """The replies of all; nobody is here afterwards."""
        replies = list(zip(self._names, self._replies(), strict=True))
        for gone in (self._names, self._sites, self._payloads, self._requests):
            gone.clear()
        return replies

    def _replies(self) -> list[bytes]:
        if len(self._sites) < 2:
            return [site.handle(payload) for site, payload in zip(self._sites, self._payloads, strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected, not warned of
            return self._together() or self._one_by_one()

    def _together(self) -> list[bytes] | None:
        """The replies from one computation for all; None where there is none."""
        request, first = self._requests[0], self._sites[0]
        if any(other.mine is not None for other in self._requests):
            return None
        try:
            parts = answered_together(self._sites, request)
        except (Error, ValueError, ArithmeticError, *UNEXPECTED):
            return None  # each site says for itself why
        if parts is None:
            return None
        head = request.run, request.number, first.hessians
        replies = first.codec.encode_replies(*head, parts, request.accuracy)
        for row in np.flatnonzero(~np.logical_and.reduce([part.finite() for part in parts])):
            replies[row] = self._sites[row].handle(self._payloads[row])
        return replies

    def _one_by_one(self) -> list[bytes]:
        """Each by itself; exact replies that are alike are written together."""
        if self._sites[0].conversation.lossy:
            return [site.handle(payload) for site, payload in zip(self._sites, self._payloads, strict=True)]
        replies = list(map(_reply, self._sites, self._requests, self._payloads))
        encoded = _written(self._sites[0], replies)
        return encoded or [
            reply if isinstance(reply, bytes) else site.codec.encode_reply(reply)
            for site, reply in zip(self._sites, replies, strict=True)
        ]


def _reply(site: Site, request: Request, payload: bytes) -> Reply | bytes:
    """The reply of one site, whose cache is the new one afterwards; in bytes where it declines."""
    try:
        reply, cache = site.replied(request)
    except UnanswerableError as error:
        return site.declined(payload, str(error))
    site.keep(cache)
    return reply


def _written(site: Site, replies: Sequence[Reply | bytes]) -> list[bytes] | None:
    """Replies that are alike, as bytes; None where one is of another kind."""
    if any(isinstance(reply, bytes) for reply in replies):
        return None
    alike = [reply for reply in replies if isinstance(reply, Reply)]
    first = alike[0]
    if any(r.hessians != first.hessians or len(r.parts) != len(first.parts) for r in alike):
        return None
    parts = []
    for messages in zip(*(reply.parts for reply in alike), strict=True):
        if (columns := columns_of(messages)) is None:
            return None
        parts.append(columns)
    return site.codec.encode_replies(first.run, first.number, first.hessians, parts)


def answered_together(sites: Sequence[Site], request: Request) -> list[Columns] | None:
    """The answers of plain sites of one conversation to a request without own part; None: one by one."""
    with np.errstate(divide="ignore"):  # too far away: rejected later
        as_sent = request.mine is None and all(site.asked_as_sent(request) for site in sites)
    if not as_sent:
        return None
    parts: list[Columns] = []
    for part in request.located:
        found = _costs(sites, part) if isinstance(part, Search) else _answers(sites, part)
        if found is None:
            return None
        parts.append(found)
    return parts


def _answers(sites: Sequence[Site], part: Any) -> Columns | None:
    """What the conversation answers for all, which must have no cache."""
    conversation = sites[0].conversation
    if at_trial_point(part) or not speaks_for_all(type(conversation)):
        return None
    if any(site.remembers for site in sites):
        return None
    return conversation.respond_together([site.agent for site in sites], part)


@lru_cache
def speaks_for_all(kind: type[Conversation]) -> bool:
    """Whether its `respond_together` is about its `respond`: one that a subclass replaced is another's."""
    order = {base: place for place, base in enumerate(kind.__mro__)}
    defined = [
        next(order[base] for base in kind.__mro__ if name in vars(base))
        for name in ("respond_together", "respond")
    ]
    return kind.respond_together is not Conversation.respond_together and defined[0] <= defined[1]


def _costs(sites: Sequence[Site], search: Search) -> Columns | None:
    """The costs of all along a direction; one that overflows is infinite, and will be rejected."""
    objectives = [site.objective for site in sites]
    found = along_together(objectives, search.theta, search.direction, search.etas, search.slopes)
    if found is None:
        return None
    costs, slopes = found
    fields = {"values": _or_infinite(costs), "slopes": None if slopes is None else _or_infinite(slopes)}
    return Columns(Costs, fields, len(sites))


def _or_infinite(values: Matrix) -> Matrix:
    """Numbers; infinity for what is none."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.inf)
