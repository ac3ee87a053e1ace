"""The Master together with one site of three: it learns the sum over the other two, and no more of them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")

from tests.protected.parties import (
    FRACTION,
    ask_of,
    clone,
    first,
    following,
    master_of,
    met,
    numbers,
    play,
    refused,
    summed,
)
from tests.protected.test_masked_leaks import leaks

from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.linear_tags import PRIMES, tags
from fedshed.protected import keys
from fedshed.protected import messages as m
from fedshed.protocol.codec import encode

HONEST, COLLUDER = ("a", "b"), "c"
OTHER = {"a": "b", "b": "a", "c": "c"}


def swapped(name, label, payload):
    """A world in which the two honest sites hold each other's rows."""
    return numbers(OTHER[name], label, payload)


class View:
    """All that the Master and the colluder can compute of the first exchange, where all have opened."""

    def __init__(self, sites):
        self.group = sites.members[COLLUDER]._group  # its keys: with each site, and that of the group
        request = keys.request_digest(0, first())
        start = keys.first_transcript(self.group.roster)
        self.context = masks.context(self.group.roster, 1, 1, sites.names, start, request)
        bodies = {name: m.read_reply(sites.handle(name, ask_of(sites))).body for name in sites.names}
        self.shape = bodies["a"].shape
        seeds = {name: m.read_reply(sites.handle(name, encode(m.Open(1, 1)))).seed for name in sites.names}
        self.left = {name: self._unmasked(name, bodies[name], seeds[name]) for name in HONEST}

    def _unmasked(self, name, body, seed):
        """What is left of a site's words and tags without its own mask and the one shared with the colluder.

        The colluder's name comes last, so the others have added that mask.
        """
        known = [masks.own_key(seed, self.context), masks.mask_key(self.group.pairs[name], self.context)]
        taken, taken_tags = masks.masks(known, self.shape)
        words = fp.subtract(np.frombuffer(body.words, dtype=fp.WORD), taken, self.shape)
        return words, tuple((t - u) % p for t, u, p in zip(m.tags_of(body), taken_tags, PRIMES, strict=True))

    def tags(self, words):
        """Tags, which the colluder can compute of any numbers."""
        return tags(words, self.shape, masks.tag_coefficients(self.group.key, self.context, self.shape))


def words_of(name):
    return fp.encode(numbers(name, 0, first()), FRACTION, 3)[1]


def test_a_colluder_learns_the_sum_over_the_others():
    view = View(met())
    together = fp.add(view.left["a"][0], view.left["b"][0], view.shape)
    assert (together == fp.add(words_of("a"), words_of("b"), view.shape)).all()


def test_a_colluder_does_not_learn_the_numbers_of_each_of_the_others():
    view = View(met())
    for name in HONEST:
        words, its_tags = view.left[name]
        assert not leaks(numbers(name, 0, first()), words.tobytes())
        # the mask that the two share is left: of every word, and of the tags, of which it knows the key
        assert (words != words_of(name)).all()
        assert all(t != own for t, own in zip(its_tags, view.tags(words_of(name)), strict=True))


@pytest.mark.parametrize("of", [numbers, swapped])
def test_all_that_a_colluder_sees_is_explained_by_the_others_with_their_rows_swapped(of):
    """Two masks, one for each world, explain the same words and tags; only the two know which it was."""
    view, found = View(met(of=of)), []
    for world in (lambda name: name, OTHER.get):
        mine, yours = words_of(world("a")), words_of(world("b"))
        mask = fp.subtract(view.left["a"][0], mine, view.shape)
        assert (fp.subtract(yours, mask, view.shape) == view.left["b"][0]).all()
        shift = [(t - u) % p for t, u, p in zip(view.left["a"][1], view.tags(mine), PRIMES, strict=True)]
        rest = [(u - s) % p for u, s, p in zip(view.tags(yours), shift, PRIMES, strict=True)]
        assert tuple(rest) == view.left["b"][1]
        found.append(mask)
    assert (found[0] != found[1]).any()


def test_a_study_is_the_same_with_the_rows_of_two_sites_swapped():
    one, other = (play(master_of(met(of=of))) for of in (numbers, swapped))
    for (_, asked, totals), (_, again, others) in zip(one, other, strict=True):
        assert asked == again
        assert totals.wide.tobytes() == others.wide.tobytes()
        assert totals.slim.tobytes() == others.slim.tobytes()


def forged(sites, sums, by=2.0**-20):
    """Other sums with right tags, which a colluder makes with the key of the group."""
    group = sites.members[COLLUDER]._group
    request = keys.request_digest(0, first())
    start = keys.first_transcript(group.roster)
    context = masks.context(group.roster, 1, 1, sites.names, start, request)
    words = np.frombuffer(sums.words, dtype=fp.WORD).copy()
    low, _, _, _ = fp.parts_of(words, sums.shape)
    low[1] += np.uint64(round(by * 2**64))
    new = tags(words, sums.shape, masks.tag_coefficients(group.key, context, sums.shape))
    return m.Body(sums.public, sums.shape, words.tobytes(), m.tag_bytes(new))


def next_after(sums):
    return following(first(), fp.decode(np.frombuffer(sums.words, dtype=fp.WORD), sums.shape))


def test_a_lie_steers_the_study_and_only_as_it_follows_from_the_sums():
    sites = met()
    sums, honest = summed(sites)
    lied = forged(sites, sums)
    steered = next_after(lied)
    assert steered != honest
    for asked in (honest, first(), b"anywhere"):
        refused(clone(sites, "a"), ask_of(sites, exchange=2, payload=asked, sums=lied), "does not follow")
    refused(clone(sites, "a"), ask_of(sites, exchange=2, payload=steered, sums=sums), "does not follow")
    # a lie that it could as well have told before is believed: false numbers are not found out
    for name in HONEST:
        asked = ask_of(sites, exchange=2, payload=steered, sums=lied)
        assert isinstance(m.read_reply(clone(sites, name).handle(asked)), m.Masked)


def test_two_sites_that_are_told_different_sums_mask_what_they_answer_differently():
    """Else two points would be answered in one exchange, and a site's numbers told by their difference."""
    sites = met()
    sums, _ = summed(sites)
    lies = {"a": forged(sites, sums), "b": forged(sites, sums, by=2.0**-19)}
    group, left = sites.members[COLLUDER]._group, []
    before = keys.first_transcript(group.roster)
    at = masks.context(group.roster, 1, 1, sites.names, before, keys.request_digest(0, first()))
    for name, lied in lies.items():
        payload, member = next_after(lied), clone(sites, name)
        body = m.read_reply(member.handle(ask_of(sites, exchange=2, payload=payload, sums=lied))).body
        seed = m.read_reply(member.handle(encode(m.Open(2, 1)))).seed
        transcript = keys.next_transcript(before, at, lied)
        request = keys.request_digest(1, payload)
        context = masks.context(group.roster, 2, 1, sites.names, transcript, request)
        known = [masks.own_key(seed, context), masks.mask_key(group.pairs[name], context)]
        taken, _ = masks.masks(known, body.shape)
        left.append(fp.subtract(np.frombuffer(body.words, dtype=fp.WORD), taken, body.shape))
        shape = body.shape
    total = fp.add(*left, shape)
    parts = [numbers(name, 1, next_after(lied)) for name, lied in lies.items()]
    whole = fp.add(*(fp.encode(part, FRACTION, 3)[1] for part in parts), shape)
    assert (total != whole).all()
    assert not any(leaks(part, words.tobytes()) for part in parts for words in (*left, total))
