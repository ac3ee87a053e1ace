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

from fedshed.linalg.arrays import Extended
from fedshed.protocol.columns import Columns, columnar, hints_of
from fedshed.protocol.messages import Message

Bytes = NDArray[np.uint8]
Encode = Callable[[object], bytes]


class Place(Struct, frozen=True):
    """Where the numbers of one field are in the bytes of a reply; shape () is a single number."""

    part: int
    field: str
    start: int
    stop: int
    shape: tuple[int, ...]
    extended: bool  # may be +infinity

    @property
    def order(self) -> str:
        """MessagePack writes numbers big-endian; arrays are bare little-endian ones."""
        return "<f8" if self.shape else ">f8"


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
            column = parts[place.part].fields[place.field]
            numbers = np.ascontiguousarray(column, dtype=place.order).reshape(count, prod(place.shape))
            rows[:, place.start : place.stop] = numbers.view(np.uint8).reshape(count, -1)
        replies: list[bytes] = rows.view(f"V{length}").ravel().tolist()
        return replies

    def columns(self, count: int) -> list[Columns]:
        """Room for the numbers of so many replies."""
        room: list[dict[str, Any]] = [
            {name: getattr(part, name) for name in part.__struct_fields__} for part in self.parts
        ]
        for place in self.places:
            room[place.part][place.field] = np.empty((count, *place.shape))
        return [Columns(type(part), fields, count) for part, fields in zip(self.parts, room, strict=True)]

    def read(self, replies: Sequence[bytes], into: Sequence[Columns]) -> NDArray[np.bool_]:
        """Write the numbers of replies of the form's length into columns.

        Which of them have the form, and numbers that can be in a message: the others are to be read alone.
        """
        count, length = len(replies), len(self.template)
        rows = np.frombuffer(b"".join(replies), dtype=np.uint8).reshape(count, length)
        fine = self._agreeing(rows)
        for place in self.places:
            column = into[place.part].fields[place.field]
            found = column.reshape(count, prod(place.shape)).view(np.uint8).reshape(count, -1)
            found[:] = rows[:, place.start : place.stop]
            if not place.shape:
                column[:] = column.view(place.order)
            fine &= _allowed(column.reshape(count, prod(place.shape)), place.extended)
            column.flags.writeable = False
        return fine

    def _agreeing(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which replies have the bytes of the template outside the numbers."""
        template = np.frombuffer(self.template, dtype=np.uint8)
        fine = np.ones(len(rows), dtype=bool)
        starts = [0, *(place.stop for place in self.places)]
        stops = [*(place.start for place in self.places), len(template)]
        for start, stop in zip(starts, stops, strict=True):
            fine &= (rows[:, start:stop] == template[start:stop]).all(axis=1)
        return fine


def _allowed(numbers: NDArray[np.float64], extended: bool) -> NDArray[np.bool_]:
    """The rows without NaN and infinity, as the decoder has it: sums of squares tell of most."""
    with np.errstate(over="ignore", invalid="ignore"):
        fine = np.asarray(np.isfinite(np.einsum("ij,ij->i", numbers, numbers)))
    if not fine.all():
        doubtful = numbers[~fine]
        fine[~fine] = (doubtful > -np.inf if extended else np.isfinite(doubtful)).all(axis=1)
    return fine


def form_of(head: Sequence[Any], parts: Sequence[Any], encode: Encode) -> Form | None:
    """The form of the reply (*head, parts); None where a field is more than a number or an array of them."""
    if not all(isinstance(part, Message) and columnar(type(part)) for part in parts):
        return None
    template = _opening(len(head) + 1, encode) + b"".join(map(encode, head)) + _opening(len(parts), encode)
    places: list[Place] = []
    for index, part in enumerate(parts):
        names = part.__struct_fields__
        template += _opening(len(names) + 1, encode) + encode(type(part).__struct_config__.tag)
        for name in names:
            value = getattr(part, name)
            template += encode(value)
            if isinstance(value, np.ndarray | float):
                places.append(_place(index, name, part, len(template)))
            elif not (value is None or isinstance(value, int)):
                return None
    same = template == encode((*head, list(parts)))
    return Form(template, tuple(parts), tuple(places)) if same else None


def _opening(count: int, encode: Encode) -> bytes:
    """What precedes the items of an array of MessagePack."""
    return encode([None] * count)[: -count or None]


def _place(index: int, name: str, part: Message, end: int) -> Place:
    """The place of a field whose encoding ends at `end`."""
    value = getattr(part, name)
    shape = value.shape if isinstance(value, np.ndarray) else ()
    return Place(index, name, end - 8 * prod(shape), end, shape, Extended in hints_of(type(part))[name])
