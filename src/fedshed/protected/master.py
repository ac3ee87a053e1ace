"""The Master's end of masked sums: it carries messages, and learns nothing but the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed._utils.names import printable
from fedshed.exchange.transport import Transport
from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.addends import Totals
from fedshed.privacy.linear_tags import PRIMES, added
from fedshed.protected import messages as m
from fedshed.protected.journal import Store
from fedshed.protected.keys import check_number, first_transcript, next_transcript, request_digest
from fedshed.protocol.codec import encode

T = TypeVar("T")
MOST_WORDS = 500  # characters of a refusal that are shown


class Logged(Struct, frozen=True, array_like=True):
    """An exchange that has come to its end."""

    label: int
    payload: bytes
    names: tuple[str, ...]
    transcript: bytes  # after it
    sums: m.Body


class MaskedSums:
    """Sums over sites that hide their numbers, one exchange after the other.

    Parameters
    ----------
    transport : Transport
        The way to the sites, where a `Member` answers each request.
    names : sequence of str
        The names of all approved sites.
    study, run : bytes
        The digest of the study, and the name of this run of it.
    least : int
        The fewest sites that an exchange may be opened with, at least 3.
    store : Store
        Where the Master keeps its log; with it a new `MaskedSums` goes on where another was stopped.
    attempts : int
        How many sets of sites are tried at the first exchange, at most 3.
    patience : int
        How often a silent site is asked before it counts as absent.

    Raises
    ------
    ConfigError
        If there are fewer than 3 sites or more than 128.
    """

    def __init__(
        self, transport: Transport, names: Sequence[str], study: bytes, run: bytes, least: int, store: Store,
        attempts: int = m.MOST_ATTEMPTS, patience: int = 20,
    ) -> None:  # fmt: skip
        self._transport, self._names, self._store = transport, tuple(sorted(set(names))), store
        check_number(len(self._names), least)
        self._place, self._least = (study, run), least
        self._attempts, self._patience = min(attempts, m.MOST_ATTEMPTS), patience
        self._roster = self._transcript = b""
        self._number, self._among = 0, self._names
        self._sums: m.Body | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that the sums are over."""
        return self._among

    def exchange(self, label: int, payload: bytes) -> tuple[bytes, Totals]:
        """The sums over all sites of their answers to a request.

        Parameters
        ----------
        label : int
            The conversation that the request belongs to.
        payload : bytes
            The request, the same for all sites.

        Returns
        -------
        tuple of bytes and Totals
            The public skeleton of the answers, and the sums.

        Raises
        ------
        ProtocolError
            If a site refuses or does not answer, or if sites give answers of different kinds.
        """
        if not self._roster:
            self._set_up()
        number = self._number + 1
        logged = self._logged(number, label, payload) or self._played(number, label, payload)
        self._number, self._among = number, logged.names
        self._transcript, self._sums = logged.transcript, logged.sums
        words = np.frombuffer(logged.sums.words, dtype=fp.WORD)
        return logged.sums.public, fp.decode(words, logged.sums.shape)

    # --- set-up ---

    def _set_up(self) -> None:
        """All sites meet, once: after a restart the Master's log says how."""
        roster = self._store.get("roster")
        if roster is None:
            hellos = self._from_all(m.Begin(), m.Hello)
            self._check_names(hellos)
            _same(
                "this is another study or run", {n: (h.study, h.run) for n, h in hellos.items()}, self._place
            )
            agrees = self._from_all(m.Roster(tuple(hellos[n] for n in self._names)), m.Agree)
            self._check_names(agrees)
            ready = self._from_all(m.Agreed(tuple(agrees[n] for n in self._names)), m.Ready)
            _same("the roster differs", {name: r.roster for name, r in ready.items()})
            roster = ready[self._names[0]].roster
            self._store.put("roster", roster)
        self._roster, self._transcript = roster, first_transcript(roster)

    def _from_all(self, request: m.Sealed, kind: type[T]) -> dict[str, T]:
        replies, silent = self._collect(self._names, encode(request), kind)
        if silent:
            raise ProtocolError(f"{silent}; all approved sites must be there when the study begins")
        return replies

    def _check_names(self, replies: Mapping[str, m.Hello] | Mapping[str, m.Agree]) -> None:
        for name, reply in replies.items():
            if reply.name != name:
                raise ProtocolError(
                    f"site {name!r} says that it is {printable(reply.name)!r}; check its name"
                )

    # --- an exchange ---

    def _logged(self, number: int, label: int, payload: bytes) -> Logged | None:
        """What the log holds of this exchange."""
        data = self._store.get(f"sums-{number}")
        if data is None:
            return None
        logged = msgspec.msgpack.decode(data, type=Logged)
        if (logged.label, logged.payload) != (label, payload):
            raise ProtocolError(
                f"exchange {number} asks for something else than before the Master was stopped; "
                "start a new run"
            )
        return logged

    def _played(self, number: int, label: int, payload: bytes) -> Logged:
        """One exchange with the sites: ask, wait for all of the set, open, and add up."""
        ask, masked = self._masked(self._last_ask(number, label, payload))
        _same(f"exchange {number}: the kind of answer differs", {n: _kind(r.body) for n, r in masked.items()})
        seeds, silent = self._collect(ask.names, self._opening(ask), m.Opened, (number, ask.attempt))
        if silent:
            raise ProtocolError(
                f"exchange {number} stays sealed: {silent}; start the Master again when the site is back"
            )
        sums, context = self._sum(ask, masked, seeds)
        transcript = next_transcript(self._transcript, context, sums)
        logged = Logged(label, payload, ask.names, transcript, sums)
        self._store.put(f"sums-{number}", encode(logged))
        return logged

    def _last_ask(self, number: int, label: int, payload: bytes) -> m.Ask:
        """The attempt that was asked for last, or the first one; no attempt is asked for in two ways."""
        for attempt in range(m.MOST_ATTEMPTS, 0, -1):
            if data := self._store.get(f"ask-{number}-{attempt}"):
                ask: m.Ask = m.read_request(data)
                if (ask.label, ask.payload) != (label, payload):
                    raise ProtocolError(f"exchange {number} was begun with another request; start a new run")
                return ask
        return m.Ask(number, 1, self._among, label, payload, self._sums)

    def _masked(self, ask: m.Ask) -> tuple[m.Ask, dict[str, m.Masked]]:
        """The masked numbers of all of a set; at the first exchange the absent may be left out."""
        while True:
            data = encode(ask)
            self._store.put(f"ask-{ask.exchange}-{ask.attempt}", data)
            replies, silent = self._collect(ask.names, data, m.Masked, (ask.exchange, ask.attempt))
            if not silent:
                return ask, replies
            if not self._may_shrink(ask, len(replies)):
                raise ProtocolError(
                    f"exchange {ask.exchange}: {silent}; {self._why_not(ask)}, so start the Master again "
                    "when the site is back"
                )
            ask = m.Ask(ask.exchange, ask.attempt + 1, tuple(sorted(replies)), ask.label, ask.payload, None)

    def _may_shrink(self, ask: m.Ask, present: int) -> bool:
        """Whether the sites that are absent may be left out: at the first exchange, before it is opened."""
        first = ask.exchange == 1 and self._store.get("open-1") is None
        return first and ask.attempt < self._attempts and present >= self._least

    def _why_not(self, ask: m.Ask) -> str:
        if ask.exchange > 1:
            return "sites may be left out at the first exchange only"
        return f"at least {self._least} sites must be left, after at most {self._attempts} attempts"

    def _opening(self, ask: m.Ask) -> bytes:
        """The request to open an attempt; from then on there is no other."""
        data = encode(m.Open(ask.exchange, ask.attempt))
        self._store.put(f"open-{ask.exchange}", data)
        return data

    def _sum(
        self, ask: m.Ask, masked: Mapping[str, m.Masked], seeds: Mapping[str, m.Opened]
    ) -> tuple[m.Body, bytes]:
        """The sums, and the context they belong to: masked numbers less the sites' own masks."""
        bodies = [masked[name].body for name in ask.names]
        shape = bodies[0].shape
        request = request_digest(ask.label, ask.payload)
        context = masks.context(self._roster, ask.exchange, ask.attempt, ask.names, self._transcript, request)
        own, own_tags = masks.masks([masks.own_key(seeds[n].seed, context) for n in ask.names], shape)
        words = np.zeros(shape.words, dtype=fp.WORD)
        for body in bodies:
            words = fp.add(words, np.frombuffer(body.words, dtype=fp.WORD), shape)
        words = fp.subtract(words, own, shape)
        fp.check_sums(words, shape, len(ask.names))
        total = added([m.tags_of(body) for body in bodies])
        tags = tuple((t - o) % p for t, o, p in zip(total, own_tags, PRIMES, strict=True))
        return m.Body(bodies[0].public, shape, words.tobytes(), m.tag_bytes(tags)), context

    # --- messages ---

    def _collect(
        self, names: Sequence[str], payload: bytes, kind: type[T], place: tuple[int, int] | None = None
    ) -> tuple[dict[str, T], str]:
        """The replies of a kind, and a sentence about the sites that gave none."""
        replies: dict[str, T] = {}
        said: dict[str, str] = {}
        for _ in range(self._patience):
            missing = [name for name in names if name not in replies]
            if not missing:
                break
            for name, data in self._transport.exchange(dict.fromkeys(missing, payload)):
                reply = self._usable(name, data, said) if name in missing else None
                if isinstance(reply, kind) and place == _place(reply):
                    replies.setdefault(name, reply)
        return replies, _silence([name for name in names if name not in replies], said, self._patience)

    def _usable(self, name: str, data: bytes, said: dict[str, str]) -> Any:
        """A reply; a refusal ends the study, and bytes that are no reply count as silence."""
        try:
            reply = m.read_reply(data)
        except ProtocolError as error:
            said[name] = printable(str(error))[:MOST_WORDS]
            return None
        if isinstance(reply, m.Refused):
            raise ProtocolError(f"site {name!r} refused: {printable(reply.reason)[:MOST_WORDS]}")
        return reply


def _place(reply: Any) -> tuple[int, int] | None:
    """The exchange and the attempt that a reply belongs to; none in the set-up."""
    return (reply.exchange, reply.attempt) if isinstance(reply, m.Masked | m.Opened) else None


def _kind(body: m.Body) -> tuple[bytes, fp.Shape]:
    return body.public, body.shape


def _same(what: str, each: Mapping[str, Any], expected: Any = None) -> None:
    """ProtocolError that names the sites whose answers are not as expected, or not as most sites' are."""
    common = Counter(each.values()).most_common(1)[0][0] if expected is None else expected
    others = ", ".join(repr(name) for name, value in sorted(each.items()) if value != common)
    if others:
        raise ProtocolError(f"{what} at {others}; check that all sites run the same fedshed and study")


def _silence(names: Sequence[str], said: Mapping[str, str], times: int) -> str:
    """Who was silent, in words; nothing if nobody was."""
    why = {name: f" ({said[name]})" if name in said else "" for name in names}
    return "; ".join(f"site {name!r} gave no answer, asked {times} times{why[name]}" for name in names)
