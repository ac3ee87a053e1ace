"""A transport to workers that host thousands of sites each: one call per worker and exchange.

What a worker is, a pool says (`fedshed.exchange.ray_sites`).  A worker that died is built again from its data
and from what its sites remembered, which is saved at every second exchange that changed it; it is asked again
what has changed them since, and then the open request.  So the run goes on with the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace, merge
from itertools import chain
from operator import itemgetter
from typing import Protocol, Self

from msgspec import Struct

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.exchange.bundles import Packed, Replies, pack_requests, replies_of, unpack_replies

log = logging.getLogger("fedshed")
MOST_DEATHS = 3  # of a worker without an answer in between
SAVE_EVERY = 2  # exchanges in which a site's memory changed: a death costs no more than these
MESSAGE = 5000  # entries of a table that cost as much as a message


class WorkerDiedError(Exception):
    """A worker is gone, with whatever it was asked."""


class Pool(Protocol):
    """Workers by their number; a call to one of them is known by what `ask` returns."""

    def start(self, worker: int, saved: Hashable | None = None) -> Hashable:
        """Start a worker, or start it again from its data and what was saved; the call ends once it is up."""
        ...

    def ask(self, worker: int, bundle: bytes, save: bool) -> Hashable:
        """Send requests, without waiting for the replies; a worker answers its calls in order."""
        ...

    def first(self, calls: Collection[Hashable], seconds: float) -> Hashable | None:
        """The first of the calls to end, or None where none does so within the time."""
        ...

    def result(self, call: Hashable) -> tuple[Packed, Hashable]:
        """What a call that has ended returned, and by what name what it saved is known, which is left there.

        WorkerDiedError if its worker died, or could not start.
        """
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class Call(Struct, frozen=True):
    """A call that has not ended: to which worker, in which exchange, about which of its sites."""

    worker: int
    exchange: int
    names: Sequence[str] = ()
    bundle: bytes = b""  # empty: it is being started
    replayed: bool = False  # the replies have been used already


class Memory(Struct):
    """How a worker can be brought back to where it was: what was saved last, and what it was asked since."""

    saved: Hashable | None = None
    since: list[bytes] = []


class WorkerSites:
    """Sites at workers, whose replies come back by the deadline or with a later exchange."""

    stateless = False

    def __init__(
        self, sites: Sequence[Sequence[str]], pool: Pool, *, deadline: float, start_within: float,
        simulation: str = "",
    ) -> None:  # fmt: skip
        self._sites, self.pool, self._deadline = [tuple(names) for names in sites], pool, deadline
        self.simulation = simulation  # why it is for nothing else
        self._calls: dict[Hashable, Call] = {}
        self._deaths = [0] * len(sites)
        self._memories = [Memory() for _ in sites]
        self._exchange, self._arrived = 0, list[tuple[Call, Replies, Packed]]()
        try:
            for worker in range(len(sites)):
                self._start(worker)
            if not self._wait_for_answers(start_within):
                raise ProtocolError(self._start_message(start_within))
        except BaseException:
            self.close()
            raise

    def agents(self) -> Sequence[str]:
        """Names of the sites."""
        return sorted(name for names in self._sites for name in names)

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """What came late since the last exchange, and what came back by the deadline, in order of the names.

        The replies are read as they are taken, so that never are all of them there twice.
        """
        self._exchange += 1
        for worker, names in enumerate(self._sites):
            self._ask(worker, names, payloads)
        self._wait_for_answers(self._deadline)
        arrived, self._arrived = self._arrived, []
        late = [_named(*each) for each in arrived if each[0].exchange < self._exchange]
        now = [_named(*each) for each in arrived if each[0].exchange == self._exchange]
        return chain(*late, merge(*now, key=itemgetter(0)))

    def close(self) -> None:
        """End all workers."""
        self._calls = {}
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, worker: int) -> None:
        call = self.pool.start(worker, self._memories[worker].saved)
        self._calls[call] = Call(worker, self._exchange)

    def _ask(self, worker: int, names: Sequence[str], payloads: Mapping[str, bytes]) -> None:
        """One call for all sites of a worker that are asked, if any are."""
        places = [place for place, name in enumerate(names) if name in payloads]
        if places:
            asked = [names[place] for place in places]
            bundle = pack_requests([payloads[name] for name in asked], places, len(names))
            self._send(Call(worker, self._exchange, asked, bundle))

    def _send(self, call: Call) -> None:
        save = not call.replayed and len(self._memories[call.worker].since) >= SAVE_EVERY - 1
        self._calls[self.pool.ask(call.worker, call.bundle, save)] = call

    def _wait_for_answers(self, seconds: float) -> bool:
        """Take in what comes, until all calls of this exchange have ended or the time is over."""
        until = time.monotonic() + seconds
        while any(call.exchange == self._exchange for call in self._calls.values()):
            ended = self.pool.first(self._calls, max(until - time.monotonic(), 0.0))
            if ended is None:
                return False
            self._take(ended)
        return True

    def _take(self, ended: Hashable) -> None:
        """The replies of a call, each once; a worker that died loses its calls and is started again."""
        call = self._calls.pop(ended)
        try:
            result, saved = self.pool.result(ended)
        except WorkerDiedError as error:
            self._restart(call, str(error))
            return
        if call.bundle and not call.replayed:
            found = unpack_replies(result, len(call.names))
            self._deaths[call.worker] = 0
            self._remember(call, found, saved)
            self._arrived.append((call, found, result))

    def _remember(self, call: Call, found: Replies, saved: Hashable) -> None:
        memory = self._memories[call.worker]
        if found.saved:
            memory.saved, memory.since = saved, []
        elif found.changed:
            memory.since.append(call.bundle)

    def _restart(self, lost: Call, why: str) -> None:
        """Build a worker again as it was, and ask it what is still open; what was late is not asked again."""
        worker = lost.worker
        self._deaths[worker] += 1
        if self._deaths[worker] >= MOST_DEATHS:
            raise ProtocolError(self._death_message(worker, why))
        if self._deaths[worker] > 1:  # what was saved may be lost, or be to blame
            self._memories[worker] = self._forgotten(worker)
        calls = [lost, *(call for call in self._calls.values() if call.worker == worker)]
        self._calls = {key: call for key, call in self._calls.items() if call.worker != worker}
        self._start(worker)
        for bundle in self._memories[worker].since:
            self._send(Call(worker, self._exchange, bundle=bundle, replayed=True))
        for call in calls:
            if call.bundle and not call.replayed and call.exchange == self._exchange:
                self._send(call)

    def _forgotten(self, worker: int) -> Memory:
        """Nothing is restored: the sites answer from their rows alone, and the run may take another way."""
        memory = self._memories[worker]
        if memory.saved is not None or memory.since:
            log.warning(
                "worker %d died twice without an answer: its sites lose their caches, so the run "
                "reaches the same optimum but not with the same bits", worker,
            )  # fmt: skip
        return Memory()

    def _death_message(self, worker: int, why: str) -> str:
        names = self._sites[worker]
        return (
            f"worker {worker}, which hosts {len(names)} sites ({names[0]!r} to {names[-1]!r}), died "
            f"{MOST_DEATHS} times without an answer; does its machine have enough memory for them? "
            f"The last time: {why}"
        )

    def _start_message(self, seconds: float) -> str:
        waiting = sorted({call.worker for call in self._calls.values()})
        return f"workers {waiting} did not start within {seconds:g} s; is a CPU of the cluster free for each?"


def _named(call: Call, found: Replies, packed: Packed) -> Iterator[tuple[str, bytes]]:
    """The replies of a call with the names of the sites, sorted as these are."""
    return zip(call.names, replies_of(found.lengths, packed[1]), strict=True)


def assign_sites(sizes: Mapping[str, int], workers: int) -> list[list[str]]:
    """The sites of each worker, sorted: the largest first to whoever has least to do so far.

    A site costs the entries of its table and a message; there is no worker without a site.
    """
    if workers < 1:
        raise ConfigError(f"workers must be a whole number >= 1, not {workers}")
    load = [(0, worker) for worker in range(min(workers, len(sizes)))]
    heapify(load)
    found: list[list[str]] = [[] for _ in load]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        cost, worker = load[0]
        found[worker].append(name)
        heapreplace(load, (cost + sizes[name] + MESSAGE, worker))
    return [sorted(names) for names in found]
