"""A site's end of masked sums: it answers what must come next, and opens one attempt of each exchange.

The site refuses whatever does not follow from what it has seen; a wrong sum or a wrong point ends the study
at this site for good.  Nothing is sent before it is on disk, and the same request gets the same bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NoReturn, Protocol

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import Error, ProtocolError
from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.addends import Addends, Totals
from fedshed.privacy.linear_tags import PRIMES, Coefficients, Tags, tags
from fedshed.protected import messages as m
from fedshed.protected.journal import Asked, Journal, Opening, Store, Witness
from fedshed.protected.keys import Group, Site, first_transcript, next_transcript, request_digest
from fedshed.protocol.codec import encode

__all__ = ["Member", "Steps", "Store", "Witness"]
FAILED = "the procedure failed at this site; restart its process"


class Steps(Protocol):
    """What a site makes of the procedure that it replays: the request that follows, and its own numbers."""

    def check(self, label: int, payload: bytes) -> None:
        """ProtocolError unless exactly this request follows from the sums so far."""
        ...

    def addends(self, label: int, payload: bytes) -> tuple[bytes, Addends, int]:
        """The public skeleton of the answer, its numbers, and the fraction bits of the slim ones."""
        ...

    def take(self, label: int, payload: bytes, public: bytes, totals: Totals) -> None:
        """The sums of an exchange whose tags were right."""
        ...


class Current(Struct):
    """The exchange that a site is in: what came before it, who takes part, and its attempts so far."""

    number: int
    names: tuple[str, ...]  # who takes part in its first attempt
    transcript: bytes  # of all exchanges before it
    sums: m.Body | None  # of the exchange before it
    asked: dict[int, tuple[m.Ask, Asked]]
    opened: int = 0  # the attempt that was opened; 0: none yet


class Member:
    """A site in masked sums.

    Parameters
    ----------
    name : str
        The site's name in the roster.
    identity : bytes
        Its Ed25519 private key, 32 raw bytes.
    roster : mapping of str to bytes
        The Ed25519 public key of every approved site, by its name, this one included.
    study, run : bytes
        The digest of the study, and the name of this run of it.
    least : int
        The fewest sites whose sum may be opened, at least 3.
    store : Store
        Where the site keeps its records of this run.
    steps : Steps
        The replayed procedure, from its beginning; exchanges in the store are replayed on it.
    witness : Witness, optional
        A second record, which finds a store that was put back to an earlier state.

    Raises
    ------
    ConfigError
        If there are fewer than 3 sites or more than 128, or if the own key is not that of the roster.
    """

    def __init__(
        self, name: str, identity: bytes, roster: Mapping[str, bytes], study: bytes, run: bytes, least: int,
        store: Store, steps: Steps, witness: Witness | None = None,
    ) -> None:  # fmt: skip
        self._site = Site(name, identity, dict(roster), study, run)
        self._site.check(least)
        self._least, self._steps, self._journal = least, steps, Journal(store, witness)
        self._group: Group | None = None
        self._now: Current | None = None  # before the group key is there
        self._over, self._recovered, self._lock = "", False, Lock()
        self._coefficients: tuple[bytes, Coefficients] | None = None  # of the last tags, by their context

    def handle(self, payload: bytes) -> bytes:
        """The reply to a request of the Master; ProtocolError where the site refuses."""
        with self._lock:
            self._recover()
            if self._over:
                raise ProtocolError(f"the study is over at site {self._site.name!r}: {self._over}")
            request = m.read_request(payload)
            if isinstance(request, m.Begin):
                return encode(self._site.hello(self._journal.secrets()))
            if isinstance(request, m.Roster):
                return self._agree(request, payload)
            if isinstance(request, m.Agreed):
                return self._join(request, payload)
            return self._masked(request, payload) if isinstance(request, m.Ask) else self._open(request)

    # --- set-up ---

    def _agree(self, request: m.Roster, payload: bytes) -> bytes:
        """Accept one roster, and sign it."""
        known = self._journal.message("roster")
        if known not in (None, payload):
            raise ProtocolError("another roster than the one that this site has signed")
        mine = self._journal.secrets()
        group = self._site.group(mine, request.hellos)
        if known is None:
            self._journal.keep_message("roster", payload)
        if self._group is None:
            self._group = group
        return encode(self._site.agree(mine, group))

    def _join(self, request: m.Agreed, payload: bytes) -> bytes:
        """Accept the shares of all sites, and hold the group key."""
        if self._group is None:
            raise ProtocolError("the sites have not agreed on a roster yet; the roster must come first")
        known = self._journal.message("agreed")
        if known not in (None, payload):
            raise ProtocolError("other shares of the group key than those that this site has accepted")
        if self._now is None:
            self._group = self._site.joined(self._journal.secrets(), self._group, request.agrees)
            if known is None:
                self._journal.keep_message("agreed", payload)
            names = tuple(sorted(self._site.pinned))
            self._now = Current(1, names, first_transcript(self._group.roster), None, {})
        return encode(m.Ready(self._group.roster))

    # --- an exchange ---

    def _masked(self, ask: m.Ask, payload: bytes) -> bytes:
        """The numbers under masks, where this request must come next; or again what was sent for it."""
        now = self._playing()
        if ask.exchange <= now.number and (sent := self._journal.asked(ask.exchange, ask.attempt)):
            return self._again(now, ask, payload, sent)
        now = self._arrived(now, ask)
        self._follow(self._steps.check, ask.label, ask.payload)
        seed = secrets.token_bytes(masks.KEY)
        reply = encode(m.Masked(ask.exchange, ask.attempt, self._body(now, ask, seed)))
        sent = self._journal.keep_asked(ask.exchange, ask.attempt, payload, seed, reply)
        return self._again(now, ask, payload, sent)

    def _again(self, now: Current, ask: m.Ask, payload: bytes, sent: Asked) -> bytes:
        """What is on disk for this attempt, if it was asked for in the same bytes."""
        if sent.ask != payload:
            raise ProtocolError("another request for the same attempt")
        if ask.exchange == now.number:
            now.asked[ask.attempt] = ask, sent
        self._journal.settle()
        return sent.reply

    def _arrived(self, now: Current, ask: m.Ask) -> Current:
        """The exchange that this request belongs to, after the sums that came along are found right."""
        if not now.opened:
            self._check_attempt(now, ask)
            if ask.sums != now.sums:
                self._end("other sums than those that were right before")
            return now
        names = now.asked[now.opened][0].names
        self._check_attempt(Current(now.number + 1, names, b"", None, {}), ask)
        self._now = self._after(now, ask.sums)
        return self._now

    def _check_attempt(self, now: Current, ask: m.Ask) -> None:
        """ProtocolError unless this attempt, of this exchange and with this set, may come now."""
        if ask.exchange != now.number:
            raise ProtocolError("exchanges must follow each other, and each must be opened before the next")
        if ask.attempt != len(now.asked) + 1:
            raise ProtocolError("attempts must follow each other")
        if not now.asked and ask.names != now.names:
            raise ProtocolError("the set of sites is not the one that must take part")
        if now.asked:
            self._check_again(now, ask)

    def _check_again(self, now: Current, ask: m.Ask) -> None:
        """A further attempt: at the first exchange only, of a strictly smaller set, with the same request."""
        before = now.asked[len(now.asked)][0]
        if now.number > 1:
            raise ProtocolError("sites may be left out at the first exchange only")
        if list(ask.names) != sorted(set(ask.names)) or not set(ask.names) < set(before.names):
            raise ProtocolError("a further attempt needs a smaller set of the same sites")
        if len(ask.names) < self._least or self._site.name not in ask.names:
            raise ProtocolError("the set of sites is smaller than approved, or without this site")
        if (ask.label, ask.payload) != (before.label, before.payload):
            raise ProtocolError("another request than in the attempt before")

    def _open(self, request: m.Open) -> bytes:
        """The seed of the own mask, for one attempt of each exchange: the last that was asked for."""
        e, k = request.exchange, request.attempt
        now, sent = self._playing(), self._journal.asked(e, k)
        if sent is None:
            raise ProtocolError("nothing was sent in this attempt")
        opening = self._journal.opening(e)
        if opening is None:
            if e != now.number or k != len(now.asked):
                raise ProtocolError("a later attempt has begun")
            if e == 1:
                self._journal.keep_set(now.asked[k][0].names)
            opening = self._journal.keep_opening(e, k)
        if opening.attempt != k:
            raise ProtocolError("this exchange was opened in another attempt")
        if e == now.number:
            now.opened = k
        self._journal.settle()
        return encode(m.Opened(e, k, sent.seed))

    # --- numbers and sums ---

    def _body(self, now: Current, ask: m.Ask, seed: bytes) -> m.Body:
        """y = x + own mask + the masks shared with later names - those shared with earlier names."""
        public, part, fraction = self._steps.addends(ask.label, ask.payload)
        shape, words = fp.encode(part, fraction, len(self._site.pinned))
        context = self._context(now, ask)
        mine = tags(words, shape, self._tag_coefficients(context, shape))
        pairs, name = self._joined().pairs, self._site.name
        later = [masks.mask_key(pairs[n], context) for n in ask.names if n > name]
        earlier = [masks.mask_key(pairs[n], context) for n in ask.names if n < name]
        added, its_tags = masks.masks([masks.own_key(seed, context), *later], shape)
        taken, other_tags = masks.masks(earlier, shape)
        words = fp.subtract(fp.add(words, added, shape), taken, shape)
        return m.Body(public, shape, words.tobytes(), m.tag_bytes(_combined(mine, its_tags, other_tags)))

    def _after(self, now: Current, sums: m.Body | None) -> Current:
        """The exchange that follows one whose sums are right; they end the study if they are not."""
        ask, sent = now.asked[now.opened]
        try:
            totals = self._checked(now, ask, m.read_reply(sent.reply).body, sums)
        except ProtocolError as error:
            self._end(str(error))
        assert sums is not None
        self._follow(self._steps.take, ask.label, ask.payload, sums.public, totals)
        transcript = next_transcript(now.transcript, self._context(now, ask), sums)
        return Current(now.number + 1, ask.names, transcript, sums, {})

    def _checked(self, now: Current, ask: m.Ask, mine: m.Body, sums: m.Body | None) -> Totals:
        """The sums as numbers; ProtocolError unless they have the tags that only the true ones have."""
        if sums is None or (sums.public, sums.shape) != (mine.public, mine.shape):
            raise ProtocolError("the sums are not of the kind that this site answered")
        m.check_body(sums)
        words, shape = np.frombuffer(sums.words, dtype=fp.WORD), sums.shape
        fp.check_sums(words, shape, len(ask.names))
        a = self._tag_coefficients(self._context(now, ask), shape)
        if tags(words, shape, a) != m.tags_of(sums):
            raise ProtocolError("the sums are not those of the sites")
        return fp.decode(words, shape)

    def _context(self, now: Current, ask: m.Ask) -> bytes:
        roster, request = self._joined().roster, request_digest(ask.label, ask.payload)
        return masks.context(roster, ask.exchange, ask.attempt, ask.names, now.transcript, request)

    def _tag_coefficients(self, context: bytes, shape: fp.Shape) -> Coefficients:
        """The coefficients of an attempt, which are needed for its numbers and again for its sums."""
        if self._coefficients is None or self._coefficients[0] != context:
            self._coefficients = context, masks.tag_coefficients(self._joined().key, context, shape)
        return self._coefficients[1]

    # --- what the site knows ---

    def _joined(self) -> Group:
        if self._group is None:
            raise ProtocolError("the sites have not agreed on a roster yet; the roster must come first")
        return self._group

    def _playing(self) -> Current:
        if self._now is None:
            raise ProtocolError("the sites have not agreed on a key yet")
        return self._now

    def _follow(self, step: Callable[..., None], *request: Any) -> None:
        """A step of the replayed procedure; what does not follow ends the study at this site."""
        self._over, before = FAILED, self._over
        try:
            step(*request)
        except Error as error:
            self._end(str(error))
        self._over = before

    def _end(self, reason: str) -> NoReturn:
        """End the study at this site; it cannot be continued."""
        self._over = self._journal.keep_end(reason).reason
        raise ProtocolError(f"the study is over at site {self._site.name!r}: {reason}")

    def _recover(self) -> None:
        """What the site knew before its process ended; every exchange so far is replayed."""
        if self._recovered:
            return
        self._recovered, self._over = True, FAILED  # so that half of what it knew is not gone on from
        try:
            exchanges, ended = self._journal.recovered()
            if ended is None:
                self._replay(exchanges)
            self._over = "" if ended is None else ended.reason
        except ProtocolError as error:
            self._over = str(error) if self._over == FAILED else self._over

    def _replay(self, exchanges: Sequence[tuple[dict[int, Asked], Opening | None]]) -> None:
        for name in ("roster", "agreed"):
            if data := self._journal.message(name):
                request = m.read_request(data)
                (self._agree if name == "roster" else self._join)(request, data)
        for number, (records, opening) in enumerate(exchanges, start=1):
            now, asked = self._playing(), {k: (m.read_request(r.ask), r) for k, r in records.items()}
            if number > 1:
                now = self._after(now, asked[1][0].sums)
            now.asked, now.opened = asked, 0 if opening is None else opening.attempt
            self._now = now


def _combined(mine: Tags, added: Tags, taken: Tags) -> Tags:
    """mine + added - taken, modulo the primes."""
    return tuple((t + a - b) % p for t, a, b, p in zip(mine, added, taken, PRIMES, strict=True))
