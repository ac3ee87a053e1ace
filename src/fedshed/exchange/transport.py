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
        """Send, wait, and return what came back; silent agents are absent, and late replies follow later."""
        ...


@contextmanager
def open_transport(transport: Transport) -> Iterator[Transport]:
    """Use a transport and close it at the end, also after an error."""
    with ExitStack() as stack:
        if isinstance(transport, AbstractContextManager):
            stack.enter_context(transport)
        yield transport
