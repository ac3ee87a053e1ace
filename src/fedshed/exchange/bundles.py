"""All requests to the sites of one worker in one piece, and all of their replies in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils import errors
from fedshed._utils.errors import Error, ProtocolError

CHUNK = 256  # replies in an array of bytes
Chunk: TypeAlias = NDArray[np.uint8]
Packed: TypeAlias = tuple[bytes, list[Chunk]]


class Requests(Struct, frozen=True, array_like=True):
    """The bytes that the requests have in common, once, and what follows them in each."""

    common: bytes
    own: list[bytes]
    places: list[int] | None = None  # which of the worker's sites are asked; None: all of them


class Replies(Struct, frozen=True, array_like=True):
    """How long the reply to each request is; or the error that a site raised, to be raised at the Master."""

    lengths: list[int]
    changed: bool = False  # a site remembers something new
    saved: bool = False  # what all sites remember came with the replies
    error: str = ""
    words: str = ""


_REQUESTS = msgspec.msgpack.Decoder(Requests)
_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Error)
}
_REPLIES = msgspec.msgpack.Decoder(Replies)


def pack_requests(payloads: Sequence[bytes], places: Sequence[int], sites: int) -> bytes:
    """The requests to these of a worker's `sites`."""
    start = len(common_start(payloads))
    own = [payload[start:] for payload in payloads]
    chosen = None if len(places) == sites else list(places)
    return msgspec.msgpack.encode(Requests(payloads[0][:start], own, chosen))


def unpack_requests(bundle: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """The request to each site, by the names of all that the worker has; alike ones are one object."""
    asked = _REQUESTS.decode(bundle)
    places = range(len(names)) if asked.places is None else asked.places
    whole = {own: asked.common + own for own in set(asked.own)}
    return {names[place]: whole[own] for place, own in zip(places, asked.own, strict=True)}


class Packer:
    """Takes replies as they come, and keeps them some hundred at a time in one array of bytes."""

    def __init__(self) -> None:
        self._lengths, self._open = list[int](), list[bytes]()
        self._chunks: list[Chunk] = []

    def add(self, reply: bytes) -> None:
        """One more reply."""
        self._lengths.append(len(reply))
        self._open.append(reply)
        if len(self._open) == CHUNK:
            self._close()

    def packed(self, changed: bool = False, saved: bool = False) -> Packed:
        """All of them."""
        self._close()
        return msgspec.msgpack.encode(Replies(self._lengths, changed, saved)), self._chunks

    def _close(self) -> None:
        self._chunks.append(np.frombuffer(b"".join(self._open), np.uint8))
        self._open = []


def pack_error(error: Error) -> Packed:
    """What a site raised, by the name of its class and in its words."""
    return msgspec.msgpack.encode(Replies([], error=type(error).__name__, words=str(error))), []


def unpack_replies(packed: Packed, count: int) -> Replies:
    """What is said of the replies of `count` sites; the error of one of them is raised as in one process."""
    head, chunks = packed
    try:
        found = _REPLIES.decode(head)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(
            f"a worker sent {len(head)} bytes that are not replies: {error}; install the same fedshed on all "
            "machines"
        ) from error
    if found.error:
        raise _KINDS.get(found.error, ProtocolError)(found.words)
    if len(found.lengths) != count or not _fits(found.lengths, chunks):
        raise ProtocolError(
            f"a worker sent {len(found.lengths)} replies for {count} sites, or incomplete ones"
        )
    return found


def _fits(lengths: Sequence[int], chunks: Sequence[Chunk]) -> bool:
    """Whether each array of bytes holds the replies that are said to be in it, and no others."""
    said = [sum(lengths[k * CHUNK : (k + 1) * CHUNK]) for k in range(len(chunks))]
    whole = len(lengths) <= CHUNK * len(chunks) and min(lengths, default=0) >= 0
    return whole and said == [len(chunk) for chunk in chunks]


def replies_of(lengths: Sequence[int], chunks: Sequence[Chunk]) -> Iterator[bytes]:
    """The replies one after the other, each a copy: what they came in may lie in memory that is shared."""
    for k, chunk in enumerate(chunks):
        start = 0
        for length in lengths[k * CHUNK : (k + 1) * CHUNK]:
            yield chunk[start : start + length].tobytes()
            start += length


def common_start(payloads: Sequence[bytes]) -> bytes:
    """What all of them begin with: what the first and the last of them in order do."""
    low, high = min(payloads), max(payloads)
    both = min(len(low), len(high))
    differ = np.frombuffer(low, np.uint8, both) != np.frombuffer(high, np.uint8, both)
    return low[: int(differ.argmax()) if differ.any() else both]
