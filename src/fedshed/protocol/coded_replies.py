"""Lossy replies of many agents: the arrays of one field are coded in one call, and heard without decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from fedshed.protocol.codec import Reply, encode, kinds_of
from fedshed.protocol.messages import Message
from fedshed.protocol.precision import Precision

Fields: TypeAlias = list[Any]  # of a message as it travels: its tag, then its fields


def encode_together(
    replies: Sequence[Reply], precision: Precision, accuracy: float
) -> tuple[list[bytes], list[list[Fields]]]:
    """Each reply as `Codec.encode_reply` writes it, and its answers as they are written there."""
    answers = zip(*(reply.parts for reply in replies), strict=True)
    columns = [coded_together(messages, precision, accuracy) for messages in answers]
    parts = [list(each) for each in zip(*columns, strict=True)]
    data = [
        encode((reply.run, reply.number, reply.hessians, part))
        for reply, part in zip(replies, parts, strict=True)
    ]
    return data, parts


def coded_together(messages: Sequence[Message], precision: Precision, accuracy: float) -> list[Fields]:
    """Each message as `codec.coded` writes it."""
    found: list[Fields] = [[] for _ in messages]
    for places in _alike(map(type, messages)):
        some = [messages[place] for place in places]
        columns = [
            _column([getattr(m, name) for m in some], kind, precision, accuracy)
            for name, kind in kinds_of(type(some[0])).items()
        ]
        tag = type(some[0]).__struct_config__.tag
        for place, *fields in zip(places, repeat(tag, len(some)), *columns, strict=True):
            found[place] = fields
    return found


def _column(values: list[Any], kind: str | None, precision: Precision, accuracy: float) -> list[Any]:
    """One field of each message, as it travels."""
    if kind is None:
        inner = [place for place, value in enumerate(values) if isinstance(value, Message)]
        coded: Sequence[Any] = coded_together([values[place] for place in inner], precision, accuracy)
        return _put(values, inner, coded) if inner else values
    for places in _alike(getattr(value, "shape", None) for value in values):
        if values[places[0]] is not None:
            arrays = [np.asarray(values[place]) for place in places]
            values = _put(values, places, precision.encode_together(kind, arrays, accuracy))
    return values


def _put(values: list[Any], places: list[int], some: Sequence[Any]) -> list[Any]:
    """The values with others in some places."""
    values = list(values)
    for place, value in zip(places, some, strict=True):
        values[place] = value
    return values


def _alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        groups[key].append(place)
    return list(groups.values())


def heard(answer: Message, fields: Fields, names: Sequence[str], precision: Precision, n: int) -> Message:
    """An answer with these of its arrays as the Master, which reads them later, sees them."""
    kinds = kinds_of(type(answer))
    seen = {
        name: precision.decode(kind, coded, n, last=False)
        for (name, kind), coded in zip(kinds.items(), fields[1:], strict=True)
        if kind is not None and name in names and coded is not None
    }
    return replace(answer, **seen) if seen else answer
