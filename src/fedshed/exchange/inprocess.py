"""All agents in this process: the default, and the reference for every other transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol, TypeAlias

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.exchange.site import Site
from fedshed.exchange.transport import Transport

MOST = 256  # sites that answer at a time: so not all replies are in memory at once
NamedReplies: TypeAlias = tuple[Sequence[str], Sequence[bytes]]  # names, and the reply of each


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

    def stream(self, payloads: Mapping[str, bytes]) -> Iterator[NamedReplies]:
        """The same for a reader that takes replies as they come, so that not all are in memory at once."""
        return answer_in_batches(self.sites, payloads, self.streams)

    @property
    def streams(self) -> bool:
        """Whether nothing lies between the sites and the reader of their replies."""
        return self._workers == 1 and type(self).exchange is InProcess.exchange


def stream_replies(transport: Transport, payloads: Mapping[str, bytes]) -> Iterator[NamedReplies]:
    """The replies of an exchange, some hundred at a time."""
    if isinstance(transport, InProcess) and transport.streams:
        yield from transport.stream(payloads)
        return
    replies = iter(transport.exchange(payloads))
    while some := list(islice(replies, MOST)):
        yield [name for name, _ in some], [reply for _, reply in some]


def answer_in_batches(
    sites: Mapping[str, Handler], payloads: Mapping[str, bytes], read_here: bool = False
) -> Iterator[NamedReplies]:
    """The encoded replies of sites of this process, each of which answers by itself.

    `read_here`: the Master reads them in this process, in the order of the answers.
    """
    each = iter(payloads)
    while names := list(islice(each, MOST)):
        requests = [payloads[name] for name in names]
        yield names, _answer_each([sites[name] for name in names], requests, read_here)


def _answer_each(sites: Sequence[Handler], payloads: Sequence[bytes], read_here: bool) -> list[bytes]:
    """The reply of each site; lossy ones of sites that share a codec are coded together."""
    codec = sites[0].codec if isinstance(sites[0], Site) else None
    plain = [site for site in sites if type(site) is Site and site.codec is codec]
    if codec is None or len(plain) < len(sites):
        return [site.handle(payload) for site, payload in zip(sites, payloads, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is rejected, not warned of
        requests = map(codec.decode_request, payloads)
        if not codec.lossy:
            return list(map(Site.encode_reply_to, plain, requests))
        replies, caches = zip(*map(Site.reply_to, plain, requests), strict=True)
        accuracy = codec.decode_request(payloads[0]).accuracy
        encoded, seen = codec.encode_replies(replies, accuracy, read_here)
    for row, site in enumerate(plain):
        site.keep(replies[row], caches[row], encoded[row], seen.get(row))
    return encoded
