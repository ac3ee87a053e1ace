"""No number of a site is in any byte that leaves it, and what leaves looks random."""

from __future__ import annotations

import struct
import zlib
from functools import reduce
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from tests.protected.parties import FRACTION, RUN, Sites, ask_of, master_of, met, numbers, play

from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.addends import Addends
from fedshed.protected import journal, keys, member
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode


def patterns(part):
    """A site's numbers as anyone might write them down: floats and fixed-point integers, both ways round."""
    floats = [struct.pack(order + "d", x) for x in (*part.wide, *part.slim) for order in "<>"]
    texts = [repr(float(x))[:8].encode() for x in (*part.wide, *part.slim)]
    wide = [round(x * 2**64) % 2**128 for x in map(float, part.wide)]
    slim = [round(x * 2**FRACTION) % 2**64 for x in map(float, part.slim)]
    whole = [n.to_bytes(16, order)[i : i + 8] for n in wide for order in ("little", "big") for i in (0, 8)]
    whole += [n.to_bytes(8, order) for n in slim for order in ("little", "big")]
    return {p for p in (*floats, *texts, *whole) if len(set(p)) > 2}


def leaks(part, data):
    return [pattern for pattern in patterns(part) if pattern in data]


def test_the_search_finds_what_is_not_masked():
    part = numbers("a", 0, b"start")
    _, words = fp.encode(part, FRACTION, 3)
    assert len(leaks(part, words.tobytes())) >= len(part.wide) + len(part.slim)
    assert leaks(part, part.wide.tobytes())
    assert leaks(part, repr(part.wide.tolist()).encode())


def test_no_number_of_a_site_leaves_it():
    sites = Sites("abcd")
    found = play(master_of(sites))
    assert any(isinstance(m.read_reply(reply), m.Masked) for _, _, reply in sites.log)
    for name, _, reply in sites.log:
        for label, payload, _ in found:
            assert leaks(numbers(name, label, payload), reply) == []


def test_no_number_of_a_site_is_left_while_one_site_has_not_opened():
    """With the own masks of all but one site taken away, and any of them added, pairwise masks remain."""
    sites = met("abcd")
    asked = {name: m.read_reply(sites.handle(name, ask_of(sites))) for name in sites.names}
    shape, words = asked["a"].body.shape, {}
    roster = m.read_reply(sites.handle("a", sites.stores["a"].data["agreed"])).roster
    transcript, request = keys.first_transcript(roster), keys.request_digest(0, b"start")
    context = masks.context(roster, 1, 1, sites.names, transcript, request)
    for name, reply in asked.items():
        words[name] = np.frombuffer(reply.body.words, dtype=np.uint64)
        if name != "d":
            seed = m.read_reply(sites.handle(name, encode(m.Open(1, 1)))).seed
            own, _ = masks.masks([masks.own_key(seed, context)], shape)
            words[name] = fp.subtract(words[name], own, shape)
    for count in (1, 2, 3):
        for among in combinations(sites.names, count):
            total = np.zeros(shape.words, dtype=np.uint64)
            for name in among:
                total = fp.add(total, words[name], shape)
            assert not [n for n in sites.names if leaks(numbers(n, 0, b"start"), total.tobytes())]
    whole = reduce(lambda x, y: fp.add(x, y, shape), words.values())
    seed = m.read_reply(sites.handle("d", encode(m.Open(1, 1)))).seed
    own, _ = masks.masks([masks.own_key(seed, context)], shape)
    fp.check_sums(fp.subtract(whole, own, shape), shape, 4)  # with it they are the sums


class Drawn:
    """Random bytes that are the same in every run of the tests."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)

    def token_bytes(self, count):
        return self._rng.bytes(count)

    def randbelow(self, limit):
        return int(self._rng.integers(limit))


def zeros(name, label, payload):
    nothing = np.zeros(400)
    slots = np.zeros(400, dtype=np.intp)
    return Addends(nothing, slots, nothing, slots, np.zeros(1, dtype=bool))


@pytest.fixture
def drawn(monkeypatch):
    for module in (keys, member, fp):
        monkeypatch.setattr(module, "secrets", Drawn(11))
    assert journal.Secrets is keys.Secrets


@pytest.mark.usefixtures("drawn")
def test_masked_zeros_look_random():
    """P-values of a chi-square test of bytes are uniform over 40 runs, and nothing can be compressed."""
    found = []
    for run in range(40):
        sites = met(of=zeros, run=RUN[:-1] + bytes([run]))
        data = m.read_reply(sites.handle("b", ask_of(sites))).body.words
        found.append(stats.chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue)
        assert len(zlib.compress(data, 9)) >= len(data)
    assert stats.kstest(found, "uniform").pvalue > 0.01


@pytest.mark.usefixtures("drawn")
def test_two_runs_of_a_study_share_no_masked_word():
    seen = []
    for run in range(4):
        sites = met(of=zeros, run=RUN[:-1] + bytes([run]))
        seen += np.frombuffer(m.read_reply(sites.handle("b", ask_of(sites))).body.words, np.uint64).tolist()
    assert len(set(seen)) == len(seen)
