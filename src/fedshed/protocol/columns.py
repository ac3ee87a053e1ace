"""Answers of many agents in the plural: messages of one kind and shape, one array per field."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from math import prod
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.linalg.arrays import Extended
from fedshed.protocol.messages import Message


class Columns(Struct, frozen=True):
    """Messages of one kind, field by field: row i of each array belongs to agent i.

    A float field is (M,), a vector (M, n), a packed Hessian (M, n(n+1)/2); a message in each message is
    `Columns` again, and coded bytes are a list; all else is the same for all agents (None, a whole number).
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
        return list(
            map(self.kind, *(each(self.fields[name], self.count) for name in self.kind.__struct_fields__))
        )

    @property
    def first(self) -> Message:
        """The message of the first agent."""
        return self.rows(slice(0, 1)).messages()[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(value, "nbytes", 0) for value in self.fields.values())

    def rows(self, chosen: slice | NDArray[np.intp]) -> Columns:
        """The answers of some of the agents."""
        fields = {name: _chosen(value, chosen) for name, value in self.fields.items()}
        return Columns(self.kind, fields, len(np.arange(self.count)[chosen]))

    @property
    def even(self) -> bool:
        """Whether all messages have the same size: none of them has coded bytes."""
        return not any(isinstance(value, list) for value in self.fields.values())

    def having(self, **fields: Any) -> Columns:
        """The same messages with other numbers in some fields."""
        return Columns(self.kind, {**self.fields, **fields}, self.count)

    def possible(self) -> NDArray[np.bool_]:
        """Which of the messages can be made."""
        fine = self.kind.possible(self.fields, self.count)
        for value in self.fields.values():
            if isinstance(value, Columns):
                fine = fine & value.possible()
        return fine

    def readable(self) -> NDArray[np.bool_]:
        """Which of the messages a decoder takes: those that can be made, and have finite arrays."""
        fine = self.kind.possible(self.fields, self.count)
        for name, value in self.fields.items():
            if isinstance(value, Columns):
                fine = fine & value.readable()
            elif isinstance(value, np.ndarray):
                numbers = value.reshape(self.count, prod(value.shape[1:]))
                fine = fine & _allowed(numbers, Extended in hints_of(self.kind)[name])
        return fine


Groups: TypeAlias = list[tuple[Sequence[int], Columns]]  # which agents, and their messages


def all_alike(columns: Columns) -> Groups:
    """All agents in one group."""
    return [(range(columns.count), columns)]


def _chosen(value: Any, chosen: slice | NDArray[np.intp]) -> Any:
    """A field of some of the messages."""
    if isinstance(value, Columns):
        return value.rows(chosen)
    if isinstance(value, list):
        return [value[row] for row in np.arange(len(value))[chosen]]
    return value[chosen] if isinstance(value, np.ndarray) else value


def each(value: Any, count: int) -> Iterable[Any]:
    """A field of each message."""
    if isinstance(value, Columns):
        return value.messages()
    if isinstance(value, list):
        return value
    if not isinstance(value, np.ndarray):
        return repeat(value, count)
    rows: list[Any] = value.tolist() if value.ndim == 1 else list(value)
    return rows


def _allowed(numbers: NDArray[np.float64], extended: bool) -> NDArray[np.bool_]:
    """The rows without NaN and infinity, as the decoder has it: sums of squares tell of most."""
    with np.errstate(over="ignore", invalid="ignore"):
        fine = np.asarray(np.isfinite(np.einsum("ij,ij->i", numbers, numbers)))
    if not fine.all():
        doubtful = numbers[~fine]
        fine[~fine] = (doubtful > -np.inf if extended else np.isfinite(doubtful)).all(axis=1)
    return fine


def places_of(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, in the order in which they come."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        groups[key].append(place)
    return list(groups.values())


def likeness(message: Message) -> Hashable:
    """What messages have in common that differ in nothing but numbers."""
    return type(message), *(_likeness(getattr(message, name)) for name in message.__struct_fields__)


def _likeness(value: Any) -> Any:
    if isinstance(value, Message):
        return likeness(value)
    if isinstance(value, np.ndarray):
        return value.shape
    return type(value) if isinstance(value, float | bytes) else value


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
    if isinstance(first, Message):
        inner = columns_of(values)
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
    alike = (first is None or isinstance(first, int)) and all(v is first or v == first for v in values)
    return (first,) if alike else None


@lru_cache
def columnar(kind: type[Message]) -> bool:
    """Whether messages of a kind are checked by what is known here: `possible`, and that arrays are finite.

    A number with limits of its own, or a `__post_init__` that is not told of many, needs them one by one.
    """
    told, checked = (_definer(kind, name) for name in ("possible", "__post_init__"))
    return issubclass(told, checked) and all(map(_known, hints_of(kind).values()))


def _definer(kind: type[Message], name: str) -> type:
    """The class that defines an attribute of a kind of message."""
    return next(base for base in kind.__mro__ if name in vars(base))


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
