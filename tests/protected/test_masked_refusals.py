"""What a site refuses: every change of every message, other sets, sums and keys, a store put back."""

from __future__ import annotations

from itertools import permutations

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

from msgspec.structs import replace
from tests.protected.parties import (
    RUN,
    STUDY,
    KilledError,
    Replay,
    Sites,
    ask_of,
    clone,
    first,
    identity,
    master_of,
    met,
    play,
    roster_of,
    summed,
)  # fmt: skip

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.linear_tags import PRIMES
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode


def refused(member, data, match=None):
    with pytest.raises(ProtocolError, match=match):
        member.handle(data if isinstance(data, bytes) else encode(data))


# --- every field of every message ----------------------------------------------------------------


def changes(value):
    """A plain value with one of its leaves changed, in every way that we think of."""
    if isinstance(value, bytes):
        yield value + b"\x00"
        if value:
            yield bytes([value[0] ^ 1]) + value[1:]
            yield value[:-1] + bytes([value[-1] ^ 128])
            yield value[:-1]
    elif isinstance(value, str):
        yield value + "x"
        yield ""
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif value is None:
        yield b"something"
    elif isinstance(value, dict):
        for key, inside in value.items():
            others = {k: v for k, v in value.items() if k != key}
            yield others
            yield others | {key + "x": inside}
            yield from (others | {key: changed} for changed in changes(inside))
    else:
        yield value[:-1]
        yield [*value, value[-1]]
        yield value[::-1]
        for i, inside in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in changes(inside))


def tampered(data):
    """A message with one change, in every place."""
    found = {msgspec.msgpack.encode(changed) for changed in changes(msgspec.msgpack.decode(data))}
    return sorted(found - {data})


HONEST = Sites()
play(master_of(HONEST))
SENT = {name: [] for name in HONEST.names}
for _name, _payload, _ in HONEST.log:
    SENT[_name].append(_payload)
BEGIN, ROSTER, AGREED, ASK, OPEN, NEXT = SENT["b"][:6]


def stopped_before(payload):
    """Site b as it was before it got this message of the honest run, with its keys."""
    sites = Sites()
    for name, store in HONEST.stores.items():
        sites.stores[name].data["keys"] = store.data["keys"]
        sites.revive(name)
    for data in SENT["b"][: SENT["b"].index(payload)]:
        sites.members["b"].handle(data)
    return sites


@pytest.mark.parametrize("number", range(6))
def test_any_change_of_any_message_to_a_site_is_refused(number):
    """Sums differ from run to run where a mask is drawn; the second request is tampered with below."""
    message = SENT["b"][number]
    if number == 5:
        sites = met()
        sums, payload = summed(sites)
        message = ask_of(sites, 2, payload=payload, sums=sums)
    else:
        sites = stopped_before(message)
    for changed in tampered(message):
        refused(clone(sites, "b"), changed)
    clone(sites, "b").handle(message)


REPLIES = [m.Hello, m.Agree, m.Ready, m.Masked, m.Opened]


