"""A site's end of masked sums."""

from __future__ import annotations

from typing import Protocol

from fedshed.privacy.addends import Addends, Totals


class Steps(Protocol):
    """What a site makes of the procedure that it replays: the request that follows, and its own numbers."""

    def check(self, label: int, payload: bytes) -> None:
        """ProtocolError unless exactly this request follows from the sums so far."""
        ...

    def addends(self, label: int, payload: bytes) -> tuple[bytes, Addends, int]:
        """The public skeleton of the answer, its numbers, and the fraction bits of the slim ones."""
        ...

    def take(self, label: int, payload: bytes, public: bytes, totals: Totals) -> None:
        """The sums of an exchange whose tags were right."""
        ...


class Store(Protocol):
    """What outlives a process; every put is on disk before it returns."""

    def get(self, name: str) -> bytes | None:
        """What was put under this name last."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Keep it."""
        ...
