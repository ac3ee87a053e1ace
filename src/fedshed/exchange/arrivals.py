"""The replies of an exchange in the order in which they came; those that are alike are read together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from fedshed._utils.errors import CodecError
from fedshed.protocol.codec import Alike, Codec, Reply, vectors
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.forms import Form

MOST = 256  # replies that are read at a time


class Unreadable(Struct, frozen=True):
    """Bytes that are no reply, and why; the name of the run that they say they belong to, if any."""

    site: AgentId
    why: str
    run: bytes | None


class Arrivals:
    """What came: from whom, how many bytes, and what it says, None where it cannot be read."""

    def __init__(self) -> None:
        self.names, self.sizes = list[AgentId](), list[int]()
        self.replies, self.groups = list[Reply | None](), list[Alike]()
        self.unreadable: list[Unreadable] = []
        self._forms: list[tuple[Form, Reply] | None] = []

    def take(self, codec: Codec, names: tuple[AgentId, ...], data: tuple[bytes, ...]) -> None:
        """Some more replies."""
        start = len(self.names)
        self.names += names
        self.sizes += map(len, data)
        found: list[Reply | None] = [None] * len(names)
        for alike in codec.decode_replies(data, self._forms):
            first = alike.first
            answers = zip(*(part.messages() for part in alike.parts), strict=True)
            for row, parts in zip(alike.rows, answers, strict=True):
                found[row] = Reply(first.run, first.number, first.hessians, list(parts))
            self.groups.append(Alike([start + row for row in alike.rows], first, alike.parts))
        for row, reply in enumerate(found):
            if reply is None:
                found[row] = self._read(codec, names[row], data[row])
        self.replies += found

    def vectors(self, n: int) -> Iterator[float]:
        """The vectors of R^n that each answer carries; those of replies that are alike are looked at once."""
        alike = {row: group for group in self.groups for row in group.rows}
        sizes = {id(group): [vectors(part, n) for part in group.first.parts] for group in self.groups}
        for row, reply in enumerate(self.replies):
            if row in alike:
                yield from sizes[id(alike[row])]
            elif reply is not None:
                yield from (vectors(part, n) for part in reply.parts)

    def _read(self, codec: Codec, name: AgentId, data: bytes) -> Reply | None:
        """One reply by itself."""
        try:
            return codec.decode_reply(data)
        except CodecError as error:
            self.unreadable.append(Unreadable(name, str(error), _run_of(data)))
            return None


def received(codec: Codec, replies: Iterable[tuple[AgentId, bytes]], known: Container[AgentId]) -> Arrivals:
    """All replies of known sites, some hundred at a time."""
    arrivals = Arrivals()
    for names, data in _chunks((i, data) for i, data in replies if i in known):
        arrivals.take(codec, names, data)
    return arrivals


def _chunks(replies: Iterator[tuple[AgentId, bytes]]) -> Iterator[Any]:
    while chunk := list(islice(replies, MOST)):
        yield tuple(zip(*chunk, strict=True))


def _run_of(data: bytes) -> bytes | None:
    """The name of the run that a reply says it belongs to, if it is one at all."""
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, int, msgspec.Raw, msgspec.Raw])[0]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