@pytest.mark.parametrize("kind", REPLIES)
def test_any_change_of_any_reply_is_noticed_before_it_is_believed(kind):
    """The Master refuses it or waits; or every other site finds the sums wrong at the next request."""
    honest = next(reply for _, _, reply in HONEST.log if isinstance(m.read_reply(reply), kind))
    count = len(tampered(honest))
    for number in range(0, count, 1 + count // 40):
        sites = Sites()
        steps = [member._steps for member in sites.members.values()]
        sites.exchange = tampering(sites, kind, number)
        with pytest.raises(ProtocolError):
            play(master_of(sites, patience=1))
        assert not any(step.taken for step in steps)


def tampering(sites, kind, number):
    """A line that makes one change in the first reply of this kind from site b."""
    exchange, done = sites.exchange, []

    def changed(payloads):
        replies = []
        for name, reply in exchange(payloads):
            if name == "b" and isinstance(m.read_reply(reply), kind) and not done:
                others = tampered(reply)
                done.append(name)
                reply = others[number % len(others)]
            replies.append((name, reply))
        return replies

    return changed


# --- keys and rosters ----------------------------------------------------------------------------


def hellos_of(sites):
    return [m.read_reply(sites.handle(name, encode(m.Begin()))) for name in sites.names]


def test_a_roster_with_a_foreign_site_is_refused():
    sites = Sites()
    stranger = hellos_of(Sites("wxyz"))[3]
    refused(sites.members["a"], m.Roster((*hellos_of(sites), stranger)), "not those that were approved")
    refused(sites.members["a"], m.Roster((*hellos_of(sites)[:2], stranger)), "not those that were approved")


def test_a_roster_without_a_site_is_refused():
    sites = Sites("abcd")
    refused(sites.members["a"], m.Roster(tuple(hellos_of(sites)[:3])), "not those that were approved")


def test_a_swapped_key_is_refused():
    sites = Sites()
    a, b, c = hellos_of(sites)
    refused(sites.members["a"], m.Roster((a, replace(b, key=c.key), c)), "'b' is not signed")
    refused(
        sites.members["a"],
        m.Roster((a, replace(b, key=c.key, signature=c.signature), c)),
        "'b' is not signed",
    )


@pytest.mark.parametrize(("study", "run"), [(bytes(32), RUN), (STUDY, b"run-0002")])
def test_a_key_of_another_study_or_run_is_refused(study, run):
    sites = Sites()
    a, _, c = hellos_of(sites)
    theirs = hellos_of(Sites(study=study, run=run))[1]
    refused(sites.members["a"], m.Roster((a, theirs, c)), "'b' is of another study or run")
    pretended = replace(theirs, study=STUDY, run=RUN)
    refused(sites.members["a"], m.Roster((a, pretended, c)), "'b' is not signed")


def test_an_older_key_of_the_site_itself_is_refused():
    sites = Sites()
    old = hellos_of(Sites())
    refused(sites.members["a"], m.Roster(tuple(old)), "another key for this site")


def test_a_key_that_the_approved_key_did_not_sign_is_refused():
    sites = Sites()
    evil = Sites(pinned=roster_of("abc"))
    a, b, c = hellos_of(sites)
    key = hellos_of(evil)[1].key
    digest = masks.digest("hello", STUDY, RUN, b"b", key)
    forged = replace(b, key=key, signature=masks.signed(identity("mallory"), digest))
    refused(sites.members["a"], m.Roster((a, forged, c)), "'b' is not signed")


def test_different_rosters_at_different_sites_are_refused():
    sites, again = Sites(), Sites()
    ours = hellos_of(sites)
    theirs = [*ours[:2], hellos_of(again)[2]]  # site c, started anew without what it kept, has another key
    agrees = [
        sites.handle("a", encode(m.Roster(tuple(ours)))),
        sites.handle("b", encode(m.Roster(tuple(theirs)))),
        sites.handle("c", encode(m.Roster(tuple(ours)))),
    ]
    message = m.Agreed(tuple(m.read_reply(each) for each in agrees))
    refused(sites.members["a"], message, "'b' has not signed the roster")
    refused(sites.members["b"], message, "has not signed the roster")


def test_a_second_roster_is_refused():
    sites = met()
    refused(sites.members["a"], m.Roster(tuple(hellos_of(sites)[::-1])), "another roster")


def test_nothing_is_asked_before_the_sites_have_met():
    sites = Sites()
    refused(sites.members["a"], ask_of(sites), "not agreed")
    refused(sites.members["a"], m.Open(1, 1), "not agreed")
    refused(sites.members["a"], AGREED, "the roster comes first")


def test_shares_of_another_run_are_refused():
    sites = Sites()
    sites.handle("a", encode(m.Roster(tuple(hellos_of(sites)))))
    refused(sites.members["a"], AGREED, "has not signed the roster")


# --- sets, attempts, exchanges -------------------------------------------------------------------


@pytest.mark.parametrize("names", ["abc", "abcde", "acdb", "aabcd", "abcc", "ab", "bcd", "abcx"])
def test_the_first_attempt_is_of_all_sites(names):
    sites = met("abcd")
    refused(sites.members["a"], ask_of(sites, names=tuple(names)))


@pytest.mark.parametrize("names", ["abcd", "abcde", "ab", "bcd", "acb", "abb", "abx"])
def test_a_further_attempt_is_of_fewer_sites_with_this_one(names):
    sites = met("abcd")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], ask_of(sites, attempt=2, names=tuple(names)))


def test_a_further_attempt_asks_the_same():
    sites = met("abcd")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], ask_of(sites, attempt=2, names="abc", payload=b"other"), "another request")
    sites.handle("a", ask_of(sites, attempt=2, names="abc"))


def test_two_sets_in_one_attempt_are_refused():
    sites = met("abcd")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], ask_of(sites, names="abc"), "another request for the same attempt")


def test_attempts_go_one_by_one_to_three():
    sites = met("abcdef")
    refused(sites.members["a"], ask_of(sites, attempt=2, names="abcde"), "one by one")
    for attempt, names in enumerate(["abcdef", "abcde", "abcd"], start=1):
        sites.handle("a", ask_of(sites, attempt=attempt, names=names))
    refused(sites.members["a"], ask_of(sites, attempt=4, names="abc"), "no message")


def test_no_exchange_is_skipped():
    sites = met()
    refused(sites.members["a"], ask_of(sites, 2), "one by one")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], ask_of(sites, 2), "one by one")  # not opened
    sites.handle("a", encode(m.Open(1, 1)))
    refused(sites.members["a"], ask_of(sites, 3), "one by one")


def test_the_set_never_shrinks_after_the_first_exchange():
    sites = met("abcd")
    sums, payload = summed(sites)
    refused(sites.members["a"], ask_of(sites, 2, names="abc", payload=payload, sums=sums), "must take part")
    sites.handle("a", ask_of(sites, 2, payload=payload, sums=sums))
    again = ask_of(sites, 2, 2, names="abc", payload=payload, sums=sums)
    refused(sites.members["a"], again, "first exchange only")


