"""The form of a reply: the bytes that replies of one shape have in common, and where their numbers are.

Replies of many agents differ in nothing but numbers.  So they are written by filling the columns of one array
of bytes, and read by looking at them; what does not have the form is left to the plain codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.protocol.columns import Columns, columnar
from fedshed.protocol.messages import Message

Bytes = NDArray[np.uint8]
Encode = Callable[[object], bytes]
NUMBERS = (np.ndarray, float, int)


class Place(Struct, frozen=True):
    """Where the numbers of one field are in the bytes of a reply; shape () is a single number."""

    part: int
    path: tuple[str, ...]  # the field, after those of the messages that it is in
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def order(self) -> str:
        """MessagePack writes numbers big-endian; arrays are bare little-endian ones."""
        return "<f8" if self.shape else ">f8"

    def column(self, parts: Sequence[Columns]) -> NDArray[np.float64]:
        """The numbers of all messages."""
        found: Any = parts[self.part]
        for name in self.path:
            found = found.fields[name]
        return np.asarray(found)


class Form(Struct, frozen=True):
    """A reply as bytes, with the places of its numbers, in order; its messages have the rest in common."""

    template: bytes
    parts: tuple[Message, ...]
    places: tuple[Place, ...]

    def write(self, parts: Sequence[Columns]) -> list[bytes]:
        """The replies whose answers these are."""
        length, count = len(self.template), len(parts[0])
        rows = np.empty((count, length), dtype=np.uint8)
        rows[:] = np.frombuffer(self.template, dtype=np.uint8)
        for place in self.places:
            numbers = np.ascontiguousarray(place.column(parts), dtype=place.order).reshape(
                count, prod(place.shape)
            )
            rows[:, place.start : place.stop] = numbers.view(np.uint8).reshape(count, -1)
        replies: list[bytes] = rows.view(f"V{length}").ravel().tolist()
        return replies

    def columns(self, count: int) -> list[Columns]:
        """Room for the numbers of `count` replies."""
        return [_room(part, count) for part in self.parts]

    def read(self, replies: Sequence[bytes], into: Sequence[Columns]) -> NDArray[np.bool_]:
        """Write the numbers of replies of the form's length into columns.

        Which of them have the form, and numbers that can be in a message: the others are to be read alone.
        """
        count, length = len(replies), len(self.template)
        rows = np.frombuffer(b"".join(replies), dtype=np.uint8).reshape(count, length)
        fine = self._agreeing(rows)
        for place in self.places:
            column = place.column(into)
            size = prod(place.shape)
            found = column.reshape(count, size).view(np.uint8).reshape(count, 8 * size)
            found[:] = rows[:, place.start : place.stop]
            if not place.shape:
                column[:] = column.view(place.order)
            column.flags.writeable = False
        return np.asarray(np.logical_and.reduce([fine, *(part.readable() for part in into)]))

    def _agreeing(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which replies have the bytes of the template outside the numbers."""
        template = np.frombuffer(self.template, dtype=np.uint8)
        fine = np.ones(len(rows), dtype=bool)
        starts = [0, *(place.stop for place in self.places)]
        stops = [*(place.start for place in self.places), len(template)]
        for start, stop in zip(starts, stops, strict=True):
            fine &= (rows[:, start:stop] == template[start:stop]).all(axis=1)
        return fine


def _room(part: Message, count: int) -> Columns:
    """Room for the numbers of `count` messages like this one."""
    fields: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Message):
            fields[name] = _room(value, count)
        else:
            numeric = isinstance(value, np.ndarray | float)
            fields[name] = np.empty((count, *np.shape(value))) if numeric else value
    return Columns(type(part), fields, count)


def form_of(head: Sequence[Any], parts: Sequence[Any], encode: Encode) -> Form | None:
    """The form of the reply (*head, parts); None where a field is more than a number or an array of them."""
    template = _opening(len(head) + 1, encode) + b"".join(map(encode, head)) + _opening(len(parts), encode)
    places: list[Place] = []
    for index, part in enumerate(parts):
        data = _laid_out(part, index, (), len(template), places, encode)
        if data is None:
            return None
        template += data
    same = template == encode((*head, list(parts)))
    return Form(template, tuple(parts), tuple(places)) if same else None


def _laid_out(
    part: Any, index: int, path: tuple[str, ...], start: int, places: list[Place], encode: Encode
) -> bytes | None:
    """A message as bytes that begin at `start`, the places of its numbers added to those before; or None."""
    if not (isinstance(part, Message) and columnar(type(part))):
        return None
    names = part.__struct_fields__
    data = _opening(len(names) + 1, encode) + encode(type(part).__struct_config__.tag)
    for name in names:
        value, own = getattr(part, name), (*path, name)
        inner = isinstance(value, Message)
        found = _laid_out(value, index, own, start + len(data), places, encode) if inner else encode(value)
        if found is None or not (value is None or inner or isinstance(value, NUMBERS)):
            return None
        data += found
        if isinstance(value, np.ndarray | float):
            places.append(_place(index, own, part, start + len(data)))
    return data


def _opening(count: int, encode: Encode) -> bytes:
    """What precedes the items of an array of MessagePack."""
    return encode([None] * count)[: -count or None]


def _place(index: int, path: tuple[str, ...], part: Message, end: int) -> Place:
    """The place of a field whose encoding ends at `end`."""
    value = getattr(part, path[-1])
    shape = value.shape if isinstance(value, np.ndarray) else ()
    return Place(index, path, end - 8 * prod(shape), end, shape)
