"""A relay: an agent that answers for the members of a group with sums of their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.exchange.groups import Hop
from fedshed.exchange.inprocess import Handler
from fedshed.exchange.site import Site
from fedshed.exchange.sums import blanks, join, pooled, split
from fedshed.linalg.arrays import Vector
from fedshed.privacy.addends import add
from fedshed.protocol.batch import batch_messages
from fedshed.protocol.codec import Codec, codec_of
from fedshed.protocol.conversation import AgentId, Conversation
from fedshed.protocol.messages import Declined, Message, Undefined, at_trial_point
from fedshed.protocol.replies import Reply, Request
from fedshed.protocol.sums import Scaling

TOO_LARGE = "a number of some site is not finite or too large to be added; rescale the columns or the target"
MOST = 1024  # sites that are asked together, whose answers are held at a time


class MemberReply(Struct, frozen=True):
    """What a member answers, or some sites together, and how it is weighed in the sums."""

    name: AgentId
    reply: Reply
    scaling: Scaling


class Relay:
    """Bytes in, bytes out, as for one site: means and totals over the rows of all members.

    Every member must answer; what one of them says in place of an answer is the answer of the group.
    `hop` counts the bytes between the relay and its members.
    """

    def __init__(
        self, members: Mapping[AgentId, Handler], conversation: Conversation, n: int,
        scalings: Mapping[AgentId, Scaling], codec: Codec | None = None, hop: Hop | None = None,
    ) -> None:  # fmt: skip
        self._members, self._conversation, self._n = members, conversation, n
        self._scalings, self._codec = scalings, codec or codec_of(conversation, n)
        self._hop = hop or Hop()
        self._batches = list(_batches(members, scalings, self._codec))

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply of all members together; a Hessian of theirs counts as one."""
        request = self._codec.decode_request(payload)
        replies = [member for batch in self._batches for member in self._ask_batch(batch, request, payload)]
        self._hop.down += len(payload) * len(self._members)
        hessians = max(member.reply.hessians for member in replies)
        answers = _first_refusal(replies) or self._add_answers(request.parts, replies)
        return self._codec.encode_reply(Reply(request.run, request.number, hessians, answers))

    def forget(self) -> None:
        """Every member loses its cache."""
        for member in self._members.values():
            member.forget()

    def _ask_batch(self, batch: MemberBatch, request: Request, payload: bytes) -> list[MemberReply]:
        """The answers of some members; their mean, if they are sites whose answers have one shape."""
        if batch.weights is None:
            return [self._ask(name, payload) for name in batch.names]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected, not warned of
            replies = [self._ask_site(name, request) for name in batch.names]
        mean = _mean_reply([member.reply for member in replies], batch.weights)
        if mean is None:
            self._hop.up += sum(len(self._codec.encode_reply(member.reply)) for member in replies)
            return replies
        self._hop.up += len(replies) * len(self._codec.encode_reply(replies[0].reply))  # of one shape
        scaling = replace(replies[0].scaling, weight=float(batch.weights.sum()))
        return [MemberReply(replies[0].name, mean, scaling)]

    def _ask(self, name: AgentId, payload: bytes) -> MemberReply:
        """The answer of a member by its bytes."""
        data = self._members[name].handle(payload)
        self._hop.up += len(data)
        return MemberReply(name, self._codec.decode_reply(data), self._scalings[name])

    def _ask_site(self, name: AgentId, request: Request) -> MemberReply:
        """The same of a site of this process: what it sends exactly is what the relay would read."""
        site = self._members[name]
        assert isinstance(site, Site)
        reply, cache = site.reply_to(request)
        site.keep(reply, cache)
        return MemberReply(name, reply, self._scalings[name])

    def _add_answers(self, asked: Sequence[Message], replies: Sequence[MemberReply]) -> list[Any]:
        if len(replies) == 1:  # the mean of all members, or the one that there is
            return usable(asked, replies[0].reply.parts)
        instead = blanks(self._conversation, asked, self._n)
        found = [split(member.reply.parts, member.scaling, instead) for member in replies]
        for member, (public, _) in zip(replies, found, strict=True):
            if public != found[0][0]:
                raise ProtocolError(
                    f"sites {replies[0].name!r} and {member.name!r} gave answers of different kinds, which "
                    "cannot be added; run the same version of fedshed at both"
                )
        totals = add([addends for _, addends in found])
        answers = join(found[0][0], totals, replies[0].scaling, self._conversation.messages)
        return usable(asked, answers)


def _mean_reply(replies: Sequence[Reply], weights: Vector) -> Reply | None:
    """The mean of replies whose answers are of one kind and shape; None for any others."""
    if len({len(reply.parts) for reply in replies}) > 1:
        return None
    parts = list[Message]()
    for messages in zip(*(reply.parts for reply in replies), strict=True):
        batch = batch_messages(messages)
        mean = None if batch is None else pooled(batch, weights)
        if mean is None:
            return None
        parts.append(mean)
    return replace(replies[0], parts=parts, hessians=max(reply.hessians for reply in replies))


class MemberBatch(Struct, frozen=True):
    """Members that are asked together, with their weights; a member that is asked alone has none here."""

    names: Sequence[AgentId]
    weights: Vector | None = None


def _batches(
    members: Mapping[AgentId, Handler], scalings: Mapping[AgentId, Scaling], codec: Codec
) -> Iterator[MemberBatch]:
    """The members in sorted order: plain sites of this process that are next to each other, and others."""
    waiting: list[AgentId] = []
    for name in sorted(members):
        site = members[name]
        exact = type(site) is Site and site.codec is codec and not codec.lossy
        if waiting and (not exact or len(waiting) == MOST):
            yield _weigh_batch(waiting, scalings)
            waiting = []
        if exact:
            waiting.append(name)
        else:
            yield MemberBatch([name])
    if waiting:
        yield _weigh_batch(waiting, scalings)


def _weigh_batch(names: Sequence[AgentId], scalings: Mapping[AgentId, Scaling]) -> MemberBatch:
    return MemberBatch(names, np.array([scalings[name].weight for name in names]))


def usable(asked: Sequence[Message], answers: Sequence[Message]) -> list[Message]:
    """The answers; where one is not defined at another point than a trial point, a refusal in words."""
    for part, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Undefined) and not at_trial_point(part):
            return [Declined(TOO_LARGE)]
    return list(answers)


def _first_refusal(replies: Sequence[MemberReply]) -> list[Any]:
    """What the first member that will not answer says, with its name; nothing where all answer."""
    for member in replies:
        for part in member.reply.parts:
            if part.refuses:
                why, named = getattr(part, part.refuses), f"site {member.name!r}"
                known = repr(member.name) in why or why.startswith(
                    "site "
                )  # by a group within, of its member
                return [replace(part, **{part.refuses: why if known else f"{named}: {why}"})]
    return []
