"""Many sites of one process answer in the plural: a request is read once, alike replies are written together.

`Site.handle` stays the reference: what is answered here is the same to the bit, and what cannot be answered
together is answered one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np

from fedshed._utils.errors import Error
from fedshed.exchange.plural_coded import coded_replies
from fedshed.exchange.site import UNEXPECTED, Site, UnanswerableError
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.plural import Crowd, along_together
from fedshed.protocol.codec import Reply, Request
from fedshed.protocol.columns import Columns, columns_of
from fedshed.protocol.conversation import AgentId, Conversation
from fedshed.protocol.messages import Costs, Search, at_trial_point

MOST = 256  # sites that answer at a time: their answers are there twice, as numbers and as bytes
Some: TypeAlias = tuple[Sequence[AgentId], Sequence[bytes]]  # names, and the reply of each


def answer_all(
    sites: Mapping[AgentId, Any], payloads: Mapping[AgentId, bytes]
) -> list[tuple[AgentId, bytes]]:
    """The encoded reply of every site that is asked, in the order of the payloads."""
    return [pair for some in Assembly(sites).answers(payloads) for pair in zip(*some, strict=True)]


class Assembly:
    """The sites of a process; who answers together is found once for all exchanges with the same sites."""

    def __init__(self, sites: Mapping[AgentId, Any]) -> None:
        self.sites = sites
        self._names, self._asked, self._parties = list[AgentId](), list[Any](), list[Party]()

    def answers(self, payloads: Mapping[AgentId, bytes]) -> Iterator[Some]:
        """The encoded replies, some hundred sites at a time: never are all of them there at once."""
        names, asked = list(payloads), list(map(self.sites.__getitem__, payloads))
        if names != self._names or not all(map(is_, asked, self._asked)):
            self._names, self._asked, self._parties = names, asked, _parties(names, asked)
        each, start = list(payloads.values()), 0
        for party in self._parties:
            mine = each[start : start + len(party.sites)]
            start += len(mine)
            yield party.names, party.replies(mine)


def _parties(names: Sequence[AgentId], sites: Sequence[Any]) -> list[Party]:
    """Neighbours of one conversation and codec, in the order of the names."""
    parties: list[Party] = []
    for name, site in zip(names, sites, strict=True):
        if not (parties and parties[-1].admits(site)):
            parties.append(Party())
        parties[-1].names.append(name)
        parties[-1].sites.append(site)
    return parties


class Party:
    """Neighbours that speak one conversation with one codec; or a single site of whatever kind."""

    def __init__(self) -> None:
        self.names, self.sites, self._agents = list[AgentId](), list[Any](), Crowd()

    def admits(self, site: Any) -> bool:
        """Whether a site may answer with those that are here."""
        first = self.sites[0]
        return (
            type(site) is type(first) is Site and len(self.sites) < MOST
            and site.conversation is first.conversation and site.codec is first.codec
            and site.stacked == first.stacked
        )  # fmt: skip

    def replies(self, payloads: Sequence[bytes]) -> list[bytes]:
        """The encoded reply of each site."""
        if len(self.sites) < 2 or not all(map(attrgetter("plain"), self.sites)):
            return [site.handle(payload) for site, payload in zip(self.sites, payloads, strict=True)]
        same = all(map(is_, payloads, repeat(payloads[0]))) and not self.sites[0].listens
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected, not warned of
            return (same and self._together(payloads)) or self._one_by_one(payloads)

    def _together(self, payloads: Sequence[bytes]) -> list[bytes] | None:
        """The replies to one request from one computation for all; None where there is none."""
        codec = self.sites[0].codec
        request = codec.decode_request(payloads[0])
        self._agents = self._agents or Crowd(map(attrgetter("agent"), self.sites))
        try:
            parts = answered_together(self.sites, request, self._agents)
        except (Error, ValueError, ArithmeticError, *UNEXPECTED):
            return None  # each site says for itself why
        if parts is None:
            return None
        fine = np.logical_and.reduce([part.finite() for part in parts])
        if not fine.any():
            return None
        head = request.run, request.number, self.sites[0].hessians
        if fine.all():
            return codec.encode_replies(*head, parts, request.accuracy)  # type: ignore[no-any-return]
        parts = [part.rows(np.flatnonzero(fine)) for part in parts]
        found = iter(codec.encode_replies(*head, parts, request.accuracy))
        each = zip(self.sites, payloads, fine.tolist(), strict=True)
        return [next(found) if one else site.handle(payload) for site, payload, one in each]

    def _one_by_one(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Each by itself; replies that are alike are written together."""
        first = self.sites[0]
        if first.conversation.precision.lossy:
            return coded_replies(self.sites, payloads)
        if first.listens:
            return [site.handle(payload) for site, payload in zip(self.sites, payloads, strict=True)]
        replies = list(map(_reply, self.sites, payloads))
        return _written(first, replies) or [
            reply if isinstance(reply, bytes) else site.codec.encode_reply(reply)
            for site, reply in zip(self.sites, replies, strict=True)
        ]


