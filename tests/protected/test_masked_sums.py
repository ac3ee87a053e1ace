"""Masked sums: exact, whoever is killed and whenever; absent sites are left out once, or waited for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("cryptography")

from tests.protected.parties import (
    EXCHANGES,
    RUN,
    STUDY,
    KilledError,
    Memory,
    Replay,
    Sites,
    expected,
    identity,
    master_of,
    numbers,
    play,
    roster_of,
    same,
)  # fmt: skip

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.privacy.addends import Addends
from fedshed.protected import messages as m
from fedshed.protected.master import MaskedSums
from fedshed.protected.member import Member
from fedshed.protocol.codec import encode


@pytest.mark.parametrize("count", [3, 7])
def test_the_sums_are_those_of_all_sites(count):
    sites = Sites([f"site {i}" for i in range(count)])
    found = play(master_of(sites))
    assert len(found) == EXCHANGES
    assert all(same(totals, expected(sites.names, label, payload)) for label, payload, totals in found)


def test_sites_take_the_same_bits_as_the_master():
    sites = Sites()
    steps = {name: member._steps for name, member in sites.members.items()}
    found = play(master_of(sites))
    for replay in steps.values():
        assert len(replay.taken) == EXCHANGES - 1  # nobody asks for anything after the last sums
        for (label, payload, _, totals), (l2, p2, t2) in zip(replay.taken, found, strict=False):
            assert (label, payload) == (l2, p2)
            assert totals.wide.tobytes() == t2.wide.tobytes()
            assert totals.slim.tobytes() == t2.slim.tobytes()


def overflowing(name, label, payload):
    """Site b cannot answer in slot 0."""
    part = numbers(name, label, payload)
    wide = part.wide.copy()
    if name == "b":
        wide[1] = np.inf
    return Addends(wide, part.wide_slots, part.slim, part.slim_slots, part.raised)


def test_a_number_that_cannot_be_added_raises_its_slot_only():
    found = play(master_of(Sites(of=overflowing)))
    for label, payload, totals in found:
        assert totals.raised.tolist() == [True, False, False]
        assert totals.wide[3] == pytest.approx(expected(["a", "b", "c"], label, payload).wide[3], rel=1e-14)


def test_noise_is_part_of_the_sums():
    def noisy(name, label, payload):
        part = numbers(name, label, payload)
        return Addends(part.wide, part.wide_slots, part.slim, part.slim_slots, part.raised, (1 << 70,) * 4)

    for label, payload, totals in play(master_of(Sites(of=noisy))):
        same(totals, expected(["a", "b", "c"], label, payload, noisy))
        assert totals.wide == pytest.approx(expected(["a", "b", "c"], label, payload).wide + 3 * 64.0)


# --- kills ---------------------------------------------------------------------------------------


def bits(found):
    return [(t.wide.tobytes(), t.slim.tobytes()) for _, _, t in found]


TRUE = bits(play(master_of(Sites())))
PUTS = 4 + 2 * EXCHANGES  # keys, roster, shares, the set; then what was asked and what was opened


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, PUTS + 1))
def test_a_site_killed_at_any_point_changes_nothing(at, after):
    sites = Sites()
    sites.stores["b"].at, sites.stores["b"].after = at, after
    assert bits(play(master_of(sites))) == TRUE
    assert sites.kills == 1


def test_a_site_keeps_as_many_records_as_it_is_killed_at():
    sites = Sites()
    play(master_of(sites))
    assert {store.puts for store in sites.stores.values()} == {PUTS}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 2 + 3 * EXCHANGES))
def test_a_master_killed_at_any_point_goes_on_from_its_log(at, after):
    sites, store = Sites(), Memory()
    store.at, store.after = at, after
    with pytest.raises(KilledError):
        play(master_of(sites, store))
    assert bits(play(master_of(sites, store))) == TRUE


def test_a_master_that_is_started_again_asks_nothing_twice():
    sites, store = Sites(), Memory()
    play(master_of(sites, store))
    before = len(sites.log)
    assert bits(play(master_of(sites, store))) == TRUE
    assert len(sites.log) == before


@pytest.mark.parametrize("kind", [m.Hello, m.Agree, m.Ready, m.Masked, m.Opened])
@pytest.mark.parametrize("fate", ["request", "reply"])
def test_lost_messages_are_asked_for_again(kind, fate):
    asked = {m.Hello: m.Begin, m.Agree: m.Roster, m.Ready: m.Agreed, m.Masked: m.Ask, m.Opened: m.Open}[kind]
    sites, losses = Sites(), Counter()

    def lost(name, payload):
        if name != "c" or not isinstance(m.read_request(payload), asked):
            return None
        losses[payload] += 1
        return fate if losses[payload] < 3 else None

    sites.lost = lost
    assert bits(play(master_of(sites))) == TRUE
    assert set(losses.values()) == {3}


def test_late_and_repeated_replies_are_passed_over():
    sites, late = Sites(), []
    exchange = sites.exchange

    def repeating(payloads):
        replies = exchange(payloads)
        late.extend(replies)
        return [*late, ("stranger", b"x"), *replies, *replies]

    sites.exchange = repeating
    assert bits(play(master_of(sites))) == TRUE


# --- dropouts ------------------------------------------------------------------------------------


def gone(sites, name, kind, exchange):
    """From now on `name` does not get requests of this kind in this exchange."""

    def lost(to, payload):
        request = m.read_request(payload)
        here = isinstance(request, kind) and request.exchange >= exchange
        return "request" if to == name and here else None

    sites.lost = lost


def test_a_site_that_is_absent_at_the_first_exchange_is_left_out():
    sites = Sites("abcd", least=3)
    gone(sites, "b", m.Ask, 1)
    master = master_of(sites)
    found = play(master)
    assert master.names == ("a", "c", "d")
    assert all(same(totals, expected("acd", label, payload)) for label, payload, totals in found)


def test_a_site_whose_first_answer_is_lost_is_left_out_and_never_opens():
    sites = Sites("abcd", least=3)
    sites.lost = lambda name, payload: "reply" if name == "d" and b"Ask" in payload[:8] else None
    found = play(master_of(sites))
    assert all(same(totals, expected("abc", label, payload)) for label, payload, totals in found)
    with pytest.raises(ProtocolError):
        sites.members["d"].handle(encode(m.Open(1, 2)))


def test_three_attempts_at_most():
    sites = Sites("abcdefg", least=3)

    def lost(name, payload):
        request = m.read_request(payload)
        if isinstance(request, m.Ask):
            return "request" if name == "gfed"[request.attempt - 1] else None
        return None

    sites.lost = lost
    with pytest.raises(ProtocolError, match=r"site 'e' gave no answer.*3 attempts"):
        play(master_of(sites))
    assert not any(b"Opened" in reply[:9] for _, _, reply in sites.log)


def test_fewer_sites_than_approved_are_never_summed():
    sites = Sites("abcd", least=4)
    gone(sites, "b", m.Ask, 1)
    with pytest.raises(ProtocolError, match=r"site 'b' gave no answer.*at least 4"):
        play(master_of(sites))
    assert not any(b"Opened" in reply[:9] for _, _, reply in sites.log)


def test_a_site_that_leaves_later_is_waited_for():
    sites, store = Sites("abcd", least=3), Memory()
    gone(sites, "b", m.Ask, 2)
    with pytest.raises(ProtocolError, match=r"exchange 2: site 'b'.*first exchange only"):
        play(master_of(sites, store))
    sites.lost = lambda name, payload: None
    found = play(master_of(sites, store))
    assert all(same(totals, expected("abcd", label, payload)) for label, payload, totals in found)


def test_an_exchange_that_a_site_does_not_open_stays_sealed():
    sites, store = Sites("abcd", least=3), Memory()
    gone(sites, "b", m.Open, 1)
    with pytest.raises(ProtocolError, match="sealed: site 'b'"):
        play(master_of(sites, store))
    with pytest.raises(ProtocolError, match="sealed"):  # started again it leaves nobody out either
        play(master_of(sites, store))
    sites.lost = lambda name, payload: None
    found = play(master_of(sites, store))
    assert all(same(totals, expected("abcd", label, payload)) for label, payload, totals in found)


def test_after_opening_began_a_master_that_is_started_again_leaves_nobody_out():
    sites, store = Sites("abcd", least=3), Memory()
    gone(sites, "b", m.Open, 1)
    with pytest.raises(ProtocolError, match="sealed"):
        play(master_of(sites, store))
    sites.lost = lambda name, payload: "request" if name == "b" else None
    with pytest.raises(ProtocolError, match="site 'b' gave no answer"):
        play(master_of(sites, store))


def test_a_study_does_not_begin_without_all_sites():
    sites = Sites("abcd")
    sites.lost = lambda name, payload: "request" if name == "d" else None
    with pytest.raises(ProtocolError, match=r"site 'd' gave no answer.*when the study begins"):
        play(master_of(sites))


# --- what a Master finds wrong -------------------------------------------------------------------


def test_answers_of_another_kind_are_refused_by_the_name_of_the_site():
    class Other(Replay):
        def addends(self, label, payload):
            public, part, fraction = super().addends(label, payload)
            return (public + b"!" if self.name == "b" else public), part, fraction

    sites = Sites()
    sites.members["b"]._steps = Other("b")
    with pytest.raises(ProtocolError, match=r"kind of answer differs at 'b'"):
        play(master_of(sites))
    assert not any(b"Opened" in reply[:9] for _, _, reply in sites.log)


def test_a_refusal_is_told_with_the_name_of_the_site():
    sites = Sites()
    exchange = sites.exchange
    sites.exchange = lambda payloads: [
        (name, encode(m.Refused("not today")) if name == "c" else reply) for name, reply in exchange(payloads)
    ]
    with pytest.raises(ProtocolError, match="site 'c' refused: not today"):
        play(master_of(sites))


def test_a_site_of_another_run_is_named():
    sites = Sites()
    master = MaskedSums(sites, sites.names, STUDY, b"run-0002", 3, Memory())
    with pytest.raises(ProtocolError, match="another study or run at 'a', 'b', 'c'"):
        play(master)


def test_a_site_that_answers_under_another_name_is_named():
    sites = Sites()
    swapped, exchange = {"a": "b", "b": "a", "c": "c"}, sites.exchange
    sites.exchange = lambda payloads: [(swapped[n], r) for n, r in exchange(payloads)]
    with pytest.raises(ProtocolError, match="site 'b' says that it is 'a'"):
        play(master_of(sites))


def test_garbage_counts_as_silence_and_is_told():
    sites = Sites()
    exchange = sites.exchange
    sites.exchange = lambda payloads: [
        (name, b"\x00" if name == "c" else reply) for name, reply in exchange(payloads)
    ]
    with pytest.raises(ProtocolError, match=r"site 'c' gave no answer.*not a message of masked sums"):
        play(master_of(sites))


def test_a_log_of_another_procedure_is_refused():
    sites, store = Sites(), Memory()
    play(master_of(sites, store))
    with pytest.raises(ProtocolError, match="exchange 1 asks for something else"):
        master_of(sites, store).exchange(0, b"another start")


def test_an_attempt_begun_with_another_request_is_refused():
    sites, store = Sites(), Memory()
    gone(sites, "b", m.Open, 1)
    with pytest.raises(ProtocolError, match="sealed"):
        play(master_of(sites, store))
    with pytest.raises(ProtocolError, match="begun with another request"):
        master_of(sites, store).exchange(0, b"another start")


# --- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "least"), [("ab", 3), ("abc", 2), ("abc", 4), ([str(i) for i in range(129)], 3)]
)
def test_too_few_or_too_many_sites_are_refused_at_once(names, least):
    with pytest.raises(ConfigError, match="3 to 128 sites"):
        MaskedSums(Sites(), list(names), STUDY, RUN, least, Memory())
    with pytest.raises(ConfigError, match="3 to 128 sites"):
        member("0" if len(names) > 9 else "a", roster_of(names), least)


def member(name, roster, least=3, study=STUDY):
    return Member(name, identity(name), roster, study, RUN, least, Memory(), Replay(name))


def test_a_site_whose_key_is_not_in_the_roster_is_refused_at_once():
    with pytest.raises(ConfigError, match="its own key"):
        member("z", roster_of("abc"))
    with pytest.raises(ConfigError, match="its own key"):
        member("a", roster_of("abc") | {"a": roster_of("z")["z"]})


def test_two_sites_with_one_key_are_refused_at_once():
    with pytest.raises(ConfigError, match="same key"):
        member("a", roster_of("abc") | {"b": roster_of("c")["c"]})


def test_a_study_is_named_by_a_whole_digest():
    with pytest.raises(ConfigError, match="32 bytes"):
        member("a", roster_of("abc"), study=b"short")
