"""Many sites of one process answer in the plural: a request is read once, alike replies are written together.

`Site.handle` stays the reference: what is answered here is the same to the bit, and what cannot be answered
together is answered one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np

from fedshed._utils.errors import Error, ProtocolError
from fedshed.exchange.answers import Answered, answered_apart, answered_together
from fedshed.exchange.site import UNEXPECTED, Site, UnanswerableError
from fedshed.objectives.plural import Crowd
from fedshed.protocol.codec import Alike, Reply, Request
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.links import Forgot

MOST = 256  # sites that answer at a time: their answers are there twice, as numbers and as bytes
Some: TypeAlias = tuple[Sequence[AgentId], Sequence[bytes]]  # names, and the reply of each


def answer_all(
    sites: Mapping[AgentId, Any], payloads: Mapping[AgentId, bytes]
) -> list[tuple[AgentId, bytes]]:
    """The encoded reply of every site that is asked, in the order of the payloads."""
    return [pair for some in Assembly(sites).answers(payloads) for pair in zip(*some, strict=True)]


class Assembly:
    """The sites of a process; who answers together is found once for all exchanges with the same sites.

    `read_here` says that the Master reads their replies in this process, in the order of the answers.
    """

    def __init__(self, sites: Mapping[AgentId, Any], read_here: bool = False) -> None:
        self.sites, self._read_here = sites, read_here
        self._names, self._asked, self._parties = list[AgentId](), list[Any](), list[Party]()

    def answers(self, payloads: Mapping[AgentId, bytes]) -> Iterator[Some]:
        """The encoded replies, some hundred sites at a time, so that not all are in memory at once."""
        names, asked = list(payloads), list(map(self.sites.__getitem__, payloads))
        if names != self._names or not all(map(is_, asked, self._asked)):
            self._names, self._asked, self._parties = names, asked, _parties(names, asked)
        each, start = list(payloads.values()), 0
        for party in self._parties:
            mine = each[start : start + len(party.sites)]
            start += len(mine)
            yield party.names, party.replies(mine, self._read_here)


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

    def replies(self, payloads: Sequence[bytes], read_here: bool = False) -> list[bytes]:
        """The encoded reply of each site; if they are read here, what they are decoded to is remembered."""
        if len(self.sites) > 1 and all(map(attrgetter("plain"), self.sites)):
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected
                    return self._together(payloads, read_here)
            except Error:  # whose error it is, its own call says
                pass
        return [site.handle(payload) for site, payload in zip(self.sites, payloads, strict=True)]

    def _together(self, payloads: Sequence[bytes], read_here: bool) -> list[bytes]:
        """The replies, those that are alike written together."""
        requests = self._requests(payloads)
        groups, apart, replies = self._answered(requests), dict[int, tuple[Reply, Any]](), dict[int, bytes]()
        if groups is None:
            apart, replies = self._one_by_one(requests, payloads)
            groups = answered_apart(apart)
        written = [one for group in groups if (one := self._written(requests[0], group)) is not None]
        for alike, data, _ in written:
            replies.update(zip(alike.rows, data, strict=True))
        for row, site in enumerate(self.sites):
            if row in apart and row not in replies:
                replies[row] = site.encoded(requests[row], *apart[row])
            elif row not in replies:  # it says for itself why it cannot answer
                replies[row] = site.handle(payloads[row])
        for alike, _, caches in written:
            for row, cache in zip(alike.rows, caches, strict=True):
                self.sites[row].keep(cache)
        every = [replies[row] for row in range(len(self.sites))]
        if read_here:
            self.sites[0].codec.remember(every, [alike for alike, _, _ in written])
        return every

    def _requests(self, payloads: Sequence[bytes]) -> list[Request]:
        """The requests, which differ in their own parts alone; one that all are sent is read once."""
        codec = self.sites[0].codec
        first = codec.decode_request(payloads[0])
        if not first.located:
            raise ProtocolError("nothing was asked")
        if all(map(is_, payloads, repeat(payloads[0]))):
            return [first] * len(payloads)
        requests = list(map(codec.decode_request, payloads))
        if any(request.located is not requests[0].located for request in requests):
            raise ProtocolError("sites were asked different things at the same time")
        return requests

    def _answered(self, requests: Sequence[Request]) -> list[Answered] | None:
        """The answers from one computation for all; None where there is none."""
        self._agents = self._agents or Crowd(map(attrgetter("agent"), self.sites))
        own_parts = list(map(attrgetter("mine"), requests))
        try:
            return answered_together(self.sites, requests[0], own_parts, self._agents)
        except (Error, ValueError, ArithmeticError, *UNEXPECTED):
            return None  # each site says for itself why

    def _one_by_one(
        self, requests: Sequence[Request], payloads: Sequence[bytes]
    ) -> tuple[dict[int, tuple[Reply, Any]], dict[int, bytes]]:
        """The reply that each site gives by itself, with its cache afterwards; in bytes where it declines."""
        replies, declined = dict[int, tuple[Reply, Any]](), dict[int, bytes]()
        for row, (site, request) in enumerate(zip(self.sites, requests, strict=True)):
            try:
                replies[row] = site.replied(request)
            except UnanswerableError as error:
                declined[row] = site.declined(payloads[row], str(error))
        return replies, declined

    def _written(self, request: Request, group: Answered) -> tuple[Alike, list[bytes], Sequence[Any]] | None:
        """The replies of a group as the Master sees them and as bytes, and the caches after them."""
        first = self.sites[0]
        group = group.chosen(np.logical_and.reduce([part.possible() for part in group.parts]))
        if not len(group.rows):
            return None
        forgot = any(issubclass(part.kind, Forgot) for part in group.parts)
        accuracy, head = 0.0 if forgot else request.accuracy, (request.run, request.number, group.hessians)
        replies, seen = first.codec.encode_replies(*head, group.parts, accuracy)
        caches = group.caches
        for part in (
            seen if first.listens and not forgot else ()
        ):  # what the Master sees is what they go on from
            caches = first.conversation.sent_together(caches, part)
        return Alike(group.rows, Reply(*head, [part.first for part in seen]), seen), replies, caches
