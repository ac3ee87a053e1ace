"""A relay: an agent that answers for the members of a group with sums of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.exchange.groups import Hop
from fedshed.exchange.inprocess import Handler
from fedshed.exchange.sums import blanks, join, split
from fedshed.privacy.addends import add
from fedshed.protocol.codec import Codec, Reply, codec_of
from fedshed.protocol.conversation import AgentId, Conversation
from fedshed.protocol.messages import Declined, Message, Undefined, at_trial_point
from fedshed.protocol.sums import Scaling

TOO_LARGE = "a number of some site is not finite or too large to be added; rescale the columns or the target"


class Relay:
    """Bytes in, bytes out, as for one site: means and totals over the rows of all members.

    Every member must answer; what one of them says in place of an answer is the answer of the group.
    `hop` counts the bytes between the relay and its members.
    """

    def __init__(
        self, members: Mapping[AgentId, Handler], conversation: Conversation, n: int,
        scalings: Mapping[AgentId, Scaling], codec: Codec | None = None, hop: Hop | None = None,
    ) -> None:  # fmt: skip
        self._members, self._conversation, self._n = dict(sorted(members.items())), conversation, n
        self._scalings, self._codec = scalings, codec or codec_of(conversation, n)
        self._hop = hop or Hop()

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply of all members together; a Hessian of theirs counts as one."""
        request = self._codec.decode_request(payload)
        answered = {i: member.handle(payload) for i, member in self._members.items()}
        self._hop.down += len(payload) * len(answered)
        self._hop.up += sum(map(len, answered.values()))
        replies = {i: self._codec.decode_reply(data) for i, data in answered.items()}
        hessians = max(reply.hessians for reply in replies.values())
        answers = _instead(replies) or self._added(request.parts, replies)
        return self._codec.encode_reply(Reply(request.run, request.number, hessians, answers))

    def forget(self) -> None:
        """Every member loses its cache."""
        for member in self._members.values():
            member.forget()

    def _added(self, asked: Sequence[Message], replies: Mapping[AgentId, Reply]) -> list[Any]:
        instead = blanks(self._conversation, asked, self._n)
        found = {i: split(reply.parts, self._scalings[i], instead) for i, reply in replies.items()}
        first = next(iter(found))
        for i, (public, _) in found.items():
            if public != found[first][0]:
                raise ProtocolError(
                    f"sites {first!r} and {i!r} gave answers of different kinds, which cannot be added; "
                    "run the same version of fedshed at both"
                )
        totals = add([addends for _, addends in found.values()])
        answers = join(found[first][0], totals, self._scalings[first], self._conversation.messages)
        return usable(asked, answers)


def usable(asked: Sequence[Message], answers: Sequence[Message]) -> list[Message]:
    """The answers; where one is not defined at another point than a trial point, a refusal in words."""
    for part, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Undefined) and not at_trial_point(part):
            return [Declined(TOO_LARGE)]
    return list(answers)


def _instead(replies: Mapping[AgentId, Reply]) -> list[Any]:
    """What the first member that will not answer says, with its name; nothing where all answer."""
    for i, reply in replies.items():
        for part in reply.parts:
            if part.refuses:
                why = getattr(part, part.refuses)
                named = repr(i) in why or why.startswith("site ")  # a group within names its own member
                return [replace(part, **{part.refuses: why if named else f"site {i!r}: {why}"})]
    return []
