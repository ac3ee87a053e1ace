"""Wrong sums and points end the study at a site; a store that was put back is found out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")

from msgspec.structs import replace
from tests.protected.parties import (
    KilledError,
    Replay,
    Sites,
    ask_of,
    broken,
    clone,
    first,
    following,
    master_of,
    met,
    over_after,
    play,
    refused,
    summed,
    words_of,
)

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.privacy import fixed_point as fp
from fedshed.privacy.linear_tags import PRIMES
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode


@pytest.fixture(scope="module")
def second():
    """Sites before the second exchange, the sums of the first, and the request that follows."""
    sites = met()
    sums, payload = summed(sites)
    return sites, sums, payload


def pretended(sites, sums):
    """Other sums, and the request that follows from them: their tags alone are wrong."""
    words = np.frombuffer(sums.words, dtype=np.uint64)
    return ask_of(sites, 2, payload=following(first(), fp.decode(words, sums.shape)), sums=sums)


def test_the_true_sums_and_the_request_that_follows_are_accepted(second):
    sites, sums, payload = second
    assert pretended(sites, sums) == ask_of(sites, 2, payload=payload, sums=sums)
    clone(sites, "a").handle(pretended(sites, sums))


def test_a_changed_bit_of_any_number_or_tag_ends_the_study(second):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    for i in range(sums.shape.words):
        words = words_of(sums)
        words[i] ^= np.uint64(1)
        over_after(sites, pretended(sites, replace(sums, words=words.tobytes())), right)
    for i in range(3):
        tags = [(t + (i == j)) % p for j, (t, p) in enumerate(zip(m.tags_of(sums), PRIMES, strict=True))]
        other = replace(sums, tags=m.tag_bytes(tags))
        over_after(sites, pretended(sites, other), right)


@pytest.mark.parametrize("prime", PRIMES)
def test_adding_a_prime_to_a_number_ends_the_study(second, prime):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    wide, shape = sums.shape.wide, sums.shape
    for i in [*range(1, wide), 2 * wide, 2 * wide + shape.slim]:
        words = words_of(sums)
        if i < wide:
            number = int(words[i]) + (int(words[wide + i]) << 64) + prime
            words[i], words[wide + i] = number % 2**64, (number >> 64) % 2**64
        else:
            words[i] += np.uint64(prime)
        other = replace(sums, words=words.tobytes())
        over_after(sites, pretended(sites, other), right)


@pytest.mark.parametrize("factor", [0, 2, 3, -1, 100])
def test_multiples_of_sums_and_tags_end_the_study(second, factor):
    sites, sums, payload = second
    words = words_of(sums)
    total = np.zeros_like(words)
    for _ in range(abs(factor)):
        step = fp.add if factor > 0 else fp.subtract
        total = step(total, words, sums.shape)
    tags = [factor * t % p for t, p in zip(m.tags_of(sums), PRIMES, strict=True)]
    scaled = replace(sums, words=total.tobytes(), tags=m.tag_bytes(tags))
    right = ask_of(sites, 2, payload=payload, sums=sums)
    over_after(sites, pretended(sites, scaled), right)


def test_a_tag_that_is_not_reduced_ends_the_study(second):
    sites, sums, payload = second
    tags = [t + p for t, p in zip(m.tags_of(sums), PRIMES, strict=True)]
    right = ask_of(sites, 2, payload=payload, sums=sums)
    over_after(sites, pretended(sites, replace(sums, tags=m.tag_bytes(tags))), right)


def test_sums_of_another_kind_or_none_end_the_study(second):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    shape = replace(sums.shape, fraction=sums.shape.fraction + 1)
    over_after(sites, ask_of(sites, 2, payload=payload), right)
    for other in (replace(sums, public=b"other"), replace(sums, shape=shape)):
        over_after(sites, pretended(sites, other), right)


def test_sums_at_the_first_exchange_end_the_study(second):
    _, sums, _ = second
    before = met()
    over_after(before, ask_of(before, sums=sums), ask_of(before))


def test_sums_of_an_earlier_exchange_end_the_study():
    sites = Sites()
    play(master_of(sites), exchanges=2)
    asks = [payload for name, payload, _ in sites.log if name == "a" and b"Ask" in payload[:8]]
    old = m.read_request(asks[1]).sums
    third = ask_of(sites, 3, payload=b"whatever", sums=old)
    over_after(sites, third, asks[1])


def test_a_request_that_does_not_follow_ends_the_study(second):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    over_after(sites, ask_of(sites, 2, payload=first(), sums=sums), right)
    over_after(sites, encode(m.Ask(2, 1, sites.names, 7, payload, sums)), right)
    before = met()
    over_after(before, ask_of(before, payload=b"elsewhere"), ask_of(before))


def test_sites_that_saw_different_requests_do_not_add_up():
    """Masks are bound to the request: what a Master learns from two is noise."""

    sites = met()
    for member in sites.members.values():
        member._steps.check = lambda label, payload: None
    asked = {name: ask_of(sites, payload=b"x" if name == "a" else b"y") for name in sites.names}
    exchange = sites.exchange
    sites.exchange = lambda payloads: exchange(
        {n: asked[n] if b"Ask" in p[:8] else p for n, p in payloads.items()}
    )
    master = master_of(sites)
    with pytest.raises(ProtocolError, match="not those of 3 sites"):
        master.exchange(0, b"y")


# --- a store that was put back --------------------------------------------------------------------


def test_a_store_put_back_to_any_earlier_state_is_refused():
    sites, states = Sites(), []
    store = sites.stores["a"]
    put = store.put

    def kept(name, data):
        put(name, data)
        states.append(dict(store.data))

    store.put = kept
    play(master_of(sites))
    last = sites.log[-1][1]
    for number, state in enumerate([{}, *states[:-1]]):
        sites.stores["a"].data = dict(state)
        member = clone(sites, "a")
        refused(member, last, "older than its witness says")
        refused(member, m.Begin(), "older than its witness says")
        assert number < len(states)
    sites.stores["a"].data = states[-1]
    clone(sites, "a").handle(last)


def test_the_reason_of_an_end_is_kept():
    sites = met()
    refused(sites.members["a"], ask_of(sites, payload=b"elsewhere"), "does not follow from the sums")
    sites.revive("a")
    refused(sites.members["a"], ask_of(sites), "over at site 'a': this request does not follow")


def test_the_end_of_a_study_cannot_be_put_back():
    sites = met()
    state = dict(sites.stores["a"].data)
    refused(sites.members["a"], ask_of(sites, payload=b"elsewhere"), "over at site 'a'")
    sites.stores["a"].data = state
    refused(clone(sites, "a"), ask_of(sites), "older than its witness says")


def test_a_reply_leaves_only_after_the_witness_was_told():
    sites = met()

    def fails(number):
        raise KilledError

    audit = sites.audits["a"]
    audit.note, note = fails, audit.note
    for _ in range(2):
        with pytest.raises(KilledError):
            sites.handle("a", ask_of(sites))
    audit.note = note
    sites.handle("a", ask_of(sites))
    assert audit.noted() == 1
    sites.handle("a", encode(m.Open(1, 1)))
    assert audit.noted() == 2


def test_a_damaged_record_is_told():
    sites = met()
    sites.handle("a", ask_of(sites))
    sites.stores["a"].data["asked-1-1"] = b"\xc1"
    refused(clone(sites, "a"), ask_of(sites), "damaged")


def test_a_site_that_could_not_compute_is_asked_again():
    """Sums that were taken are not taken twice, and no others are accepted in their place."""
    sites = met()
    sums, payload = summed(sites)
    steps = sites.members["a"]._steps
    steps.addends, right = broken, steps.addends
    ask = ask_of(sites, 2, payload=payload, sums=sums)
    with pytest.raises(OSError, match="disk"):
        sites.handle("a", ask)
    steps.addends = right
    sites.handle("a", ask)
    assert len(steps.taken) == 1


def test_other_sums_are_refused_after_the_right_ones():
    sites = met()
    sums, payload = summed(sites)
    steps = sites.members["a"]._steps
    steps.addends = broken
    with pytest.raises(OSError, match="disk"):
        sites.handle("a", ask_of(sites, 2, payload=payload, sums=sums))
    refused(sites.members["a"], ask_of(sites, 2, payload=payload, sums=None), "other sums")


def test_a_procedure_that_fails_is_not_gone_on_with_until_the_process_is_started_again():
    """Half a step was taken: only a replay from the beginning knows where the procedure is."""
    sites = met()
    sums, payload = summed(sites)
    ask = ask_of(sites, 2, payload=payload, sums=sums)
    sites.members["a"]._steps.take = lambda *step: 1 / 0
    with pytest.raises(ZeroDivisionError):
        sites.handle("a", ask)
    refused(sites.members["a"], ask, "restart its process")
    sites.revive("a")
    sites.handle("a", ask)


def test_a_replay_that_comes_out_differently_ends_the_study():
    sites = Sites()
    play(master_of(sites), exchanges=2)

    class Other(Replay):
        def take(self, label, payload, public, totals):
            raise DataError("the table has changed")

    for _ in range(2):
        member = clone(sites, "a")
        member._steps = Other("a")
        refused(member, m.Begin(), "over at site .*: the table has changed$")


def test_a_site_that_could_not_read_all_that_it_keeps_does_not_go_on_from_half_of_it():
    sites = Sites()
    play(master_of(sites), exchanges=3)
    member = clone(sites, "a")
    member._journal.opening = lambda exchange: broken(0, b"")
    with pytest.raises(OSError, match="disk"):
        member.handle(encode(m.Begin()))
    refused(member, m.Begin(), "restart its process")
