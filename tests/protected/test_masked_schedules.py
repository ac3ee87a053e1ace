"""Whatever is lost, repeated or killed, and whatever a Master tries: one set of each exchange, or nothing."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("cryptography")

from tests.protected.parties import (
    KilledError,
    Memory,
    Sites,
    ask_of,
    expected,
    first,
    following,
    master_of,
    met,
    same,
)  # fmt: skip

from fedshed._utils.errors import ProtocolError
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode

NAMES = tuple("abcd")
names = st.sampled_from(NAMES)


def openings(log):
    """For each exchange and attempt, the sites whose seeds have left; for each site, its seeds."""
    found = defaultdict(set)
    for name, _, reply in log:
        if isinstance(opened := m.read_reply(reply), m.Opened):
            found[opened.exchange, opened.attempt].add(name)
    return found


def sets(log):
    """The set of each exchange and attempt, by the requests that sites answered."""
    found = defaultdict(set)
    for _, payload, _ in log:
        if isinstance(ask := m.read_request(payload), m.Ask):
            found[ask.exchange, ask.attempt].add(ask.names)
    return found


def learned(log):
    """The exchanges and attempts that a Master could add up: all of a set sent and opened."""
    opened = openings(log)
    return [(e, k, u) for (e, k), each in sets(log).items() for u in each if opened[e, k] >= set(u)]


def one_opening_each(log):
    places = defaultdict(set)
    for (exchange, attempt), who in openings(log).items():
        for name in who:
            places[exchange, name].add(attempt)
    return all(len(attempts) == 1 for attempts in places.values())


class Schedules(RuleBasedStateMachine):
    """An honest Master over a bad line, with sites and Master that are killed at any time."""

    def __init__(self):
        super().__init__()
        self.sites, self.store = Sites(NAMES, least=3), Memory()
        self.fates = []
        self.sites.lost = lambda name, payload: self.fates.pop() if self.fates else None
        self.begin()

    def begin(self):
        self.master, self.payload, self.done = master_of(self.sites, self.store, patience=2), first(), []

    @rule(fates=st.lists(st.sampled_from([None, None, "request", "reply"]), min_size=1, max_size=12))
    def lose(self, fates):
        self.fates = fates

    @rule(name=names)
    def kill_a_site(self, name):
        self.sites.revive(name)

    @rule(name=names, puts=st.integers(1, 3), after=st.booleans())
    def kill_a_site_soon(self, name, puts, after):
        store = self.sites.stores[name]
        store.at, store.after = store.puts + puts, after

    @rule()
    def kill_the_master(self):
        self.begin()

    @rule(puts=st.integers(1, 3), after=st.booleans())
    def kill_the_master_soon(self, puts, after):
        self.store.at, self.store.after = self.store.puts + puts, after

    @precondition(lambda self: len(self.done) < 3)
    @rule()
    def ask(self):
        try:
            _, totals = self.master.exchange(len(self.done), self.payload)
        except ProtocolError:
            return
        except KilledError:
            self.begin()
            return
        self.done.append((self.master.names, self.payload, totals))
        self.payload = following(self.payload, totals)

    @invariant()
    def sums_are_exact_over_one_set(self):
        for label, (among, payload, totals) in enumerate(self.done):
            assert among == self.done[0][0]
            assert len(among) >= 3
            same(totals, expected(among, label, payload))

    @invariant()
    def no_site_has_ended_the_study(self):
        assert not any("over" in store.data for store in self.sites.stores.values())

    @invariant()
    def nothing_else_was_opened(self):
        assert one_opening_each(self.sites.log)
        found = learned(self.sites.log)
        assert len({e for e, _, _ in found}) == len(found)
        assert len({u for _, _, u in found}) <= 1

    def teardown(self):
        """In quiet the study goes on to its end."""
        self.fates = []
        self.store.at = None
        for store in self.sites.stores.values():
            store.at = None
        self.begin()
        while len(self.done) < 3:
            before = len(self.done)
            self.ask()
            assert len(self.done) == before + 1
        self.sums_are_exact_over_one_set()


Schedules.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestSchedules = Schedules.TestCase

SUBSETS = ["abcd", "abc", "abd", "acd", "bcd", "ab", "abcx"]
requests = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 3), st.sampled_from(SUBSETS)),
    st.tuples(st.just("open"), st.integers(1, 3), st.just("")),
    st.tuples(st.just("kill"), st.just(0), st.just("")),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(names, requests), min_size=10, max_size=60))
def test_a_deviating_master_never_learns_two_sums_of_one_exchange(schedule):
    """It would learn their difference, which is the numbers of the sites in one set and not in the other."""
    sites = met(NAMES)
    for name, (what, attempt, among) in schedule:
        if what == "kill":
            sites.revive(name)
            continue
        request = ask_of(sites, 1, attempt, among) if what == "ask" else encode(m.Open(1, attempt))
        try:
            sites.handle(name, request)
        except ProtocolError:
            continue
    assert one_opening_each(sites.log)
    assert len(learned(sites.log)) <= 1
    assert all(len(each) == 1 for each in per_site(sites.log).values())


def per_site(log):
    """The different answers of each site in each attempt."""
    found = defaultdict(set)
    for name, _, reply in log:
        if isinstance(masked := m.read_reply(reply), m.Masked):
            found[name, masked.exchange, masked.attempt].add(reply)
    return found


def test_two_sets_can_be_asked_and_one_of_them_learned():
    """What the property above forbids twice is possible once."""
    sites = met(NAMES)
    for name in NAMES:
        sites.handle(name, ask_of(sites))
    for name in "abc":
        sites.handle(name, ask_of(sites, 1, 2, "abc"))
    for name in "abc":
        sites.handle(name, encode(m.Open(1, 2)))
    assert learned(sites.log) == [(1, 2, tuple("abc"))]
    assert np.all([len(each) == 1 for each in per_site(sites.log).values()])
