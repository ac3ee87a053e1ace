"""All requests to the sites of one worker in one piece, and all of their replies in another."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils import errors
from fedshed._utils.errors import Error, ProtocolError


class Requests(Struct, frozen=True, array_like=True):
    """The bytes that the requests have in common, once, and what follows them in each."""

    common: bytes
    own: list[bytes]
    places: list[int] | None = None  # which of the worker's sites are asked; None: all of them


class Replies(Struct, frozen=True, array_like=True):
    """A reply for each request; or the error that a site raised, which is then raised at the Master."""

    replies: list[bytes]
    changed: bool = False  # a site remembers something new
    saved: bool = False  # what all sites remember came with the replies
    error: str = ""
    words: str = ""


_REQUESTS = msgspec.msgpack.Decoder(Requests)
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
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


def pack_replies(replies: Sequence[bytes], changed: bool = False, saved: bool = False) -> bytes:
    """The replies in one piece."""
    return msgspec.msgpack.encode(Replies(list(replies), changed, saved))


def pack_error(error: Error) -> bytes:
    """What a site raised, by the name of its class and in its words."""
    return msgspec.msgpack.encode(Replies([], error=type(error).__name__, words=str(error)))


def unpack_replies(bundle: bytes, count: int) -> Replies:
    """The replies of `count` sites that were asked; the error of one of them is raised as in one process."""
    found = _REPLIES.decode(bundle)
    if found.error:
        raise _KINDS.get(found.error, ProtocolError)(found.words)
    if len(found.replies) != count:
        raise ProtocolError(f"a worker sent {len(found.replies)} replies of {count} sites")
    return found


def common_start(payloads: Sequence[bytes]) -> bytes:
    """What all of them begin with: what the first and the last of them in order do."""
    low, high = min(payloads), max(payloads)
    both = min(len(low), len(high))
    differ = np.frombuffer(low, np.uint8, both) != np.frombuffer(high, np.uint8, both)
    return low[: int(differ.argmax()) if differ.any() else both]
