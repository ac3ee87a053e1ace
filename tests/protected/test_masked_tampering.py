"""Every change of every field of every message is refused, or noticed before it is believed."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from tests.protected.parties import (
    Sites,
    ask_of,
    clone,
    master_of,
    met,
    play,
    refused,
    summed,
)

from fedshed._utils.errors import ProtocolError
from fedshed.protected import messages as m


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


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([BEGIN, ROSTER, AGREED, ASK, OPEN]), st.integers(0, 2000), st.binary(max_size=6))
def test_bytes_that_are_no_message_raise_no_foreign_error_and_change_nothing(message, at, inserted):
    member = clone(HONEST, "b")
    at = at % len(message)
    with suppress(ProtocolError):
        member.handle(message[:at] + inserted + message[at + len(inserted) // 2 :])
    reply = next(reply for name, payload, reply in HONEST.log if (name, payload) == ("b", NEXT))
    assert member.handle(NEXT) == reply
