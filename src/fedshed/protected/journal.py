"""What a site keeps of masked sums: every record is on disk, and witnessed, before anything is sent."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed.protected.keys import Secrets
from fedshed.protected.messages import MOST_ATTEMPTS
from fedshed.protocol.codec import encode

SET = "study-set"  # the sites that a study's sums are over, in all its runs


class Store(Protocol):
    """What outlives a process; every put is on disk before it returns.

    What is kept under a name that begins with "study-" belongs to all runs of a study.
    """

    def get(self, name: str) -> bytes | None:
        """What was put under this name last."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Keep it."""
        ...


class Witness(Protocol):
    """A second, append-only record of how far a run has come, such as a site's audit.

    A store that was put back to an earlier state is found by it.
    """

    def noted(self) -> int:
        """The largest number noted for this run; 0 if there is none."""
        ...

    def note(self, number: int) -> None:
        """Add a number; it is on disk before this returns."""
        ...


class Asked(Struct, frozen=True, array_like=True):
    """A request that was answered: its bytes, the seed of the own mask, and the answer."""

    number: int
    ask: bytes
    seed: bytes
    reply: bytes


class Opening(Struct, frozen=True, array_like=True):
    """The one attempt of an exchange whose seed has left."""

    number: int
    attempt: int


class Ended(Struct, frozen=True, array_like=True):
    """The study has ended at this site and cannot be continued."""

    number: int
    reason: str


class Journal:
    """The records of one run in a store.  They are numbered, and the witness is told each number."""

    def __init__(self, store: Store, witness: Witness | None) -> None:
        self._store, self._witness = store, witness
        self._number = self._noted = 0  # of the last record, and of the last that the witness was told

    def recovered(self) -> tuple[list[tuple[dict[int, Asked], Opening | None]], Ended | None]:
        """The records of each exchange, and the end if it came; ProtocolError for a store put back."""
        exchanges: list[tuple[dict[int, Asked], Opening | None]] = []
        while asked := self._attempts(len(exchanges) + 1):
            exchanges.append((asked, self.opening(len(exchanges) + 1)))
        ended = self._get("over", Ended)
        records = [r for asked, opening in exchanges for r in (*asked.values(), opening)]
        self._number = max((r.number for r in (*records, ended) if r is not None), default=0)
        self._noted = 0 if self._witness is None else self._witness.noted()
        if self._number < self._noted:
            raise ProtocolError("what this site keeps of the study is older than its witness says")
        return exchanges, ended

    def _attempts(self, exchange: int) -> dict[int, Asked]:
        found = {k: self.asked(exchange, k) for k in range(1, MOST_ATTEMPTS + 1)}
        return {k: record for k, record in found.items() if record is not None}

    def asked(self, exchange: int, attempt: int) -> Asked | None:
        """What was asked in an attempt, and answered."""
        record: Asked | None = self._get(f"asked-{exchange}-{attempt}", Asked)
        return record

    def opening(self, exchange: int) -> Opening | None:
        """The attempt of an exchange that was opened."""
        record: Opening | None = self._get(f"opened-{exchange}", Opening)
        return record

    def keep_asked(self, exchange: int, attempt: int, ask: bytes, seed: bytes, reply: bytes) -> Asked:
        """Keep a request and its answer, before the answer is sent; ProtocolError if there is one already.

        A process that missed it would answer twice, each time with other noise in a private study.
        """
        if self.asked(exchange, attempt) is not None:
            raise ProtocolError("another process of this site has answered in this attempt")
        record = Asked(self._number + 1, ask, seed, reply)
        self._keep(f"asked-{exchange}-{attempt}", record)
        return record

    def keep_opening(self, exchange: int, attempt: int) -> Opening:
        """Keep which attempt is opened, before its seed is sent."""
        record = Opening(self._number + 1, attempt)
        self._keep(f"opened-{exchange}", record)
        return record

    def keep_set(self, names: tuple[str, ...]) -> None:
        """Keep which sites the sums of a study are over; ProtocolError for another set in a later run.

        The sums of two sets would tell those of the sites by which they differ.
        """
        data = encode(names)
        if (known := self._store.get(SET)) is None:
            self._store.put(SET, data)
        elif known != data:
            raise ProtocolError("an earlier run of this study was over another set of sites")

    def keep_end(self, reason: str) -> Ended:
        """Keep that the study is over."""
        record = Ended(self._number + 1, reason)
        self._keep("over", record)
        return record

    def secrets(self) -> Secrets:
        """The site's keys of this run, drawn once."""
        mine: Secrets | None = self._get("keys", Secrets)
        if mine is None:
            mine = Secrets.drawn()
            self._store.put("keys", encode(mine))
        return mine

    def message(self, name: str) -> bytes | None:
        """A message of the set-up that was accepted."""
        return self._store.get(name)

    def keep_message(self, name: str, data: bytes) -> None:
        """Keep a message of the set-up."""
        self._store.put(name, data)

    def _keep(self, name: str, record: Asked | Opening | Ended) -> None:
        self._store.put(name, encode(record))
        self._number = record.number
        self.settle()

    def settle(self) -> None:
        """Tell the witness of every record, before anything that rests on it is sent."""
        if self._witness is not None and self._noted < self._number:
            self._witness.note(self._number)
            self._noted = self._number

    def _get(self, name: str, kind: Any) -> Any:
        data = self._store.get(name)
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"the record {name!r} that this site keeps is damaged: {error}") from error
