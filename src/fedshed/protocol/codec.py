"""Messages and states to bytes and back (MessagePack through msgspec): typed, bounded, no pickle.

Arrays travel as bare little-endian float64; their shapes follow from n, which both ends know.
Decoding makes views of the received bytes; what else it may allocate is bounded (`limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from fedshed._utils.errors import CodecError, ConfigError
from fedshed.linalg.arrays import Extended, Gradient, Matrix, Packed, Scalars, Vector
from fedshed.protocol.batch import ReplyBatch, ReplyTemplate, code_replies, make_template
from fedshed.protocol.conversation import Conversation
from fedshed.protocol.kinds import KINDS, encode_arrays
from fedshed.protocol.limits import FREE, MOST_PARTS, Number, check_items
from fedshed.protocol.memo import Memo
from fedshed.protocol.messages import Costs, Declined, Message, Search, Undefined, with_trial_points
from fedshed.protocol.precision import Exact, Precision
from fedshed.protocol.replies import Reply, Request

T = TypeVar("T")
_FLOAT = np.dtype("<f8")
EXACT = Exact()


def _encode_array(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype=_FLOAT).tobytes()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")  # msgspec's own contract


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encode(value: object) -> bytes:
    """Bytes of a message, a state or any plain data made of them."""
    return _ENCODER.encode(value)


def raw(value: object) -> msgspec.Raw:
    """A value as encoded, to be put inside another."""
    try:
        return msgspec.Raw(encode(value))
    except NotImplementedError as error:
        raise ConfigError(f"only plain data can be saved (msgspec Structs): {error}") from None


class Decoder:
    """Reads bytes as `expected`, for a problem of dimension n; raises nothing but CodecError."""

    def __init__(self, expected: Any, n: int, precision: Precision = EXACT) -> None:
        self._n, self._precision = n, precision
        self._shapes = {
            Vector: (n,), Gradient: (n,), Matrix: (-1, n), Packed: (n * (n + 1) // 2,),
            Scalars: (-1,), Extended: (-1,),
        }  # fmt: skip
        self._known: dict[int, tuple[Any, Any]] = {}  # by identity: annotations are slow to hash
        self._decoder = msgspec.msgpack.Decoder(expected, dec_hook=self._decode_array)

    def __call__(self, data: bytes) -> Any:
        """The decoded value."""
        try:
            check_items(data)
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, CodecError, ValueError, RecursionError, OverflowError) as error:
            raise CodecError(f"{len(data)} bytes are not a valid message: {error}") from error

    def _decode_array(self, kind: Any, raw: Any) -> Any:
        if id(kind) not in self._known:
            self._known[id(kind)] = kind, self._reader(kind)
        if not isinstance(raw, bytes):
            raise ValueError(f"expected an array of float64, got {type(raw).__name__}")
        return self._known[id(kind)][1](raw)

    def _reader(self, kind: Any) -> Callable[[bytes], Any]:
        """How arrays of this kind are read: coded, or as they are; finite, or below infinity at least."""
        if kind not in self._shapes:
            raise ValueError(f"arrays of kind {kind} cannot be received")
        if self._precision.lossy and kind in KINDS:
            return partial(self._precision.decode, KINDS[kind], n=self._n)
        shape = self._shapes[kind]
        allowed = _not_nan if kind == Extended else np.isfinite
        step = int(np.prod(shape)) or 1  # numbers in the array; negative: in each of its rows

        def read(raw: bytes) -> Any:
            if len(raw) % (8 * abs(step)) or (step > 0 and len(raw) != 8 * step):
                raise ValueError(f"{len(raw)} bytes are no array of the shape {shape}")
            array = np.frombuffer(raw, dtype=_FLOAT)
            if not (isfinite(np.vdot(array, array)) or allowed(array).all()):  # finite where squares are
                raise ValueError("an array holds NaN or infinity")
            return array if array.shape == shape else array.reshape(shape)  # ValueError where they do not fit

        return read


def _not_nan(array: Any) -> Any:
    """Numbers and +infinity."""
    return array > -np.inf


Run: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=64)]  # the name of a run


class Codec:
    """The wire format of one algorithm: its own messages, in a problem of dimension n."""

    def __init__(self, messages: Sequence[type[Message]], n: int, precision: Precision = EXACT) -> None:
        self._precision, self._reads = precision, (tuple(messages), n, precision)
        self._last: tuple[bytes, bytes, Request] = b"", b"", Request(b"", 0, [], None)
        union = _union(tuple(messages))
        self._mine = Decoder(union | None, n)
        parts = Annotated[list[union], msgspec.Meta(max_length=MOST_PARTS)]  # type: ignore[valid-type]
        self._request = Decoder(tuple[Run, Number, parts, union | None], n)  # type: ignore[valid-type]
        self._reply = Decoder(tuple[Run, Number, int, parts], n, precision)

    @property
    def lossy(self) -> bool:
        """Whether arrays of replies are rounded."""
        return self._precision.lossy

    def encode_common(self, run: bytes, number: int, parts: Sequence[Message]) -> bytes:
        """The part of a request that is the same for all agents, encoded once."""
        array_of_four = b"\x94"  # the last of them follows
        return array_of_four + encode(run) + encode(number) + encode(list(parts))

    def encode_request(self, common: bytes, mine: Message | None) -> bytes:
        """The whole request for one agent."""
        return common + encode(mine)

    def encode_requests(self, common: bytes, each: Mapping[str, Message | None]) -> dict[str, bytes]:
        """The requests of all agents, sorted; those without an own part are sent the very same bytes."""
        shared = self.encode_request(common, None)
        return {
            i: shared if mine is None else self.encode_request(common, mine)
            for i, mine in sorted(each.items())
        }

    def decode_request(self, data: bytes) -> Request:
        """A request as an agent reads it; what was common to it and to the last one is not read again.

        So many agents of one process read theta once.
        """
        same, common, last = self._last
        if data is same:
            return last
        if common and data.startswith(common):
            mine = self._mine(data[len(common) :])
            return Request(last.run, last.number, last.parts, mine, last.located, last.accuracy)
        request = Request(*self._request(data))
        accuracy = max((getattr(part, "accuracy", 0.0) for part in request.parts), default=0.0)
        request = msgspec.structs.replace(
            request, located=with_trial_points(request.parts), accuracy=accuracy
        )
        own = encode(request.mine)
        if data.endswith(own):
            self._last = data, data[: -len(own)], request
        return request

    def encode_reply(self, reply: Reply, accuracy: float = 0.0) -> bytes:
        """A reply as it leaves an agent, its arrays in the algorithm's precision."""
        if not self._precision.lossy:
            return encode(reply)
        parts = [encode_arrays(part, self._precision, accuracy) for part in reply.parts]
        return encode((reply.run, reply.number, reply.hessians, parts))

    def decode_reply(self, data: bytes) -> Reply:
        """A reply as the Master reads it."""
        return Reply(*self._reply(data))

    def encode_replies(
        self, replies: Sequence[Reply], accuracy: float, remember: bool
    ) -> tuple[list[bytes], dict[int, Sequence[Message]]]:
        """Replies to one request as `encode_reply` writes them, rounded ones of one shape in one call.

        Also the answers as the Master sees them, of the replies that were coded in a batch.  `remember`: the
        Master reads the replies in this process, in this order, and need not decode them again.
        """
        if not self._precision.lossy:
            return [encode(reply) for reply in replies], {}
        coded, batches = code_replies(replies, accuracy, self._precision, encode)
        every = [
            coded[row] if row in coded else self.encode_reply(reply, accuracy)
            for row, reply in enumerate(replies)
        ]
        if remember and batches:
            size = sum(batch.nbytes for batch in batches) + sum(map(len, every))
            WRITTEN.put((self._reads, tuple(every)), batches, size)
        seen: dict[int, Sequence[Message]] = {}
        for batch in batches:
            seen.update(zip(batch.rows, batch.answers, strict=True))
        return every, seen

    def decode_replies(
        self, replies: Sequence[bytes], templates: list[ReplyTemplate | None]
    ) -> list[ReplyBatch]:
        """Those of the replies that share a shape, as `decode_reply` reads them; the rest is read alone.

        `templates` are those of replies before, in the same exchange; new ones are added.
        """
        if self._precision.lossy:
            return WRITTEN.drop((self._reads, tuple(replies))) or []
        found: list[ReplyBatch] = []
        left, tried = list(range(len(replies))), 0
        while len(left) >= FEWEST and tried < MOST_TEMPLATES:
            if tried == len(templates):
                templates.append(self._template(replies[left[0]]))
            template, tried = templates[tried], tried + 1
            batch = None if template is None else template.read(replies, left)
            if batch is None:
                left = left[1:]
            else:
                found.append(batch)
                taken = set(batch.rows)
                left = [row for row in left if row not in taken]
        return found

    def _template(self, data: bytes) -> ReplyTemplate | None:
        """The template of one reply, if it has one."""
        try:
            return make_template(data, self.decode_reply(data), encode)
        except CodecError:
            return None


FEWEST = 4  # replies from which it pays to read them together
MOST_TEMPLATES = 4  # of the replies of one exchange
# What replies that this process wrote are decoded to, found by their bytes.  Coded bytes stand for the same
# numbers wherever they are decoded; its size is such that no reply is known that a decoder would refuse.
WRITTEN = Memo(FREE)


@lru_cache
def _union(messages: tuple[type[Message], ...]) -> Any:
    union: Any = messages[0]
    for message in messages[1:]:
        union = union | message
    return union


def codec_of(conversation: Conversation, n: int) -> Codec:
    """The wire format of a conversation: its own messages, and those of the line search."""
    return Codec((Search, Costs, Undefined, Declined, *conversation.messages), n, conversation.precision)
