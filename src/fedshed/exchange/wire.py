"""The wire between the Master and the sites: exchanges are encoded, counted, checked, repeated if need be.

A site that does not answer, or whose answer cannot be used, is absent; the round goes on without it by the
quorum rule, and the run ends when it stays away for too long (docs/faults.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_bytes
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed._utils.names import printable
from fedshed.algorithms.base import SiteModel
from fedshed.exchange import Transport
from fedshed.exchange.convexity import cancelled, contradictions
from fedshed.exchange.reply_checks import MOST_HESSIANS, unusable
from fedshed.objectives import family_of
from fedshed.protocol import codec
from fedshed.protocol.codec import Reply, codec_of
from fedshed.protocol.conversation import LEAD, AgentId, Ask, Conversation, Flow, Problem, Replies

R = TypeVar("R")


class Traffic(Struct, frozen=True):
    """What has crossed the wire so far, all agents together, line search and rejected steps included."""

    exchanges: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_vectors: float = 0.0
    hessians: int = 0


class Contact(Struct, frozen=True):
    """What the Master has had to do with one site so far."""

    last: int = 0  # the exchange it last answered
    silent: int = 0  # exchanges in a row without a usable answer
    refused: int = 0  # answers that could not be used
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    why: str = ""  # why its last answer could not be used, if it has not answered since


class Refusal(Struct, frozen=True):
    """An answer that was not used, and why."""

    exchange: int
    site: AgentId
    why: str


NOBODY: Mapping[AgentId, Any] = {}


class SilenceError(ProtocolError):
    """A site gave no usable answer for as long as patience lasts."""


class Wire:
    """Plays flows over a transport: encodes, counts, decodes, drops what is late or repeated.

    `quorum` sites must answer an exchange; one that leaves `patience` of them unanswered ends the run.
    A reply belongs to an exchange by its number and by the run's own name, so one of another run is late too.
    """

    def __init__(
        self, conversation: Conversation, problem: Problem, transport: Transport, traffic: Traffic,
        *, quorum: int = 1, patience: int = 20, sites: Mapping[AgentId, Contact] = NOBODY, scale: float = 0.0,
    ) -> None:  # fmt: skip
        self._conversation, self._problem = conversation, problem
        self._transport, self._quorum, self._patience = transport, quorum, patience
        self._codec, self._run = codec_of(conversation, problem.n), token_bytes(4)
        family = family_of(problem.loss)
        self._quadratic, self._convex = family.quadratic, family.convex
        self._heard: set[tuple[AgentId, int]] = set()
        # the largest cost of each site, which rounding is relative to
        self._scale = dict.fromkeys(problem.agents, scale)
        self._known: Mapping[AgentId, SiteModel[Any]] = {}
        self.traffic, self.refusals = traffic, list[Refusal]()
        self.sites = {i: replace(sites.get(i, Contact()), silent=0) for i in problem.agents}

    def play(self, flow: Flow[R], known: Mapping[AgentId, SiteModel[Any]] = NOBODY) -> R:
        """Run a flow to its end: each Ask it yields is answered; `known` is what the sites said before."""
        self._known = known
        replies: Replies | None = None
        while True:
            try:
                ask = flow.send(replies)  # type: ignore[arg-type]
            except StopIteration as done:
                result: R = done.value
                return result
            replies = self.answered(ask)

    def answered(self, ask: Ask) -> Replies:
        """The replies of a quorum and of all that are needed; the missing are asked again until then."""
        replies: dict[AgentId, list[Any]] = {}
        while True:
            missing = [i for i in ask.each if i not in replies]
            replies.update(self._exchange(ask.to(missing)))
            enough = len(replies) >= min(self._quorum, len(ask.each))
            if enough and ask.needed <= replies.keys():
                return {i: replies[i] for i in sorted(replies)}

    def _exchange(self, ask: Ask) -> dict[AgentId, list[Any]]:
        """One exchange: the usable answers to it; who is silent for too long ends the run."""
        number = self.traffic.exchanges + 1
        common = self._codec.encode_common(self._run, number, ask.parts)
        payloads = {i: self._codec.encode_request(common, mine) for i, mine in sorted(ask.each.items())}
        arrived = [(i, data) for i, data in self._transport.exchange(payloads) if i in self.sites]
        if (lead := LEAD.get()) is not None:  # a replay goes on from the Master's bits
            lead.adopt(ask.parts)
        replies = [(i, reply) for i, data in arrived if (reply := self._decoded(number, i, data))]
        current = [(i, r) for i, r in replies if i in payloads and (r.run, r.number) == (self._run, number)]
        with np.errstate(over="ignore", invalid="ignore"):  # numbers too large are no contradiction
            usable = self._usable(number, ask, current)
        self._count(number, payloads, arrived, replies)
        self._keep(number, payloads, arrived, usable)
        return usable

    def _decoded(self, number: int, i: AgentId, data: bytes) -> Reply | None:
        try:
            return self._codec.decode_reply(data)
        except CodecError as error:
            if _run_of(data) in (None, self._run):  # one of another run is late, whatever it says
                self._refuse(number, i, str(error))
            return None

    def _usable(
        self, number: int, ask: Ask, replies: list[tuple[AgentId, Reply]]
    ) -> dict[AgentId, list[Any]]:
        """The first answer of each site that can be used: a repeated one may be another."""
        waiting: dict[AgentId, list[list[Any]]] = {}
        for i, reply in replies:
            if not self._refused(number, ask, i, reply):
                waiting.setdefault(i, []).append(reply.parts)
        usable: dict[AgentId, list[Any]] = {}
        while waiting:
            usable |= self._believed(number, ask, {i: answers[0] for i, answers in waiting.items()})
            waiting = {i: said[1:] for i, said in waiting.items() if i not in usable and len(said) > 1}
        return usable

    def _refused(self, number: int, ask: Ask, i: AgentId, reply: Reply) -> bool:
        """Whether a reply is no answer to what was asked."""
        why = unusable(self._conversation, self._problem, ask, ask.each[i], reply)
        if why is not None:
            self._refuse(number, i, why)
        return why is not None

    def _believed(
        self, number: int, ask: Ask, answers: Mapping[AgentId, list[Any]]
    ) -> dict[AgentId, list[Any]]:
        """The answers that convex costs can give; the largest cost of each site is remembered."""
        if self._quadratic:
            for i in answers.keys() & self._known.keys():
                self._scale[i] = max(self._scale[i], cancelled(self._known[i]))
        known = self._known if self._convex else NOBODY  # another cost may lie below its tangents
        false = contradictions(known, ask.parts, answers, self._scale, self._conversation.lossy)
        for i, why in false.items():
            self._refuse(number, i, why)
        for i in answers.keys() - false.keys():
            self._scale[i] = max([self._scale[i], *(abs(getattr(part, "loss", 0.0)) for part in answers[i])])
        return {i: parts for i, parts in answers.items() if i not in false}

    def _refuse(self, number: int, i: AgentId, why: str) -> None:
        words = printable(why)[:MOST_WORDS]
        self.refusals.append(Refusal(number, i, words))
        self.sites[i] = replace(self.sites[i], refused=self.sites[i].refused + 1, why=words)

    def _count(
        self, number: int, payloads: Mapping[AgentId, bytes], arrived: list[tuple[AgentId, bytes]],
        replies: list[tuple[AgentId, Reply]],
    ) -> None:  # fmt: skip
        """Everything that crossed the wire; the Hessians of a reply once, however often it came."""
        hessians = 0
        for i, reply in replies:
            possible = reply.run == self._run and 0 <= reply.hessians <= MOST_HESSIANS
            if possible and (i, reply.number) not in self._heard:
                self._heard.add((i, reply.number))
                hessians += reply.hessians
        sent = sum(codec.vectors(part, self._problem.n) for _, reply in replies for part in reply.parts)
        self.traffic = Traffic(
            exchanges=number,
            uplink_bytes=self.traffic.uplink_bytes + sum(len(data) for _, data in arrived),
            downlink_bytes=self.traffic.downlink_bytes + sum(map(len, payloads.values())),
            uplink_vectors=self.traffic.uplink_vectors + sent,
            hessians=self.traffic.hessians + hessians,
        )

    def _keep(
        self, number: int, payloads: Mapping[AgentId, bytes], arrived: list[tuple[AgentId, bytes]],
        usable: Mapping[AgentId, Any],
    ) -> None:  # fmt: skip
        """Who answered, who did not, and how many bytes went to and came from each."""
        for i, data in arrived:
            site = self.sites[i]
            self.sites[i] = replace(site, uplink_bytes=site.uplink_bytes + len(data))
        for i, payload in payloads.items():
            site = self.sites[i]
            self.sites[i] = replace(
                site,
                last=number if i in usable else site.last,
                silent=0 if i in usable else site.silent + 1,
                why="" if i in usable else site.why,
                downlink_bytes=site.downlink_bytes + len(payload),
            )
        lost = [i for i in payloads if self.sites[i].silent >= self._patience]
        if lost:
            raise SilenceError("; ".join(self._absence(i) for i in lost))

    def _absence(self, i: AgentId) -> str:
        site = self.sites[i]
        why = f"the last it sent could not be used: {site.why}" if site.why else "is it running?"
        return f"agent {i!r} gave no usable answer in {site.silent} exchanges in a row; {why}"


def _run_of(data: bytes) -> bytes | None:
    """The name of the run that a reply says it belongs to, if it is one at all."""
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, int, msgspec.Raw, msgspec.Raw])[0]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


MOST_WORDS = 500  # characters of a reason that are kept
