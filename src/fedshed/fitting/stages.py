"""What travels between the Master and a host around a payload: which study and stage it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from fedshed._utils.errors import ProtocolError
from fedshed._utils.names import printable
from fedshed.algorithms.channels import ByteRate
from fedshed.exchange import Transport
from fedshed.exchange.wire import MOST_WORDS
from fedshed.fitting.terms import Terms
from fedshed.preparation import DesignPlan
from fedshed.protocol.codec import encode
from fedshed.protocol.messages import Declined

PROTOCOL = 4  # of these messages; fedshed 0.1 had none, which counts as 0
STUDY, RUN, STAGE = 32, 8, 8  # bytes that name a study, a run of it, and a stage of that


class Prepare(Struct, frozen=True, array_like=True, tag=0):
    """The stage in which the sites agree on a plan (fedshed.preparation)."""

    protocol: int = 0
    terms: Terms | None = None  # which the sites have approved


class Play(Struct, frozen=True, array_like=True, tag=1):
    """The stage in which an algorithm, and what comes before and after it, is played on a plan's rows.

    Its parts are those of `fedshed.solve.stages`.
    """

    plan: DesignPlan
    algorithm: msgspec.Raw
    terms: Terms | None = None


class Protect(Struct, frozen=True, array_like=True, tag=2):
    """The one stage of a protected study: masked sums at points that every site computes itself."""

    protocol: int
    terms: Terms


Stage: TypeAlias = Prepare | Play | Protect


class Envelope(Struct, frozen=True, array_like=True):
    """A payload for a host; the stage itself comes along where the host may not know it."""

    key: bytes  # of the study, its run and the stage
    part: int  # of the stage
    opening: bytes | None
    payload: bytes

    @property
    def study(self) -> bytes:
        """The study's name, the SHA-256 of its terms."""
        return self.key[:STUDY]

    @property
    def run(self) -> bytes:
        """The names of the study and of its run, which is drawn at random when it begins."""
        return self.key[: STUDY + RUN]

    @property
    def stage(self) -> bytes:
        """The stage's name, the digest of its encoding."""
        return self.key[STUDY + RUN :]


class Greeting(Struct, frozen=True, array_like=True):
    """What a host says of itself: its name, and what its uplink carries, if that is limited."""

    name: str
    uplink: ByteRate | None
    protocol: int = 0


class Answer(Struct, frozen=True, array_like=True, tag=0):
    """A host's answer to a payload; to one that opens a stage it adds who it is."""

    payload: bytes
    greeting: Greeting | None = None


class Unknown(Struct, frozen=True, array_like=True, tag=1):
    """The host does not know the stage: it must come along."""


class Refusal(Struct, frozen=True, array_like=True, tag=2):
    """The host will not or cannot answer."""

    reason: str


_REPLY: msgspec.msgpack.Decoder[Answer | Unknown | Refusal] = msgspec.msgpack.Decoder(
    Answer | Unknown | Refusal
)


def digest(opening: bytes) -> bytes:
    """The short name of an encoded stage: the same stage has the same name at both ends."""
    return blake2b(opening, digest_size=STAGE).digest()


class StageSession:
    """A stage of a study over a transport; its parts are transports of their own.

    `up` and `down` count what is handed to the transport below, envelopes included; `told` what of that was
    the stage itself.
    """

    def __init__(self, transport: Transport, run: bytes, stage: Stage) -> None:
        self._transport, self._opening = transport, encode(stage)
        self._key, self._opened = run + digest(self._opening), set[str]()
        self._playing = isinstance(stage, Play)
        self.greetings: dict[str, Greeting] = {}
        self.up = self.down = self.told = 0

    def part(self, number: int = 0) -> StageTransport:
        """One part of the stage, as a transport."""
        return StageTransport(self, number, self._transport)

    def exchange(self, part: int, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """One exchange; a host that does not know the stage, or forgot it, is told and asked again."""
        answers = self._carry(part, payloads, self._opened)
        unknown = {i for i, answer in answers if isinstance(answer, Unknown) and i in payloads}
        if unknown:
            answers += self._carry(part, {i: payloads[i] for i in sorted(unknown)}, set())
        given = [(i, answer) for i, answer in answers if isinstance(answer, Answer)]
        refused = [(i, answer) for i, answer in answers if isinstance(answer, Refusal)]
        declined = [(i, self._declined(i, payloads.get(i), answer)) for i, answer in refused]
        self._opened |= {i for i, _ in given}
        self.greetings |= {i: answer.greeting for i, answer in given if answer.greeting}
        return [(i, answer.payload) for i, answer in given] + declined

    def _declined(self, site: str, request: bytes | None, refusal: Refusal) -> bytes:
        """A refusal as a reply; from a site that has not taken part in the play yet it is the end."""
        reason = printable(refusal.reason[:MOST_WORDS])
        if not self._playing or site not in self._opened or request is None:
            raise ProtocolError(f"site {site!r} refused: {reason}")
        run, number, *_ = msgspec.msgpack.decode(request, type=tuple[bytes, int, msgspec.Raw, msgspec.Raw])
        return encode((run, number, 0, [Declined(reason)]))

    def _carry(self, part: int, payloads: Mapping[str, bytes], opened: set[str]) -> list[tuple[str, Any]]:
        wrapped = {
            i: encode(Envelope(self._key, part, None if i in opened else self._opening, payload))
            for i, payload in payloads.items()
        }
        arrived = list(self._transport.exchange(wrapped))
        self.down += sum(map(len, wrapped.values()))
        self.up += sum(len(data) for _, data in arrived)
        self.told += len(self._opening) * sum(i not in opened for i in payloads)
        return [(i, _read(data)) for i, data in arrived]


class StageTransport:
    """A transport for one part of a stage: payloads go out in envelopes, answers come without them."""

    def __init__(self, session: StageSession, part: int, transport: Transport) -> None:
        self._session, self._part, self._transport = session, part, transport
        self.stateless = transport.stateless

    def agents(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.agents()

    def exchange(self, payloads: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
        """One exchange."""
        return self._session.exchange(self._part, payloads)


def _read(data: bytes) -> Answer | Unknown | Refusal:
    """A reply; bytes that are none are handed on as they are, for the wire to refuse by the site's name."""
    try:
        return _REPLY.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return Answer(data if isinstance(data, bytes) else b"")


class VersionError(ProtocolError):
    """The other end runs another version."""


def same_protocol(who: str, protocol: int) -> None:
    """Refuse to go on with another version of these messages."""
    if protocol != PROTOCOL:
        raise VersionError(
            f"{who} speaks version {protocol} of the protocol, and this end version {PROTOCOL}; "
            "install the same version of fedshed at both ends"
        )
