"""What a site refuses: other keys and rosters, other sets, attempts and exchanges."""

from __future__ import annotations

from itertools import permutations

import pytest

pytest.importorskip("cryptography")

from msgspec.structs import replace
from tests.protected.parties import (
    RUN,
    STUDY,
    Sites,
    ask_of,
    clone,
    hellos_of,
    identity,
    met,
    refused,
    roster_of,
    summed,
)

from fedshed._utils.errors import ProtocolError
from fedshed.privacy import masks
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode


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


def test_other_shares_than_those_accepted_are_refused():
    sites = met()
    refused(sites.members["a"], met().stores["a"].data["agreed"], "other shares")
    sites.handle("a", sites.stores["a"].data["agreed"])


def test_nothing_is_asked_before_the_sites_have_met():
    sites = Sites()
    refused(sites.members["a"], ask_of(sites), "not agreed")
    refused(sites.members["a"], m.Open(1, 1), "not agreed")
    refused(sites.members["a"], m.Agreed(()), "the roster must come first")


def test_shares_of_another_run_are_refused():
    sites, theirs = Sites(), met().stores["a"].data["agreed"]
    sites.handle("a", encode(m.Roster(tuple(hellos_of(sites)))))
    refused(sites.members["a"], theirs, "has not signed the roster")


# --- sets, attempts, exchanges --------------------------------------------------------------------


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
    refused(sites.members["a"], ask_of(sites, attempt=2, names="abcde"), "must follow each other")
    for attempt, names in enumerate(["abcdef", "abcde", "abcd"], start=1):
        sites.handle("a", ask_of(sites, attempt=attempt, names=names))
    refused(sites.members["a"], ask_of(sites, attempt=4, names="abc"), "not a message")


def test_no_exchange_is_skipped():
    sites = met()
    refused(sites.members["a"], ask_of(sites, 2), "must follow each other")
    sites.handle("a", ask_of(sites))
    refused(sites.members["a"], ask_of(sites, 2), "must follow each other")  # not opened
    sites.handle("a", encode(m.Open(1, 1)))
    refused(sites.members["a"], ask_of(sites, 3), "must follow each other")


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
    refused(sites.members["a"], ask_of(sites, attempt=2, names="abc"), "must follow each other")


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
