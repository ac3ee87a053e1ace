"""How the sites of a study come to hold keys that the Master does not: Hello, Agree, and the group key."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.privacy import masks
from fedshed.privacy.fixed_point import FEWEST_SITES, MOST_SITES
from fedshed.protected.messages import Agree, Body, Hello
from fedshed.protocol.codec import encode


class Secrets(Struct, frozen=True, array_like=True):
    """What a site draws for one run: its X25519 key, and its share of the group key."""

    private: bytes
    share: bytes

    @classmethod
    def drawn(cls) -> Secrets:
        """New ones."""
        return cls(secrets.token_bytes(masks.KEY), secrets.token_bytes(masks.KEY))


class Group(Struct, frozen=True):
    """What a site shares with the others: the roster, a key with each, and after Agreed the group key."""

    roster: bytes
    pairs: Mapping[str, bytes]
    key: bytes = b""


def check_number(sites: int, least: int) -> None:
    """ConfigError unless so many sites, of which at least `least` must be there, can add masked numbers."""
    if not FEWEST_SITES <= least <= sites <= MOST_SITES:
        raise ConfigError(
            f"protected mode needs {FEWEST_SITES} to {MOST_SITES} sites, and a minimum between "
            f"{FEWEST_SITES} and all of them; there are {sites}, and the minimum is {least}"
        )


class Site(Struct, frozen=True):
    """A site as its approval knows it: names and Ed25519 keys of all sites, the study and its run."""

    name: str
    identity: bytes
    pinned: Mapping[str, bytes]
    study: bytes
    run: bytes

    def check(self, least: int) -> None:
        """ConfigError for what cannot work, before anything is sent."""
        if self.pinned.get(self.name) != masks.identity_public(self.identity):
            raise ConfigError(f"site {self.name!r}: its own key is not the one that the roster names for it")
        if len(set(self.pinned.values())) < len(self.pinned):
            raise ConfigError("two sites of the roster have the same key; each needs a different key")
        check_number(len(self.pinned), least)
        if len(self.study) != masks.KEY:
            raise ConfigError(f"a study is named by {masks.KEY} bytes, not {len(self.study)}")

    def hello(self, mine: Secrets) -> Hello:
        """The signed X25519 key."""
        key = masks.exchange_public(mine.private)
        signature = masks.signed(self.identity, self._hello_digest(self.name, key))
        return Hello(self.study, self.run, self.name, key, signature)

    def group(self, mine: Secrets, hellos: Sequence[Hello]) -> Group:
        """The roster and the key of each pair; ProtocolError unless all sites are exactly those approved."""
        if [hello.name for hello in hellos] != sorted(self.pinned):
            raise ProtocolError("the sites are not those that were approved")
        for hello in hellos:
            self._check_hello(hello)
        keys = {hello.name: hello.key for hello in hellos}
        if keys[self.name] != masks.exchange_public(mine.private):
            raise ProtocolError("the roster holds another key for this site than the one it sent")
        both = {name: (self.pinned[name], keys[name]) for name in keys}
        roster = masks.roster_digest(self.study, self.run, both)
        others = sorted(keys.keys() - {self.name})
        pairs = {n: masks.pair_key(mine.private, keys[n], roster, (self.name, n)) for n in others}
        return Group(roster, pairs)

    def agree(self, mine: Secrets, group: Group) -> Agree:
        """The signature of the roster, and the share for each other site."""
        roster, pairs = group.roster, group.pairs
        boxes = {n: masks.boxed(pairs[n], roster, self.name, n, mine.share) for n in sorted(pairs)}
        signature = masks.signed(self.identity, _agree_digest(self.name, roster, boxes))
        return Agree(self.name, roster, boxes, signature)

    def joined(self, mine: Secrets, group: Group, agrees: Sequence[Agree]) -> Group:
        """The group with its key; ProtocolError unless all sites signed the roster that this one sees."""
        if [agree.name for agree in agrees] != sorted(self.pinned):
            raise ProtocolError("not all sites agreed, or others did")
        for agree in agrees:
            self._check_agree(group, agree)
        shares = {self.name: mine.share}
        for agree in agrees:
            if agree.name != self.name:
                pair, box = group.pairs[agree.name], agree.boxes[self.name]
                shares[agree.name] = masks.unboxed(pair, group.roster, agree.name, self.name, box)
        return Group(group.roster, group.pairs, masks.group_key(shares, group.roster))

    def _hello_digest(self, name: str, key: bytes) -> bytes:
        return masks.digest("hello", self.study, self.run, name.encode(), key)

    def _check_hello(self, hello: Hello) -> None:
        if (hello.study, hello.run) != (self.study, self.run):
            raise ProtocolError(f"the key of site {hello.name!r} is of another study or run")
        digest = self._hello_digest(hello.name, hello.key)
        if not masks.verified(self.pinned[hello.name], hello.signature, digest):
            raise ProtocolError(f"the key of site {hello.name!r} is not signed with its approved key")

    def _check_agree(self, group: Group, agree: Agree) -> None:
        if agree.boxes.keys() != self.pinned.keys() - {agree.name}:
            raise ProtocolError(f"site {agree.name!r} sent shares to other sites than those approved")
        digest = _agree_digest(agree.name, group.roster, agree.boxes)
        same = agree.roster == group.roster
        if not (same and masks.verified(self.pinned[agree.name], agree.signature, digest)):
            raise ProtocolError(f"site {agree.name!r} has not signed the roster that this site sees")


def _agree_digest(name: str, roster: bytes, boxes: Mapping[str, bytes]) -> bytes:
    each = [part for n in sorted(boxes) for part in (n.encode(), boxes[n])]
    return masks.digest("agree", roster, name.encode(), *each)


# --- what the masks of an attempt are bound to ---------------------------------------------------


def request_digest(label: int, payload: bytes) -> bytes:
    """What was asked."""
    return masks.digest("request", masks.number(label), payload)


def first_transcript(roster: bytes) -> bytes:
    """The transcript of a study before its first exchange."""
    return masks.digest("transcript", roster)


def next_transcript(before: bytes, context: bytes, sums: Body) -> bytes:
    """The transcript after an exchange: what was asked of whom (its context), and what came out."""
    return masks.digest("exchange", before, context, sums.public, encode(sums.shape), sums.words, sums.tags)
