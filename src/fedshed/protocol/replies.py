"""Replies of many agents by columns: the Master computes with the answers of all that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from fedshed.protocol.columns import Columns
from fedshed.protocol.messages import Message

Group: TypeAlias = tuple[Sequence[str], Sequence[Columns]]  # agents, and their answers to each part


class Gathered(Mapping[str, Sequence[Any]]):
    """The answers of agents, in groups that are alike; messages are made when one of them is looked at."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups

    def without(self, kind: type[Message], part: int) -> Gathered:
        """Without the agents that answer a part with messages of a kind, and the parts before it."""
        kept = [(names, parts[part:]) for names, parts in self.groups if parts[part].kind is not kind]
        return Gathered(kept)

    def numbers(self, part: int, field: str, place: int) -> dict[str, float]:
        """One number of each agent, by its place in an array of the answer to a part."""
        found: dict[str, float] = {}
        for names, parts in self.groups:
            found.update(zip(names, parts[part].fields[field][:, place].tolist(), strict=True))
        return found

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self._messages[name]

    def __iter__(self) -> Iterator[str]:
        return (name for names, _ in self.groups for name in names)

    def __len__(self) -> int:
        return sum(len(names) for names, _ in self.groups)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self)

    @cached_property
    def _messages(self) -> dict[str, Sequence[Any]]:
        found: dict[str, Sequence[Any]] = {}
        for names, parts in self.groups:
            answers = zip(*(part.messages() for part in parts), strict=True)
            found.update(zip(names, answers, strict=True))
        return found
