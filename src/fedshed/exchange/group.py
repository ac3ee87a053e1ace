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


class Said(Struct, frozen=True):
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
        self._cohorts = list(_cohorts(members, scalings, self._codec))

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply of all members together; a Hessian of theirs counts as one."""
        request = self._codec.decode_request(payload)
        told = [said for cohort in self._cohorts for said in self._answers(cohort, request, payload)]
        self._hop.down += len(payload) * len(self._members)
        hessians = max(said.reply.hessians for said in told)
        answers = _instead(told) or self._added(request.parts, told)
        return self._codec.encode_reply(Reply(request.run, request.number, hessians, answers))

    def forget(self) -> None:
        """Every member loses its cache."""
        for member in self._members.values():
            member.forget()

    def _answers(self, cohort: Cohort, request: Request, payload: bytes) -> list[Said]:
        """The answers of some members; their mean, if they are sites whose answers have one shape."""
        if cohort.weights is None:
            return [self._ask(name, payload) for name in cohort.names]
        told = [self._ask_site(name, request) for name in cohort.names]
        mean = _mean_reply([said.reply for said in told], cohort.weights)
        if mean is None:
            return told
        scaling = replace(told[0].scaling, weight=float(cohort.weights.sum()))
        return [Said(told[0].name, mean, scaling)]

    def _ask(self, name: AgentId, payload: bytes) -> Said:
        """The answer of a member by its bytes."""
        data = self._members[name].handle(payload)
        self._hop.up += len(data)
        return Said(name, self._codec.decode_reply(data), self._scalings[name])

    def _ask_site(self, name: AgentId, request: Request) -> Said:
        """The same of a site of this process: what it sends exactly is what the relay would read."""
        site = self._members[name]
        assert isinstance(site, Site)
        with np.errstate(over="ignore", invalid="ignore"):
            reply, cache = site.reply_to(request)
        encoded = self._codec.encode_reply(reply)
        site.keep(reply, cache, encoded)
        self._hop.up += len(encoded)
        return Said(name, reply, self._scalings[name])

    def _added(self, asked: Sequence[Message], told: Sequence[Said]) -> list[Any]:
        if len(told) == 1:  # the mean of all members, or the one that there is
            return usable(asked, told[0].reply.parts)
        instead = blanks(self._conversation, asked, self._n)
        found = [split(said.reply.parts, said.scaling, instead) for said in told]
        for said, (public, _) in zip(told, found, strict=True):
            if public != found[0][0]:
                raise ProtocolError(
                    f"sites {told[0].name!r} and {said.name!r} gave answers of different kinds, which cannot "
                    "be added; run the same version of fedshed at both"
                )
        totals = add([addends for _, addends in found])
        answers = join(found[0][0], totals, told[0].scaling, self._conversation.messages)
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


class Cohort(Struct, frozen=True):
    """Members that are asked together, with their weights; a member that is asked alone has none here."""

    names: Sequence[AgentId]
    weights: Vector | None = None


def _cohorts(
    members: Mapping[AgentId, Handler], scalings: Mapping[AgentId, Scaling], codec: Codec
) -> Iterator[Cohort]:
    """The members in sorted order: plain sites of this process that are next to each other, and others."""
    waiting: list[AgentId] = []
    for name in sorted(members):
        site = members[name]
        exact = type(site) is Site and site.codec is codec and not codec.lossy
        if waiting and (not exact or len(waiting) == MOST):
            yield _cohort(waiting, scalings)
            waiting = []
        if exact:
            waiting.append(name)
        else:
            yield Cohort([name])
    if waiting:
        yield _cohort(waiting, scalings)


def _cohort(names: Sequence[AgentId], scalings: Mapping[AgentId, Scaling]) -> Cohort:
    return Cohort(names, np.array([scalings[name].weight for name in names]))


def usable(asked: Sequence[Message], answers: Sequence[Message]) -> list[Message]:
    """The answers; where one is not defined at another point than a trial point, a refusal in words."""
    for part, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Undefined) and not at_trial_point(part):
            return [Declined(TOO_LARGE)]
    return list(answers)


def _instead(told: Sequence[Said]) -> list[Any]:
    """What the first member that will not answer says, with its name; nothing where all answer."""
    for said in told:
        for part in said.reply.parts:
            if part.refuses:
                why, named = getattr(part, part.refuses), f"site {said.name!r}"
                known = repr(said.name) in why or why.startswith("site ")  # by a group within, of its member
                return [replace(part, **{part.refuses: why if known else f"{named}: {why}"})]
    return []
