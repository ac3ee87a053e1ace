"""Which fields of a message hold arrays, of which kind, and how many vectors of R^n they carry."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args, get_type_hints

import numpy as np

from fedshed.linalg.arrays import Extended, Gradient, Matrix, Packed, Scalars, Vector
from fedshed.protocol.messages import Message
from fedshed.protocol.precision import Precision

KINDS = {Vector: "vector", Gradient: "gradient", Matrix: "matrix", Packed: "packed"}


@lru_cache
def kinds_of(message: type[Message]) -> dict[str, str | None]:
    """The kind of array of each field, as a precision knows it; none for anything else."""
    hints = get_type_hints(message)
    found = {}
    for name in message.__struct_fields__:
        options = (hints[name], *get_args(hints[name]))
        found[name] = next((KINDS[kind] for kind in options if kind in KINDS), None)
    return found


def encode_arrays(message: Message, precision: Precision, accuracy: float) -> list[Any]:
    """A message as the array msgspec would write, its arrays coded by their kind."""
    fields: list[Any] = [type(message).__struct_config__.tag]
    for name, kind in kinds_of(type(message)).items():
        value = getattr(message, name)
        if kind is not None and value is not None:
            value = precision.encode(kind, value, accuracy)
        elif isinstance(value, Message):
            value = encode_arrays(value, precision, accuracy)
        fields.append(value)
    return fields


def vectors(message: Message, n: int) -> float:
    """How many vectors of R^n a message carries: the paper's unit of data (Section 6)."""
    total = 0.0
    for name in _array_fields(type(message)):
        value = getattr(message, name)
        if isinstance(value, np.ndarray):
            total += value.size / n
        elif isinstance(value, Message):
            total += vectors(value, n)
        elif isinstance(value, tuple):
            total += sum(vectors(one, n) for one in value if isinstance(one, Message))
        elif isinstance(value, bytes):
            total += len(value) / (8 * n)
    return total


@lru_cache
def _array_fields(message: type[Message]) -> tuple[str, ...]:
    """The fields that may hold vectors of R^n, messages or coded bytes; a few scalars are none of them."""
    plain = (int, float, bool, str)
    hints = get_type_hints(message)
    return tuple(
        name
        for name, kind in kinds_of(message).items()
        if kind is not None or not {hints[name], *get_args(hints[name])} & {*plain, Scalars, Extended}
    )
