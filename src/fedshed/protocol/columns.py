"""Answers of many agents in the plural: messages of one kind and shape, one array per field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.protocol.messages import Message


class Columns(Struct, frozen=True):
    """Messages of one kind, field by field: row i of each array belongs to agent i.

    A float field is (M,), a vector (M, n), a packed Hessian (M, n(n+1)/2); what is no array is the same for
    all agents (None, a whole number).
    """

    kind: type[Message]
    fields: dict[str, Any]
    count: int

    def __len__(self) -> int:
        """How many agents answered."""
        return self.count

    def messages(self) -> list[Message]:
        """The messages one by one; their arrays are views of the columns."""
        if not self.fields:
            return [self.kind() for _ in range(self.count)]
        each = [_each(self.fields[name], self.count) for name in self.kind.__struct_fields__]
        return list(map(self.kind, *each))

    def rows(self, chosen: slice | NDArray[np.intp]) -> Columns:
        """The answers of some of the agents."""
        fields = {name: v[chosen] if isinstance(v, np.ndarray) else v for name, v in self.fields.items()}
        return Columns(self.kind, fields, len(np.arange(self.count)[chosen]))

    def finite(self) -> NDArray[np.bool_]:
        """Which agents' numbers, of the fields with one number each, can be in a message."""
        fine = np.ones(self.count, dtype=bool)
        for value in self.fields.values():
            if isinstance(value, np.ndarray) and value.ndim == 1:
                fine &= np.isfinite(value)
        return fine


def _each(value: Any, count: int) -> Iterable[Any]:
    """A field of each message."""
    if not isinstance(value, np.ndarray):
        return repeat(value, count)
    each: list[Any] = value.tolist() if value.ndim == 1 else list(value)
    return each


def columns_of(messages: Sequence[Message]) -> Columns | None:
    """Messages field by field; None where they differ in more than the numbers of an array or a float."""
    kind = type(messages[0])
    if any(type(message) is not kind for message in messages) or not columnar(kind):
        return None
    fields = {}
    for name in kind.__struct_fields__:
        found = _column([getattr(message, name) for message in messages])
        if found is None:
            return None
        (fields[name],) = found
    return Columns(kind, fields, len(messages))


def _column(values: list[Any]) -> tuple[Any] | None:
    """One field of all messages, in a tuple; None where it is no column."""
    first = values[0]
    if isinstance(first, np.ndarray):
        shape = first.shape
        if not all(isinstance(v, np.ndarray) and v.shape == shape for v in values):
            return None
        return (np.concatenate(values).reshape(len(values), *shape),)
    if isinstance(first, float):
        return (np.array(values),) if all(isinstance(v, float) for v in values) else None
    alike = (first is None or isinstance(first, int)) and all(v is first or v == first for v in values)
    return (first,) if alike else None


@lru_cache
def columnar(kind: type[Message]) -> bool:
    """Whether numbers and arrays of a kind of message are checked by what is known here: all are finite.

    A number with limits of its own or another check of the message needs the messages one by one.
    """
    return kind.__post_init__ is Message.__post_init__ and all(map(_known, hints_of(kind).values()))


@lru_cache
def hints_of(kind: type[Message]) -> dict[str, tuple[Any, ...]]:
    """What each field of a kind of message may be."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: options_of(hints[name]) for name in kind.__struct_fields__}


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have: one, or those of a union."""
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def _known(options: tuple[Any, ...]) -> bool:
    return not any(get_origin(option) is Annotated and float in get_args(option) for option in options)
