"""The replies of an exchange in the order in which they came; those that are alike are read together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import lt
from typing import Any

import msgspec
from msgspec import Struct

from fedshed._utils.errors import CodecError
from fedshed.exchange.plural import Some
from fedshed.protocol.codec import Alike, Codec, Reply
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.forms import Form
from fedshed.protocol.kinds import vectors
from fedshed.protocol.replies import Gathered


class Unreadable(Struct, frozen=True):
    """Bytes that are no reply, and why; the name of the run that they say they belong to, if any."""

    site: AgentId
    why: str
    run: bytes | None


class Arrivals:
    """What came: from whom and how many bytes; what is alike by columns, the rest reply by reply."""

    def __init__(self) -> None:
        self.names, self.sizes = list[AgentId](), list[int]()
        self.groups, self.alone = list[Alike](), dict[int, Reply]()  # by the place in the order of arrival
        self.unreadable: list[Unreadable] = []
        self._forms: list[tuple[Form, Reply] | None] = []

    def take(self, codec: Codec, names: Sequence[AgentId], data: Sequence[bytes]) -> None:
        """Some more replies."""
        start, taken = len(self.names), set[int]()
        self.names += names
        self.sizes += map(len, data)
        for alike in codec.decode_replies(data, self._forms):
            taken.update(alike.rows)
            self.groups.append(Alike([start + row for row in alike.rows], alike.first, alike.parts))
        for row, (name, one) in enumerate(zip(names, data, strict=True)):
            if row not in taken and (reply := self._read(codec, name, one)) is not None:
                self.alone[start + row] = reply

    @cached_property
    def parts(self) -> dict[int, Sequence[Any]]:
        """The answers of each reply that could be read, in messages, by its place."""
        found: dict[int, Sequence[Any]] = {row: reply.parts for row, reply in self.alone.items()}
        for group in self.groups:
            answers = zip(*(part.messages() for part in group.parts), strict=True)
            found.update(zip(group.rows, answers, strict=True))
        return found

    def gathered(self) -> Gathered:
        """The answers of sites whose replies are all alike, by columns."""
        return Gathered([([self.names[row] for row in group.rows], group.parts) for group in self.groups])

    @property
    def all_alike(self) -> bool:
        """Whether each site sent one reply, in the order of the names, and the groups have all, in order."""
        rows = [row for group in self.groups for row in group.rows]
        ordered = all(map(lt, self.names, self.names[1:]))
        return ordered and rows == list(range(len(self.names)))

    @property
    def distinct(self) -> bool:
        """Whether no site sent more than one reply."""
        return len(set(self.names)) == len(self.names)

    def replies(self) -> Iterator[tuple[int, AgentId, Reply]]:
        """All that could be read, with their places, in the order in which they came."""
        alike = {row: group.first for group in self.groups for row in group.rows}
        for row, name in enumerate(self.names):
            if row in self.alone:
                yield row, name, self.alone[row]
            elif row in alike:
                head = alike[row]
                yield row, name, Reply(head.run, head.number, head.hessians, list(self.parts[row]))

    def heads(self) -> Iterator[tuple[Sequence[AgentId], Reply]]:
        """What precedes the answers, with the sites that sent it; by reply where a site sent two."""
        if not self.distinct:
            yield from (([name], reply) for _, name, reply in self.replies())
            return
        yield from (([self.names[row] for row in group.rows], group.first) for group in self.groups)
        yield from (([self.names[row]], reply) for row, reply in self.alone.items())

    def vectors(self, n: int) -> float:
        """The vectors of R^n that all answers carry; those of replies that are alike are looked at once."""
        each: list[Any] = [()] * len(self.names)
        for group in self.groups:
            even = all(part.even for part in group.parts)
            sizes = [vectors(part, n) for part in group.first.parts]
            for row in group.rows:
                each[row] = sizes if even else [vectors(part, n) for part in self.parts[row]]
        for row, reply in self.alone.items():
            each[row] = [vectors(part, n) for part in reply.parts]
        return float(sum(chain.from_iterable(each)))

    def _read(self, codec: Codec, name: AgentId, data: bytes) -> Reply | None:
        """One reply by itself."""
        try:
            return codec.decode_reply(data)
        except CodecError as error:
            self.unreadable.append(Unreadable(name, str(error), _run_of(data)))
            return None


def received(codec: Codec, replies: Iterable[Some], known: frozenset[AgentId]) -> Arrivals:
    """All replies of known sites, some hundred at a time."""
    arrivals = Arrivals()
    for names, data in replies:
        if not known.issuperset(names):
            theirs = [row for row, name in enumerate(names) if name in known]
            names, data = [names[row] for row in theirs], [data[row] for row in theirs]
        arrivals.take(codec, names, data)
    return arrivals


def _run_of(data: bytes) -> bytes | None:
    """The name of the run that a reply says it belongs to, if it is one at all."""
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, int, msgspec.Raw, msgspec.Raw])[0]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
