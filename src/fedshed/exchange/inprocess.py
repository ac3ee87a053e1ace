"""All agents in this process: the default, and the reference for every other transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

from fedshed._utils.errors import ConfigError
from fedshed.exchange.plural import MOST, Assembly, Some
from fedshed.exchange.transport import Transport


class Handler(Protocol):
    """What answers at a site."""

    def handle(self, payload: bytes) -> bytes:
        """The encoded reply to an encoded request."""
        ...

    def forget(self) -> None:
        """Lose what is only a cache."""
        ...


class InProcess:
    """Agents answer one after the other, or `workers` at a time, through the same bytes as anywhere else.

    An agent's answer depends on no other's, and BLAS is held at one thread: any number of workers gives the
    same bits.  More than one pays where agents hold much data, for only long products run beside each other.
    """

    stateless = False

    def __init__(self, sites: Mapping[str, Handler], workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be a whole number >= 1, not {workers}")
        self.sites, self._workers = dict(sites), workers
        self._assembly = Assembly(self.sites, self.streams)

    def agents(self) -> Sequence[str]:
        """Names of the agents."""
        return sorted(self.sites)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """Every agent asked answers."""
        if self._workers == 1:
            return [pair for some in self.stream(payloads) for pair in zip(*some, strict=True)]
        with ThreadPoolExecutor(self._workers) as pool:
            answers = pool.map(lambda i: self.sites[i].handle(payloads[i]), payloads)
            return list(zip(payloads, answers, strict=True))

    def stream(self, payloads: Mapping[str, bytes]) -> Iterator[Some]:
        """The same for a reader that takes replies as they come, so that not all are in memory at once."""
        if self._assembly.sites is not self.sites:
            self._assembly = Assembly(self.sites, self.streams)
        return self._assembly.answers(payloads)

    @property
    def streams(self) -> bool:
        """Whether nothing lies between the sites and the reader of their replies."""
        return self._workers == 1 and type(self).exchange is InProcess.exchange


def streamed(transport: Transport, payloads: Mapping[str, bytes]) -> Iterator[Some]:
    """The replies of an exchange, some hundred at a time."""
    if isinstance(transport, InProcess) and transport.streams:
        yield from transport.stream(payloads)
        return
    replies = iter(transport.exchange(payloads))
    while some := list(islice(replies, MOST)):
        yield [name for name, _ in some], [reply for _, reply in some]
