"""Replies of one shape, coded and read together; they are made from single replies, and become such again.

Replies of many agents to one request differ in nothing but numbers.  So lossy ones are coded field by field,
all agents in one call, and exact ones are read by looking at the columns of one array of bytes.  What has
another shape, or is not a reply at all, is left to the plain codec.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from math import prod
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Extended
from fedshed.protocol.kinds import kinds_of
from fedshed.protocol.messages import Message
from fedshed.protocol.precision import Precision
from fedshed.protocol.replies import Reply

Encode = Callable[[object], bytes]
NUMBERS = (np.ndarray, float, int)


class MessageBatch(Struct, frozen=True):
    """Messages of one type and shape, field by field: row i of each array belongs to message i.

    A float field is (M,), a vector (M, n), a packed Hessian (M, n(n+1)/2); a message in each message is a
    batch again, and coded bytes are a list; all else is the same in all messages (None, a whole number).
    """

    kind: type[Message]
    fields: dict[str, Any]
    count: int

    def __len__(self) -> int:
        """The number of messages."""
        return self.count

    def messages(self) -> list[Message]:
        """The messages one by one; their arrays are views of the columns."""
        if not self.fields:
            return [self.kind() for _ in range(self.count)]
        names = self.kind.__struct_fields__
        return list(map(self.kind, *(_split(self.fields[name], self.count) for name in names)))

    def rows(self, chosen: NDArray[np.intp]) -> MessageBatch:
        """Some of the messages."""
        fields = {name: _select(value, chosen) for name, value in self.fields.items()}
        return MessageBatch(self.kind, fields, len(chosen))

    @property
    def equal_sizes(self) -> bool:
        """Whether all messages have the same size: none of them has coded bytes."""
        return not any(isinstance(value, list) for value in self.fields.values())

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return sum(getattr(value, "nbytes", 0) for value in self.fields.values())

    def finite(self) -> NDArray[np.bool_]:
        """Which messages have the numbers that a decoder accepts in arrays."""
        fine = np.ones(self.count, dtype=bool)
        for name, value in self.fields.items():
            if isinstance(value, MessageBatch):
                fine &= value.finite()
            elif isinstance(value, np.ndarray):
                numbers = value.reshape(self.count, prod(value.shape[1:]))
                fine &= _finite_rows(numbers, Extended in _options(self.kind)[name])
        return fine


def batch_messages(messages: Sequence[Message]) -> MessageBatch | None:
    """Messages of one shape field by field; None if their shapes differ, or a field is not of numbers."""
    kind, fields = type(messages[0]), {}
    if any(type(message) is not kind for message in messages):
        return None
    for name in kind.__struct_fields__:
        column = _join([getattr(message, name) for message in messages])
        if column is None:
            return None
        (fields[name],) = column
    return MessageBatch(kind, fields, len(messages))


def _join(values: list[Any]) -> tuple[Any] | None:
    """One field of all messages, in a tuple; None if it is not a column."""
    first = values[0]
    if isinstance(first, Message):
        inner = batch_messages(values)
        return None if inner is None else (inner,)
    if isinstance(first, np.ndarray):
        shape = first.shape
        if not all(isinstance(v, np.ndarray) and v.shape == shape for v in values):
            return None
        return (np.concatenate(values).reshape(len(values), *shape),)
    if isinstance(first, bytes):
        return (values,) if all(isinstance(v, bytes) for v in values) else None
    if isinstance(first, float):
        return (np.array(values),) if all(isinstance(v, float) for v in values) else None
    if not (first is None or isinstance(first, int)):
        return None
    equal = all(v is first or (type(v) is type(first) and v == first) for v in values)
    return (first,) if equal else None


def _split(value: Any, count: int) -> Iterable[Any]:
    """A field of each message."""
    if isinstance(value, MessageBatch):
        return value.messages()
    if isinstance(value, list):
        return value
    if not isinstance(value, np.ndarray):
        return repeat(value, count)
    rows: list[Any] = value.tolist() if value.ndim == 1 else list(value)
    return rows


def _select(value: Any, chosen: NDArray[np.intp]) -> Any:
    """A field of some of the messages."""
    if isinstance(value, MessageBatch):
        return value.rows(chosen)
    if isinstance(value, list):
        return [value[row] for row in chosen]
    return value[chosen] if isinstance(value, np.ndarray) else value


def _finite_rows(numbers: NDArray[np.float64], extended: bool) -> NDArray[np.bool_]:
    """The rows without NaN and infinity, as the decoder has it; most are seen by their sums of squares."""
    with np.errstate(over="ignore", invalid="ignore"):
        fine = np.asarray(np.isfinite(np.einsum("ij,ij->i", numbers, numbers)))
    if not fine.all():
        doubtful = numbers[~fine]
        fine[~fine] = (doubtful > -np.inf if extended else np.isfinite(doubtful)).all(axis=1)
    return fine


class ReplyBatch(Struct, frozen=True):
    """Replies of one shape: their places among those that came, and their answers part by part."""

    rows: Sequence[int]
    first: Reply  # its run, number and Hessians are those of all
    parts: list[MessageBatch]
    answers: list[tuple[Message, ...]]  # the same, reply by reply

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return sum(part.nbytes for part in self.parts)


# --- lossy replies: coded together ---------------------------------------------------------------


def code_replies(
    replies: Sequence[Reply], accuracy: float, precision: Precision, encode: Encode
) -> tuple[dict[int, bytes], list[ReplyBatch]]:
    """Replies by their places, each as `Codec.encode_reply` writes it, and their answers as decoded."""
    answering = [row for row, reply in enumerate(replies) if reply.answers]
    groups = [answering]
    if (parts := _batch_parts(replies, answering)) is None:
        groups = _group_by_shape(replies, answering)
    coded, batches = dict[int, bytes](), list[ReplyBatch]()
    for rows in groups:
        parts = parts or _batch_parts(replies, rows)
        if parts and all(part.finite().all() for part in parts):
            first = replies[rows[0]]
            fields, seen = zip(*(_code(part, precision, accuracy) for part in parts), strict=True)
            head, each = (first.run, first.number, first.hessians), zip(*fields, strict=True)
            coded.update(zip(rows, (encode((*head, one)) for one in each), strict=True))
            answers = _answers(seen)
            batches.append(ReplyBatch(rows, Reply(*head, list(answers[0])), list(seen), answers))
        parts = None
    return coded, batches


def _batch_parts(replies: Sequence[Reply], rows: Sequence[int]) -> list[MessageBatch] | None:
    """The answers of some replies part by part; None if the replies differ in more than numbers."""
    some = [replies[row] for row in rows]
    if len({(one.run, one.number, one.hessians, len(one.parts)) for one in some}) != 1:
        return None
    found = [batch_messages(part) for part in zip(*(one.parts for one in some), strict=True)]
    parts = [part for part in found if part is not None]
    return parts if len(parts) == len(found) else None


def _group_by_shape(replies: Sequence[Reply], rows: Sequence[int]) -> list[list[int]]:
    """The replies that differ in nothing but numbers."""
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        one = replies[row]
        key = one.run, one.number, one.hessians, *map(_shape, one.parts)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _code(part: MessageBatch, precision: Precision, accuracy: float) -> tuple[list[Any], MessageBatch]:
    """The fields of each message as they travel, after its tag, and the messages as they are decoded."""
    columns, seen = list[Iterable[Any]](), dict[str, Any]()
    column: Iterable[Any]
    for name, kind in kinds_of(part.kind).items():
        value = part.fields[name]
        if isinstance(value, MessageBatch):
            column, value = _code(value, precision, accuracy)
        elif kind is not None and isinstance(value, np.ndarray):
            column, value = precision.code(kind, value, accuracy)
        else:
            column = _split(value, part.count)
        columns.append(column)
        seen[name] = value
    tags = repeat(part.kind.__struct_config__.tag, part.count)
    return list(zip(tags, *columns, strict=True)), MessageBatch(part.kind, seen, part.count)


def _shape(value: Any) -> Any:
    """What messages have in common that differ in nothing but numbers."""
    if isinstance(value, Message):
        return type(value), *(_shape(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, np.ndarray):
        return value.shape
    return type(value) if isinstance(value, float | bytes) else value


# --- exact replies: read together ----------------------------------------------------------------


class NumberField(Struct, frozen=True):
    """Where the numbers of one field are in the bytes of a reply; shape () is a single number."""

    part: int
    path: tuple[str, ...]  # the field, after those of the messages that it is in
    start: int
    stop: int
    shape: tuple[int, ...]

    def column(self, parts: Sequence[MessageBatch]) -> NDArray[np.float64]:
        """The numbers of all messages."""
        found: Any = parts[self.part]
        for name in self.path:
            found = found.fields[name]
        return np.asarray(found)


class ReplyTemplate(Struct, frozen=True):
    """A reply as bytes, with the places of its numbers, in order; replies of its shape share the rest."""

    data: bytes
    reply: Reply
    fields: tuple[NumberField, ...]

    def read(self, replies: Sequence[bytes], places: Sequence[int]) -> ReplyBatch | None:
        """Those of the replies at some places that have this shape; None if they are to be read alone."""
        rows = [row for row in places if len(replies[row]) == len(self.data)]
        parts, fine = self._read_columns([replies[row] for row in rows])
        try:
            answers = _answers(parts)
        except ValueError:  # a message that is not valid, here or among those of another shape
            fine &= [_valid(parts, row) for row in range(len(fine))]
        if not fine.all():
            chosen = np.flatnonzero(fine)
            rows, parts = [rows[k] for k in chosen], [part.rows(chosen) for part in parts]
            answers = _answers(parts)
        return ReplyBatch(rows, self.reply, parts, answers) if rows else None

    def _read_columns(self, replies: Sequence[bytes]) -> tuple[list[MessageBatch], NDArray[np.bool_]]:
        """The numbers of replies of this length, and which of the replies have this shape."""
        count = len(replies)
        data = np.frombuffer(b"".join(replies), dtype=np.uint8).reshape(count, len(self.data))
        parts = [_empty_batch(part, count) for part in self.reply.parts]
        for field in self.fields:
            column, size = field.column(parts), prod(field.shape)
            column.reshape(count, size).view(np.uint8).reshape(count, 8 * size)[:] = data[
                :, field.start : field.stop
            ]
            if not field.shape:  # MessagePack writes numbers big-endian; arrays are bare little-endian ones
                column[:] = column.view(">f8")
            column.flags.writeable = False
        fine = np.logical_and.reduce([self._has_template(data), *(part.finite() for part in parts)])
        return parts, np.asarray(fine)

    def _has_template(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which replies have the bytes of the template outside the numbers."""
        template, fine = np.frombuffer(self.data, dtype=np.uint8), np.ones(len(data), dtype=bool)
        starts = [0, *(field.stop for field in self.fields)]
        stops = [*(field.start for field in self.fields), len(template)]
        for start, stop in zip(starts, stops, strict=True):
            fine &= (data[:, start:stop] == template[start:stop]).all(axis=1)
        return fine


