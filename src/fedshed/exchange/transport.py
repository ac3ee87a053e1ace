"""Transports move bytes between the Master and the agents; algorithms and accounting live outside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol


class Transport(Protocol):
    """One exchange: a payload for each agent asked, the payloads of those that answered."""

    @property
    def stateless(self) -> bool:
        """Whether agents forget everything between two exchanges."""
        ...

    def agents(self) -> Sequence[str]:
        """Names of the agents that can be reached."""
        ...

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Send, wait, return what came back: the silent are absent, the late may come with a later one."""
        ...


@contextmanager
def opened(transport: Transport) -> Iterator[Transport]:
    """A transport that has something to close is closed at the end, however it comes."""
    with ExitStack() as stack:
        if isinstance(transport, AbstractContextManager):
            stack.enter_context(transport)
        yield transport
