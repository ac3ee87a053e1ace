"""What is signed, and what masks are bound to: against another spelling, and changed by each of its parts."""

from __future__ import annotations

from hashlib import sha256

import pytest

pytest.importorskip("cryptography")

from msgspec.structs import replace
from tests.protected.parties import RUN, STUDY, Sites, hellos_of, identity, met, refused, roster_of

from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.protected import messages as m
from fedshed.protected.keys import first_transcript, next_transcript, request_digest
from fedshed.protocol.codec import encode

A, B = bytes([1]) * 32, bytes([2]) * 32
SUMS = m.Body(b"public", fp.Shape(1, 2, 3, 4), b"words", b"tags" * 6)


def spelled(*parts):
    """SHA-256 of the parts behind the version, each with its length."""
    lengths = (len(part).to_bytes(8, "big") + part for part in (b"fedshed masked sums 1", *parts))
    return sha256(b"".join(lengths)).digest()


def test_requests_and_transcripts_agree_with_another_spelling():
    assert request_digest(-1, b"ask") == spelled(b"request", b"\xff" * 8, b"ask")
    assert first_transcript(A) == spelled(b"transcript", A)
    shape = bytes([0x94, 1, 2, 3, 4])  # MessagePack: an array of four small numbers
    after = spelled(b"exchange", A, B, b"public", shape, b"words", b"tags" * 6)
    assert next_transcript(A, B, SUMS) == after


def test_requests_and_transcripts_do_not_change():
    """Sites of two versions must derive the same; a change here needs another VERSION."""
    found = [request_digest(3, b"ask"), first_transcript(A), next_transcript(A, B, SUMS)]
    assert [each.hex() for each in found] == FIXED


FIXED = [
    "b75fbe57dcdcef9e43acd159892d7f7a2b09598bf53bb3d6a03b23f2834aafcb",
    "cffcec678c3ba308e3eac90acabeed6a19765227f5c3c5f01f323d3c4f32e5f7",
    "c626008343bfc21b5573e442debbacb4741bd2507a258ebc792e936fddb36938",
]


def test_every_part_of_an_exchange_changes_the_transcript():
    shape = replace(SUMS.shape, fraction=5)
    changed = {"public": b"x", "shape": shape, "words": b"x", "tags": b"x"}
    others = [replace(SUMS, **{name: value}) for name, value in changed.items()]
    found = {next_transcript(A, B, each) for each in (SUMS, *others)}
    found |= {next_transcript(B, B, SUMS), next_transcript(A, A, SUMS)}
    assert len(found) == 7


def test_the_label_and_the_payload_of_a_request_are_in_its_digest():
    assert len({request_digest(0, b"a"), request_digest(1, b"a"), request_digest(0, b"b")}) == 3


def test_what_a_site_signs_agrees_with_another_spelling():
    sites = met()
    a = hellos_of(sites)[0]
    said = spelled(b"hello", STUDY, RUN, b"a", a.key)
    assert masks.verified(roster_of("a")["a"], a.signature, said)
    agree = m.read_reply(sites.handle("a", sites.stores["a"].data["roster"]))
    keys = [
        part
        for hello in hellos_of(sites)
        for part in (hello.name.encode(), roster_of("abc")[hello.name], hello.key)
    ]
    assert agree.roster == spelled(b"roster", STUDY, RUN, *keys)
    boxes = [part for name in sorted(agree.boxes) for part in (name.encode(), agree.boxes[name])]
    assert masks.verified(roster_of("a")["a"], agree.signature, spelled(b"agree", agree.roster, b"a", *boxes))


@pytest.mark.parametrize(
    "boxes", [{}, {"a": bytes(masks.BOX)}, {"a": bytes(masks.BOX), "x": bytes(masks.BOX)}]
)
def test_a_site_that_leaves_out_a_share_is_refused_though_it_signs(boxes):
    sites = Sites()
    roster = encode(m.Roster(tuple(hellos_of(sites))))
    a, b, c = (m.read_reply(sites.handle(name, roster)) for name in "abc")
    each = [part for name in sorted(boxes) for part in (name.encode(), boxes[name])]
    signature = masks.signed(identity("b"), masks.digest("agree", b.roster, b"b", *each))
    short = replace(b, boxes=boxes, signature=signature)
    refused(sites.members["a"], m.Agreed((a, short, c)), "'b' sent shares to other sites")