def test_an_opened_exchange_has_no_further_attempt():
    sites = met("abcd")
    sites.handle("a", ask_of(sites))
    sites.handle("a", encode(m.Open(1, 1)))
    refused(sites.members["a"], ask_of(sites, attempt=2, names="abc"), "one by one")


def test_an_attempt_is_not_opened_after_a_later_one_began():
    sites = met("abcd")
    sites.handle("a", ask_of(sites))
    sites.handle("a", ask_of(sites, attempt=2, names="abc"))
    refused(sites.members["a"], m.Open(1, 1), "later attempt")
    sites.handle("a", encode(m.Open(1, 2)))
    refused(sites.members["a"], m.Open(1, 1), "opened in another attempt")


def test_nothing_is_opened_that_was_not_sent():
    sites = met()
    refused(sites.members["a"], m.Open(1, 1), "nothing was sent")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], m.Open(1, 2), "nothing was sent")
    refused(sites.members["a"], m.Open(2, 1), "nothing was sent")


def test_no_order_of_requests_opens_two_sets_of_one_exchange():
    """Two opened sets would differ by one site's numbers."""
    base = met("abcd")
    requests = {
        "all": ask_of(base), "fewer": ask_of(base, attempt=2, names="abc"),
        "open all": encode(m.Open(1, 1)), "open fewer": encode(m.Open(1, 2)),
    }  # fmt: skip
    outcomes = set()
    for order in permutations(requests):
        member, opened = clone(base, "a"), set()
        for name in (*order, *order):
            try:
                reply = m.read_reply(member.handle(requests[name]))
            except ProtocolError:
                continue
            opened |= {reply.attempt} if isinstance(reply, m.Opened) else set()
        outcomes.add(frozenset(opened))
    assert outcomes == {frozenset(), frozenset({1}), frozenset({2})}


def test_a_repeated_request_gets_the_same_bytes_in_another_process_too():
    sites = met()
    requests = [ask_of(sites), encode(m.Open(1, 1))]
    replies = [sites.handle("a", data) for data in requests]
    assert [sites.handle("a", data) for data in requests] == replies
    sites.revive("a")
    assert [sites.handle("a", data) for data in requests] == replies


# --- sums and points -----------------------------------------------------------------------------


def over_after(sites, ask, right):
    """A site that is asked this ends the study for good: it refuses the right request too, in any process."""
    member = clone(sites, "a")
    refused(member, ask, "over at this site")
    refused(member, right, "over at this site")
    store = member._journal._store
    sites.stores["a"].data, kept = store.data, sites.stores["a"].data
    refused(clone(sites, "a"), right, "over at this site")
    sites.stores["a"].data = kept


@pytest.fixture(scope="module")
def second():
    """Sites before the second exchange, the sums of the first, and the request that follows."""
    sites = met()
    sums, payload = summed(sites)
    return sites, sums, payload


def words_of(sums):
    return np.frombuffer(sums.words, dtype=np.uint64).copy()


def test_a_changed_bit_of_any_number_or_tag_ends_the_study(second):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    for i in range(sums.shape.words):
        words = words_of(sums)
        words[i] ^= np.uint64(1)
        over_after(sites, ask_of(sites, 2, payload=payload, sums=replace(sums, words=words.tobytes())), right)
    for i in range(3):
        tags = [(t + (i == j)) % p for j, (t, p) in enumerate(zip(m.tags_of(sums), PRIMES, strict=True))]
        other = replace(sums, tags=m.tag_bytes(tags))
        over_after(sites, ask_of(sites, 2, payload=payload, sums=other), right)


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
        over_after(sites, ask_of(sites, 2, payload=payload, sums=other), right)


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
    over_after(sites, ask_of(sites, 2, payload=payload, sums=scaled), right)


def test_a_tag_that_is_not_reduced_ends_the_study(second):
    sites, sums, payload = second
    tags = [t + p for t, p in zip(m.tags_of(sums), PRIMES, strict=True)]
    right = ask_of(sites, 2, payload=payload, sums=sums)
    over_after(sites, ask_of(sites, 2, payload=payload, sums=replace(sums, tags=m.tag_bytes(tags))), right)


def test_sums_of_another_kind_or_none_end_the_study(second):
    sites, sums, payload = second
    right = ask_of(sites, 2, payload=payload, sums=sums)
    shape = replace(sums.shape, fraction=sums.shape.fraction + 1)
    for other in (None, replace(sums, public=b"other"), replace(sums, shape=shape)):
        over_after(sites, ask_of(sites, 2, payload=payload, sums=other), right)


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


# --- a store that was put back -------------------------------------------------------------------


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
        refused(member, BEGIN, "older than its witness says")
        assert number < len(states)
    sites.stores["a"].data = states[-1]
    clone(sites, "a").handle(last)


def test_the_end_of_a_study_cannot_be_put_back():
    sites = met()
    state = dict(sites.stores["a"].data)
    refused(sites.members["a"], ask_of(sites, payload=b"elsewhere"), "over at this site")
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


def broken(label, payload):
    raise OSError("the disk is away")


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
    refused(sites.members["a"], ask, "start the site's process again")
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
        refused(member, BEGIN, "^the study is over at this site: the table has changed$")
