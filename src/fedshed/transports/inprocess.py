"""All agents in this process: the default, and the reference for every other transport."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Handler(Protocol):
    """What answers at a site."""

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        ...

    def forget(self) -> None:
        """Lose what is only a cache."""
        ...


class InProcess:
    """Agents answer one after the other, through the same bytes as over any other transport."""

    stateless = False

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self.sites = dict(sites)

    def agents(self) -> Sequence[str]:
        """Names of the agents."""
        return sorted(self.sites)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Every agent asked answers."""
        return [(i, self.sites[i].handle(payload)) for i, payload in payloads.items()]