def _answers(parts: Sequence[MessageBatch]) -> list[tuple[Message, ...]]:
    """The answers reply by reply; ValueError if a message is not valid."""
    return list(zip(*(part.messages() for part in parts), strict=True))


def _valid(parts: Sequence[MessageBatch], row: int) -> bool:
    """Whether the answers of one reply are valid messages."""
    try:
        return bool(_answers([part.rows(np.array([row])) for part in parts]))
    except ValueError:
        return False


def make_template(data: bytes, reply: Reply, encode: Encode) -> ReplyTemplate | None:
    """The template of a reply; None if it has no answer, or a field is more than numbers."""
    if not reply.parts:
        return None
    head = (reply.run, reply.number, reply.hessians)
    written = _array_header(len(head) + 1, encode) + b"".join(map(encode, head))
    written += _array_header(len(reply.parts), encode)
    fields: list[NumberField] = []
    for index, part in enumerate(reply.parts):
        found = _lay_out(part, index, (), len(written), fields, encode)
        if found is None:
            return None
        written += found
    return ReplyTemplate(data, reply, tuple(fields)) if written == data else None


def _lay_out(
    part: Any, index: int, path: tuple[str, ...], start: int, fields: list[NumberField], encode: Encode
) -> bytes | None:
    """A message as bytes that begin at `start`; the places of its numbers are added to `fields`."""
    if not isinstance(part, Message) or _has_limits(type(part)):
        return None
    names = part.__struct_fields__
    data = _array_header(len(names) + 1, encode) + encode(type(part).__struct_config__.tag)
    for name in names:
        value, own = getattr(part, name), (*path, name)
        inner = isinstance(value, Message)
        found = _lay_out(value, index, own, start + len(data), fields, encode) if inner else encode(value)
        if found is None or not (value is None or inner or isinstance(value, NUMBERS)):
            return None
        data += found
        if isinstance(value, np.ndarray | float):
            end, shape = start + len(data), np.shape(value)
            fields.append(NumberField(index, own, end - 8 * prod(shape), end, shape))
    return data


def _array_header(count: int, encode: Encode) -> bytes:
    """What precedes the items of an array of MessagePack."""
    return encode([None] * count)[: -count or None]


def _empty_batch(part: Message, count: int) -> MessageBatch:
    """Room for the numbers of `count` messages of one shape."""
    fields: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Message):
            fields[name] = _empty_batch(value, count)
        else:
            numeric = isinstance(value, np.ndarray | float)
            fields[name] = np.empty((count, *np.shape(value))) if numeric else value
    return MessageBatch(type(part), fields, count)


@lru_cache
def _options(kind: type[Message]) -> dict[str, tuple[Any, ...]]:
    """The types that each field of a message may have."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hints[name], *get_args(hints[name])) for name in kind.__struct_fields__}


@lru_cache
def _has_limits(kind: type[Message]) -> bool:
    """Whether a float of such messages has limits, which only the plain codec checks."""
    every = [option for options in _options(kind).values() for option in options]
    return any(get_origin(option) is Annotated and float in get_args(option) for option in every)
