"""The replies of an exchange in the order in which they came; those of one shape are read together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from fedshed._utils.errors import CodecError
from fedshed.exchange.inprocess import NamedReplies
from fedshed.protocol.batch import ReplyBatch, ReplyTemplate
from fedshed.protocol.codec import Codec
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.kinds import vectors
from fedshed.protocol.replies import Reply


class Unreadable(Struct, frozen=True):
    """Bytes that are no reply, and why; the name of the run that they say they belong to, if any."""

    site: AgentId
    why: str
    run: bytes | None


class ReceivedReplies:
    """What came: from whom, how many bytes, and each reply that could be read, by its place."""

    def __init__(self) -> None:
        self.names, self.sizes = list[AgentId](), list[int]()
        self.batches, self.single = list[ReplyBatch](), dict[int, Reply]()
        self.unreadable: list[Unreadable] = []
        self._templates: list[ReplyTemplate | None] = []

    def read(self, codec: Codec, names: Sequence[AgentId], data: Sequence[bytes]) -> None:
        """Read some more replies."""
        start, batched = len(self.names), set[int]()
        self.names += names
        self.sizes += map(len, data)
        for batch in codec.decode_replies(data, self._templates):
            batched.update(batch.rows)
            rows = [start + row for row in batch.rows]
            self.batches.append(ReplyBatch(rows, batch.first, batch.parts, batch.answers))
        for row, (name, one) in enumerate(zip(names, data, strict=True)):
            if row in batched:
                continue
            try:
                self.single[start + row] = codec.decode_reply(one)
            except CodecError as error:
                self.unreadable.append(Unreadable(name, str(error), _run_of(one)))

    def replies(self) -> Iterator[tuple[int, AgentId, Reply]]:
        """All that could be read, with their places, in the order in which they came."""
        found = dict(self.single)
        for batch in self.batches:
            head = batch.first
            for row, answers in zip(batch.rows, batch.answers, strict=True):
                found[row] = Reply(head.run, head.number, head.hessians, list(answers))
        yield from ((row, self.names[row], found[row]) for row in sorted(found))

    def heads(self) -> Iterator[tuple[Sequence[AgentId], Reply]]:
        """What precedes the answers, with the sites that sent it; by reply if a site sent two."""
        if len(set(self.names)) < len(self.names):
            yield from (([name], reply) for _, name, reply in self.replies())
            return
        yield from (([self.names[row] for row in batch.rows], batch.first) for batch in self.batches)
        yield from (([self.names[row]], reply) for row, reply in self.single.items())

    def count_vectors(self, n: int) -> float:
        """The vectors of R^n that all answers carry, added in the order in which they came."""
        each: list[tuple[int, list[float]]] = []
        for batch in self.batches:
            equal = all(part.equal_sizes for part in batch.parts)
            sizes = [vectors(part, n) for part in batch.first.parts]
            if equal and len(batch.rows) == len(self.names):
                return float(sum(sizes * len(batch.rows)))
            for row, answers in zip(batch.rows, batch.answers, strict=True):
                each.append((row, sizes if equal else [vectors(part, n) for part in answers]))
        for row, reply in self.single.items():
            each.append((row, [vectors(part, n) for part in reply.parts]))
        return float(sum(size for _, sizes in sorted(each) for size in sizes))


def receive(codec: Codec, replies: Iterable[NamedReplies], known: frozenset[AgentId]) -> ReceivedReplies:
    """All replies of known sites, some hundred at a time."""
    received = ReceivedReplies()
    for names, data in replies:
        if not known.issuperset(names):
            theirs = [row for row, name in enumerate(names) if name in known]
            names, data = [names[row] for row in theirs], [data[row] for row in theirs]
        received.read(codec, names, data)
    return received


def _run_of(data: bytes) -> bytes | None:
    """The name of the run that a reply says it belongs to, if it is one at all."""
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, int, msgspec.Raw, msgspec.Raw])[0]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
