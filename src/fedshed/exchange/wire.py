"""The wire between the Master and the sites: exchanges are encoded, counted, checked, repeated if need be.

A site that does not answer, or whose answer cannot be used, is absent; the round goes on without it by the
quorum rule, and the run ends when it stays away for too long (docs/faults.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from secrets import token_bytes
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed._utils.names import printable
from fedshed.algorithms.base import SiteModel
from fedshed.exchange import Transport
from fedshed.exchange.contacts import Contact, Contacts
from fedshed.exchange.convexity import cancellation_scale, contradictions
from fedshed.exchange.inprocess import stream_replies
from fedshed.exchange.received import ReceivedReplies, receive
from fedshed.exchange.reply_checks import MOST_HESSIANS, check_batch, mark_undefined, refusal_reason
from fedshed.objectives import family_of
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import LEAD, AgentId, Ask, Conversation, Flow, Problem, Replies
from fedshed.protocol.messages import TOO_LARGE
from fedshed.protocol.replies import Reply

R = TypeVar("R")


class Traffic(Struct, frozen=True):
    """What has crossed the wire so far, all agents together, line search and rejected steps included."""

    exchanges: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_vectors: float = 0.0
    hessians: int = 0


class Refusal(Struct, frozen=True):
    """An answer that was not used, and why."""

    exchange: int
    site: AgentId
    why: str


NOBODY: Mapping[AgentId, Any] = {}


class SilenceError(ProtocolError):
    """A site gave no usable answer for as long as patience lasts.

    `overflow` says that numbers were too large to compute with at every site; a single one may be forging.
    """

    overflow = False


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
        # whose Hessians were counted, by exchange
        self._heard: dict[int, set[AgentId] | frozenset[AgentId]] = {}
        # the largest cost of each site, which rounding is relative to
        self._scale = dict.fromkeys(problem.agents, scale)
        self._known: Mapping[AgentId, SiteModel[Any]] = {}
        self.traffic, self.refusals = traffic, list[Refusal]()
        self._contacts, self._everyone = Contacts(problem.agents, sites), frozenset(problem.agents)

    @property
    def sites(self) -> dict[AgentId, Contact]:
        """What the Master has had to do with each site so far."""
        return self._contacts.all()

    def run_conversation(self, flow: Flow[R], known: Mapping[AgentId, SiteModel[Any]] = NOBODY) -> R:
        """Run a flow to its end; `known` is what the sites said before.

        Each Ask that it yields is answered; one that a site does not answer is raised where it was yielded.
        """
        self._known = known
        go_on: Callable[[], Ask] = partial(next, flow)
        while True:
            try:
                ask = go_on()
            except StopIteration as done:
                result: R = done.value
                return result
            try:
                go_on = partial(flow.send, self.collect_replies(ask))
            except SilenceError as silence:
                go_on = partial(flow.throw, silence)

    def collect_replies(self, ask: Ask) -> Replies[Any]:
        """The replies of a quorum and of all that are needed; the missing are asked again until then."""
        replies: dict[AgentId, Sequence[Any]] = {}
        while True:
            missing = [i for i in ask.each if i not in replies]
            found = self._exchange(ask.to(missing))
            replies.update(found)
            enough = len(replies) >= min(self._quorum, len(ask.each))
            if enough and ask.needed <= replies.keys():
                return {i: replies[i] for i in sorted(replies)}

    def _exchange(self, ask: Ask) -> Replies[Any]:
        """One exchange: the usable answers to it; who is silent for too long ends the run."""
        number = self.traffic.exchanges + 1
        common = self._codec.encode_common(self._run, number, ask.parts)
        payloads = self._codec.encode_requests(common, ask.each)
        received = receive(self._codec, stream_replies(self._transport, payloads), self._everyone)
        if (lead := LEAD.get()) is not None:  # a replay goes on from the Master's bits
            lead.adopt(ask.parts)
        for bad in received.unreadable:
            if bad.run in (None, self._run):  # one of another run is late, whatever it says
                self._refuse(number, bad.site, bad.why)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers too large are no contradiction
            usable = self._usable(number, ask, received)
        self._count(number, payloads, received)
        self._keep(number, payloads, received, usable)
        return usable

    def _usable(self, number: int, ask: Ask, received: ReceivedReplies) -> Replies[Any]:
        """The first answer of each site that can be used: a repeated one may be another."""
        answers, names = self._answers(number, ask, received), received.names
        usable: dict[AgentId, Sequence[Any]] = {}
        waiting = sorted(answers)
        while waiting:
            first: dict[AgentId, Sequence[Any]] = {}
            repeated = [
                row for row in waiting if first.setdefault(names[row], answers[row]) is not answers[row]
            ]
            usable.update(self._drop_contradictions(number, ask, first))
            waiting = [row for row in repeated if names[row] not in usable]
        return usable

    def _answers(self, number: int, ask: Ask, received: ReceivedReplies) -> dict[int, Sequence[Any]]:
        """The replies that answer what was asked, by their places: the answer to each part."""
        exchange, found, single = (self._run, number), dict[int, Sequence[Any]](), dict[int, Reply]()
        for batch in received.batches:
            names, head = [received.names[row] for row in batch.rows], batch.first
            if (head.run, head.number) != exchange:
                continue
            fine = np.zeros(len(names), dtype=bool)
            if ask.each.keys() >= set(names):
                own_parts = [ask.each[i] for i in names]
                fine = check_batch(self._conversation, self._problem, ask, batch, own_parts)
            for row, answers, usable in zip(batch.rows, batch.answers, fine.tolist(), strict=True):
                if usable:
                    found[row] = answers
                else:
                    single[row] = replace(head, parts=list(answers))
        for row, reply in (single | received.single).items():
            i = received.names[row]
            if (reply.run, reply.number) != exchange or i not in ask.each:
                continue
            if not self._is_refused(number, ask, i, reply):
                found[row] = mark_undefined(ask, reply.parts)
        return found

    def _is_refused(self, number: int, ask: Ask, i: AgentId, reply: Reply) -> bool:
        """Whether a reply is no answer to what was asked."""
        why = refusal_reason(self._conversation, self._problem, ask, ask.each[i], reply)
        if why is not None:
            self._refuse(number, i, why)
        return why is not None

    def _drop_contradictions(self, number: int, ask: Ask, answers: Replies[Any]) -> Replies[Any]:
        """The answers that convex costs can give; the largest cost of each site is remembered."""
        if self._quadratic:
            for i in answers.keys() & self._known.keys():
                self._scale[i] = max(self._scale[i], cancellation_scale(self._known[i]))
        known = self._known if self._convex else NOBODY  # another cost may lie below its tangents
        false = contradictions(known, ask.parts, answers, self._scale, self._conversation.lossy)
        for i, why in false.items():
            self._refuse(number, i, why)
        plausible = {i: parts for i, parts in answers.items() if i not in false} if false else answers
        for i, cost in _costs(plausible):
            if abs(cost) > self._scale[i]:
                self._scale[i] = abs(cost)
        return plausible

    def _refuse(self, number: int, i: AgentId, why: str) -> None:
        words = printable(why)[:MOST_WORDS]
        self.refusals.append(Refusal(number, i, words))
        self._contacts.refuse(i, words)

    def _count(self, number: int, payloads: Mapping[AgentId, bytes], received: ReceivedReplies) -> None:
        """Everything that crossed the wire; the Hessians of a reply once, however often it came."""
        self.traffic = Traffic(
            exchanges=number,
            uplink_bytes=self.traffic.uplink_bytes + sum(received.sizes),
            downlink_bytes=self.traffic.downlink_bytes + sum(map(len, payloads.values())),
            uplink_vectors=self.traffic.uplink_vectors + received.count_vectors(self._problem.n),
            hessians=self.traffic.hessians + self._hessians(received),
        )

    def _hessians(self, received: ReceivedReplies) -> int:
        """The Hessians of replies that were not heard before."""
        total = 0
        for names, head in received.heads():
            heard = self._heard.setdefault(head.number, set()) if head.run == self._run else self._everyone
            if isinstance(heard, set) and 0 <= head.hessians <= MOST_HESSIANS:
                before = len(heard)
                heard.update(names)
                total += (len(heard) - before) * head.hessians
                if len(heard) == len(self._everyone):  # nobody is missing: one set for all such exchanges
                    self._heard[head.number] = self._everyone
        return total

    def _keep(
        self,
        number: int,
        payloads: Mapping[AgentId, bytes],
        received: ReceivedReplies,
        usable: Mapping[AgentId, Any],
    ) -> None:
        """Who answered, who did not, and how many bytes went to and came from each."""
        self._contacts.receive(received.names, received.sizes)
        asked = list(payloads)
        self._contacts.ask(number, asked, list(map(len, payloads.values())), usable)
        if lost := self._contacts.lost(asked, self._patience):
            silence = SilenceError("; ".join(self._silence_reason(i) for i in lost))
            silence.overflow = self._everyone.issubset(lost) and all(
                self._contacts.of(i).why.endswith(TOO_LARGE) for i in lost
            )
            raise silence

    def _silence_reason(self, i: AgentId) -> str:
        site = self._contacts.of(i)
        why = f"its last answer could not be used: {site.why}" if site.why else "is it running?"
        return f"agent {i!r} gave no usable answer in {site.silent} exchanges in a row; {why}"


def _costs(replies: Replies[Any]) -> Iterator[tuple[AgentId, float]]:
    """Every cost of a site in the replies."""
    return ((i, getattr(part, "loss", 0.0)) for i, parts in replies.items() for part in parts)


MOST_WORDS = 500  # characters of a reason that are kept