def _reply(site: Site, payload: bytes) -> Reply | bytes:
    """The reply of one site, whose cache is the new one afterwards; in bytes where it declines."""
    request = site.codec.decode_request(payload)
    try:
        reply, cache = site.replied(request)
    except UnanswerableError as error:
        return site.declined(payload, str(error))
    site.keep(cache)
    return reply


def _written(site: Site, replies: Sequence[Reply | bytes]) -> list[bytes] | None:
    """Replies that are alike, as bytes; None where one is of another kind."""
    alike = [reply for reply in replies if isinstance(reply, Reply)]
    first = alike[0] if len(alike) == len(replies) else None
    if first is None or any(r.hessians != first.hessians or r.number != first.number for r in alike):
        return None
    parts = [columns_of(messages) for messages in zip(*(reply.parts for reply in alike), strict=False)]
    found = [part for part in parts if part is not None]
    whole = len(found) == len(parts) and all(len(reply.parts) == len(parts) for reply in alike)
    return site.codec.encode_replies(first.run, first.number, first.hessians, found) if whole else None


def answered_together(
    sites: Sequence[Site], request: Request, agents: Sequence[Any] = ()
) -> list[Columns] | None:
    """The answers of plain sites of one conversation to a request without own part; None: one by one.

    `agents` are those of the sites, in a `Crowd` where the sites are asked again and again.
    """
    if request.mine is not None or not _as_sent(sites, request):
        return None
    agents, parts = agents or Crowd(map(attrgetter("agent"), sites)), list[Columns]()
    for site in sites:
        site.begin()
    for part in request.located:
        found = _costs(agents, part) if isinstance(part, Search) else _answers(sites, agents, part)
        if found is None:
            return None
        parts.append(found)
    return parts


def _as_sent(sites: Sequence[Site], request: Request) -> bool:
    """Whether the parts of a request are in full as they were sent, for all sites."""
    conversation = sites[0].conversation
    if type(conversation).located is Conversation.located:
        return True
    if not _empty(sites):
        return False  # a cache may be what the request goes on from
    with np.errstate(divide="ignore"):  # too far away: rejected later
        located = conversation.located(None, request.located, None, sites[0].objective.dim)
    return located is not None and located[0] is None and located[1] is request.located


def _empty(sites: Sequence[Site]) -> bool:
    """Whether no site has a cache."""
    return all(map(is_, map(attrgetter("_cache"), sites), repeat(None)))


def _answers(sites: Sequence[Site], agents: Sequence[Any], part: Any) -> Columns | None:
    """What the conversation answers for all, which must have no cache."""
    conversation = sites[0].conversation
    if at_trial_point(part) or not speaks_for_all(type(conversation)) or not _empty(sites):
        return None
    return conversation.respond_together(agents, part)


@lru_cache
def speaks_for_all(kind: type[Conversation]) -> bool:
    """Whether its `respond_together` is about its `respond`: one that a subclass replaced is another's."""
    return kind.respond_together is not Conversation.respond_together and kind.goes_with(
        "respond_together", "respond"
    )


def _costs(agents: Sequence[Any], search: Search) -> Columns | None:
    """The costs of all along a direction; one that overflows is infinite, and will be rejected."""
    found = along_together(agents, search.theta, search.direction, search.etas, search.slopes)
    if found is None:
        return None
    costs, slopes = found
    fields = {"values": _or_infinite(costs), "slopes": None if slopes is None else _or_infinite(slopes)}
    return Columns(Costs, fields, len(agents))


def _or_infinite(values: Matrix) -> Matrix:
    """Numbers; infinity for what is none."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.inf)
