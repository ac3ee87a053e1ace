"""Sites and a Master in one process: a small procedure of sums, stores that kill, lost messages."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest

from fedshed._utils.errors import ProtocolError
from fedshed.privacy import masks
from fedshed.privacy.addends import Addends, add
from fedshed.protected import messages as m
from fedshed.protected.master import MaskedSums
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode

STUDY, RUN = sha256(b"study").digest(), b"run-0001"
FRACTION = 30
EXCHANGES = 3


def identity(name):
    return sha256(f"identity of {name}".encode()).digest()


def roster_of(names):
    return {name: masks.identity_public(identity(name)) for name in names}


def numbers(name, label, payload):
    """A site's numbers in an exchange: they depend on the site and on what is asked."""
    seed = int.from_bytes(sha256(name.encode() + bytes([label]) + payload).digest()[:8], "big")
    rng = np.random.default_rng(seed)
    wide, slim = rng.normal(size=4) * 10.0 ** rng.integers(-7, 8, 4), rng.normal(size=6) * 100
    return Addends(wide, np.array([0, 0, 0, 1]), slim, np.zeros(6, dtype=np.intp), np.zeros(3, dtype=bool))


def first():
    return b"start"


def following(before, totals):
    """The request that follows from the sums so far."""
    return sha256(before + totals.wide.tobytes() + totals.slim.tobytes() + totals.raised.tobytes()).digest()


class Replay:
    """Steps of the small procedure: request e + 1 is a digest of the sums of exchange e."""

    def __init__(self, name, of=numbers):
        self.name, self._of, self._next, self.taken = name, of, first(), []

    def check(self, label, payload):
        if payload != self._next or label != len(self.taken):
            raise ProtocolError("this request does not follow from the sums")

    def addends(self, label, payload):
        return b"skeleton %d" % label, self._of(self.name, label, payload), FRACTION

    def take(self, label, payload, public, totals):
        self.taken.append((label, payload, public, totals))
        self._next = following(payload, totals)


class KilledError(Exception):
    """The process ended here."""


class Memory:
    """A store that can end the process at one of its puts, before it or after it."""

    def __init__(self):
        self.data, self.puts, self.at, self.after = {}, 0, None, True

    def get(self, name):
        return self.data.get(name)

    def put(self, name, data):
        self.puts += 1
        if self.puts == self.at and not self.after:
            raise KilledError
        self.data[name] = data
        if self.puts == self.at and self.after:
            raise KilledError


class Audit:
    """A witness that is only ever added to."""

    def __init__(self):
        self.numbers = []

    def noted(self):
        return max(self.numbers, default=0)

    def note(self, number):
        self.numbers.append(number)


class Sites:
    """Members behind a transport; `lost(name, payload)` says which request or reply does not arrive."""

    stateless = False

    def __init__(self, names=("a", "b", "c"), least=3, of=numbers, study=STUDY, run=RUN, pinned=None):
        self.names, self.least, self.of, self.place = tuple(names), least, of, (study, run)
        self.pinned = pinned or roster_of(names)
        self.stores, self.audits = ({name: kind() for name in names} for kind in (Memory, Audit))
        self.members, self.log, self.kills = {}, [], 0
        self.lost = lambda name, payload: None
        for name in names:
            self.revive(name)

    def revive(self, name):
        """The site's process starts again, with nothing but what it keeps."""
        self.members[name] = Member(
            name, identity(name), self.pinned, *self.place, self.least,
            self.stores[name], Replay(name, self.of), self.audits[name],
        )  # fmt: skip

    def agents(self):
        return sorted(self.members)

    def exchange(self, payloads):
        replies = []
        for name, payload in sorted(payloads.items()):
            fate = self.lost(name, payload)
            if fate == "request":
                continue
            try:
                reply = self.handle(name, payload)
            except KilledError:
                self.kills += 1
                self.revive(name)
                continue
            if fate != "reply":
                replies.append((name, reply))
        return replies

    def handle(self, name, payload):
        """One request at one site, on the record."""
        reply = self.members[name].handle(payload)
        self.log.append((name, payload, reply))
        return reply


def master_of(sites, store=None, **options):
    options = {"patience": 4} | options
    return MaskedSums(sites, sites.names, *sites.place, sites.least, store or Memory(), **options)


def play(master, exchanges=EXCHANGES):
    """The whole procedure at the Master: the sums of each exchange."""
    payload, found = first(), []
    for label in range(exchanges):
        public, totals = master.exchange(label, payload)
        assert public == b"skeleton %d" % label
        found.append((label, payload, totals))
        payload = following(payload, totals)
    return found


def expected(names, label, payload, of=numbers):
    """The sums without masks."""
    return add([of(name, label, payload) for name in names])


def same(found, true):
    """Whether masked sums are the plain ones, to what 64 and 30 bits of fraction hold."""
    assert np.allclose(found.wide, true.wide, rtol=1e-15, atol=128 * 2.0**-64)
    assert np.allclose(found.slim, true.slim, rtol=0, atol=128 * 2.0**-FRACTION)
    assert found.raised.tolist() == true.raised.tolist()
    return True


# --- a Master that does as it likes ----------------------------------------------------------------


def met(names=("a", "b", "c"), **options):
    """Sites that have agreed on a key."""
    sites = Sites(names, **options)
    master_of(sites)._set_up()
    sites.log.clear()
    return sites


def ask_of(sites, exchange=1, attempt=1, names=None, payload=None, sums=None):
    payload = first() if payload is None else payload
    return encode(m.Ask(exchange, attempt, tuple(names or sites.names), exchange - 1, payload, sums))


def summed(sites, names=None):
    """One honest first exchange, opened; the sums and the request that follows."""
    store = Memory()
    store.put("roster", m.read_reply(sites.handle("a", sites.stores["a"].data["agreed"])).roster)
    master = master_of(sites, store)
    _, totals = master.exchange(0, first())
    return master._sums, following(first(), totals)


def clone(sites, name):
    """The same site in another process, with a copy of what it keeps."""
    store, audit = Memory(), Audit()
    store.data, audit.numbers = dict(sites.stores[name].data), list(sites.audits[name].numbers)
    return Member(
        name, identity(name), sites.pinned, *sites.place, sites.least, store, Replay(name, sites.of), audit
    )


def refused(member, data, match=None):
    with pytest.raises(ProtocolError, match=match):
        member.handle(data if isinstance(data, bytes) else encode(data))


def hellos_of(sites):
    return [m.read_reply(sites.handle(name, encode(m.Begin()))) for name in sites.names]


def over_after(sites, ask, right):
    """A site that is asked this ends the study for good: it refuses the right request too, in any process."""
    member = clone(sites, "a")
    refused(member, ask, "over at site 'a'")
    refused(member, right, "over at site 'a'")
    store = member._journal._store
    sites.stores["a"].data, kept = store.data, sites.stores["a"].data
    refused(clone(sites, "a"), right, "over at site 'a'")
    sites.stores["a"].data = kept


def words_of(sums):
    return np.frombuffer(sums.words, dtype=np.uint64).copy()


def broken(label, payload):
    raise OSError("the disk is away")
