"""A relay: an agent that answers for the members of a group with sums of their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import Error, ProtocolError
from fedshed.exchange.answers import answered_together
from fedshed.exchange.groups import Hop
from fedshed.exchange.inprocess import Handler
from fedshed.exchange.site import UNEXPECTED, Site
from fedshed.exchange.sums import blanks, join, pooled, split
from fedshed.linalg.arrays import Vector
from fedshed.privacy.addends import add
from fedshed.protocol.codec import Codec, Reply, Request, codec_of
from fedshed.protocol.columns import Columns, columns_of
from fedshed.protocol.conversation import AgentId, Conversation
from fedshed.protocol.messages import Declined, Message, Undefined, at_trial_point
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
        """The answers of some members: in one, where they are sites that answer together."""
        if cohort.weights is None:
            return [self._alone(name, payload) for name in cohort.names]
        together = self._together(cohort, request)
        return together or self._alike(cohort, [self._alone(name, payload) for name in cohort.names])

    def _alone(self, name: AgentId, payload: bytes) -> Said:
        data = self._members[name].handle(payload)
        self._hop.up += len(data)
        return Said(name, self._codec.decode_reply(data), self._scalings[name])

    def _together(self, cohort: Cohort, request: Request) -> list[Said] | None:
        """The mean answer of sites that answer in the plural; None: each says for itself, also why not."""
        sites = [cast(Site, self._members[name]) for name in cohort.names]
        assert cohort.weights is not None
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                columns = _columns(sites, request)
                parts = [pooled(part, cohort.weights) for part in columns]
        except (Error, ValueError, ArithmeticError, *UNEXPECTED):
            return None
        if not parts or None in parts:
            return None
        head = request.run, request.number, sites[0].hessians
        one = [part.rows(slice(0, 1)).messages()[0] for part in columns]  # all replies have the same size
        self._hop.up += len(sites) * len(self._codec.encode_reply(Reply(*head, one)))
        return [self._mean(cohort, Reply(*head, parts))]

    def _alike(self, cohort: Cohort, told: list[Said]) -> list[Said]:
        """Answers that were given one by one: their mean, where all are of one kind and have one shape."""
        assert cohort.weights is not None
        if len({len(said.reply.parts) for said in told}) > 1:
            return told
        parts = list[Message]()
        for messages in zip(*(said.reply.parts for said in told), strict=True):
            columns = columns_of(messages)
            mean = None if columns is None else pooled(columns, cohort.weights)
            if mean is None:
                return told
            parts.append(mean)
        hessians = max(said.reply.hessians for said in told)
        return [self._mean(cohort, replace(told[0].reply, parts=parts, hessians=hessians))]

    def _mean(self, cohort: Cohort, reply: Reply) -> Said:
        """The mean answer of all sites of a cohort, which has the weight of all of them."""
        assert cohort.weights is not None
        scaling = replace(self._scalings[cohort.names[0]], weight=float(cohort.weights.sum()))
        return Said(cohort.names[0], reply, scaling)

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


def _columns(sites: Sequence[Site], request: Request) -> list[Columns]:
    """The answers of sites that were sent the same and keep nothing, where all are alike; else nothing."""
    if request.mine is not None:
        return []
    own_parts, agents = [None] * len(sites), [site.agent for site in sites]
    answered = answered_together(sites, request, own_parts, agents) or []
    kept = any(cache is not None for group in answered for cache in group.caches)
    return [] if kept or len(answered) != 1 else answered[0].parts


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
        plural = isinstance(site, Site) and site.plain and site.codec is codec
        if waiting and (not plural or len(waiting) == MOST):
            yield _cohort(waiting, scalings)
            waiting = []
        if plural:
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
