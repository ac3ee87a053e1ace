"""Messages and states to bytes and back (MessagePack through msgspec): typed, bounded, no pickle.

Arrays travel as bare little-endian float64; their shapes follow from n, which both ends know.
Decoding makes views of the received bytes, so it never allocates more than the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from fedshed.arrays import Matrix, Packed, Scalars, Vector
from fedshed.errors import CodecError
from fedshed.messages import Message

T = TypeVar("T")
_FLOAT = np.dtype("<f8")


def _encode_array(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype=_FLOAT).tobytes()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")  # msgspec's own contract


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encode(value: object) -> bytes:
    """Bytes of a message, a state or any plain data made of them."""
    return _ENCODER.encode(value)


class Decoder:
    """Reads bytes as `expected`, for a problem of dimension n; raises nothing but CodecError."""

    def __init__(self, expected: Any, n: int) -> None:
        self._shapes = {Vector: (n,), Matrix: (-1, n), Packed: (n * (n + 1) // 2,), Scalars: (-1,)}
        self._decoder = msgspec.msgpack.Decoder(expected, dec_hook=self._decode_array)

    def __call__(self, data: bytes) -> Any:
        """The decoded value."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise CodecError(f"{len(data)} bytes are not a valid message: {error}") from error

    def _decode_array(self, kind: Any, raw: Any) -> Any:
        shape = self._shapes.get(kind)
        if shape is None or not isinstance(raw, bytes):
            raise ValueError(f"expected an array of float64, got {type(raw).__name__}")
        array = np.frombuffer(raw, dtype=_FLOAT).reshape(shape)  # ValueError where they do not fit
        if not np.isfinite(array).all():
            raise ValueError("an array holds NaN or infinity")
        return array


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What reaches one agent: the number of the exchange, the common parts, and its own part."""

    number: int
    parts: list[Any]
    mine: Any


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What an agent sends back: the exchange it answers, the Hessians it computed for it, its answers."""

    number: int
    hessians: int
    parts: list[Any]


class Codec:
    """The wire format of one algorithm: its own messages, in a problem of dimension n."""

    def __init__(self, messages: Sequence[type[Message]], n: int) -> None:
        union = _union(tuple(messages))
        self._request = Decoder(tuple[int, list[union], union | None], n)  # type: ignore[valid-type]
        self._reply = Decoder(tuple[int, int, list[union]], n)  # type: ignore[valid-type]

    def encode_common(self, number: int, parts: Sequence[Message]) -> bytes:
        """The part of a request that is the same for all agents, encoded once."""
        return b"\x93" + encode(number) + encode(list(parts))  # an array of three, its third to follow

    def encode_request(self, common: bytes, mine: Message | None) -> bytes:
        """The whole request for one agent."""
        return common + encode(mine)

    def decode_request(self, data: bytes) -> Request:
        """A request as an agent reads it."""
        return Request(*self._request(data))

    def encode_reply(self, reply: Reply) -> bytes:
        """A reply as it leaves an agent."""
        return encode(reply)

    def decode_reply(self, data: bytes) -> Reply:
        """A reply as the Master reads it."""
        return Reply(*self._reply(data))


@lru_cache
def _union(messages: tuple[type[Message], ...]) -> Any:
    union: Any = messages[0]
    for message in messages[1:]:
        union = union | message
    return union


@lru_cache
def _vector_fields(message: type[Message]) -> tuple[str, ...]:
    wide = (Vector, Matrix, Packed)
    hints = get_type_hints(message).items()
    return tuple(name for name, hint in hints if any(kind in wide for kind in (hint, *get_args(hint))))


def vectors(message: Message, n: int) -> float:
    """How many vectors of R^n a message carries: the paper's unit of data (Section 6)."""
    total = 0.0
    for name, value in ((name, getattr(message, name)) for name in message.__struct_fields__):
        if isinstance(value, Message):
            total += vectors(value, n)
        elif value is not None and name in _vector_fields(type(message)):
            total += value.size / n
    return total
