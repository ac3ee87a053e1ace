"""What crosses the wire in masked sums; the Master sees all of it, and carries what sites send each other.

Master                                site
  Begin                           ->
                                  <-  Hello    its X25519 key of this run, signed
  Roster   all Hellos             ->
                                  <-  Agree    the roster signed, a share of the group key for each
  Agreed   all Agrees             ->
                                  <-  Ready
  Ask      sums of e - 1, request ->
                                  <-  Masked   its numbers and tags of exchange e, under masks
  Open     when all of them came  ->
                                  <-  Opened   the seed of its own mask
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed.privacy.fixed_point import MOST_SITES, Shape
from fedshed.privacy.linear_tags import PRIMES, TAGS, Tags
from fedshed.privacy.masks import BOX, KEY, SIGNATURE
from fedshed.protocol.codec import Decoder

MOST_ATTEMPTS = 3

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MOST_SITES)]
Bytes32: TypeAlias = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=SIGNATURE, max_length=SIGNATURE)]
Box: TypeAlias = Annotated[bytes, Meta(min_length=BOX, max_length=BOX)]
Exchange: TypeAlias = Annotated[int, Meta(ge=1, lt=2**31)]
Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
Label: TypeAlias = Annotated[int, Meta(ge=-1, lt=2**31)]
TagBytes: TypeAlias = Annotated[bytes, Meta(min_length=8 * TAGS, max_length=8 * TAGS)]


class Sealed(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of the messages of masked sums."""


# --- from a site ---------------------------------------------------------------------------------


class Hello(Sealed, frozen=True):
    """A site's name and its X25519 key for one run of one study, signed with the key that was approved."""

    study: Bytes32
    run: Annotated[bytes, Meta(max_length=64)]
    name: Name
    key: Bytes32
    signature: Signature


class Agree(Sealed, frozen=True):
    """A signature of the roster that this site sees, and its share of the group key, boxed for each other."""

    name: Name
    roster: Bytes32
    boxes: Annotated[dict[Name, Box], Meta(max_length=MOST_SITES)]
    signature: Signature


class Ready(Sealed, frozen=True):
    """The site holds the group key."""

    roster: Bytes32


class Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Numbers of an exchange as words, and their tags: of one site under masks, or the sums in the clear."""

    public: bytes  # the skeleton of the answer, the same at all sites
    shape: Shape
    words: bytes
    tags: TagBytes


class Masked(Sealed, frozen=True):
    """A site's numbers under its own mask and those that it shares with each other site of the set."""

    exchange: Exchange
    attempt: Attempt
    body: Body


class Opened(Sealed, frozen=True):
    """The seed of the site's own mask."""

    exchange: Exchange
    attempt: Attempt
    seed: Bytes32


class Refused(Sealed, frozen=True):
    """The site will not answer; the reason says nothing of its rows."""

    reason: str


# --- from the Master -----------------------------------------------------------------------------


class Begin(Sealed, frozen=True):
    """The first message: which sites are present?"""


class Roster(Sealed, frozen=True):
    """The Hellos of all sites."""

    hellos: Annotated[tuple[Hello, ...], Meta(max_length=MOST_SITES)]


class Agreed(Sealed, frozen=True):
    """The Agrees of all sites."""

    agrees: Annotated[tuple[Agree, ...], Meta(max_length=MOST_SITES)]


class Ask(Sealed, frozen=True):
    """A request to the sites of a set, with the sums of the exchange before."""

    exchange: Exchange
    attempt: Attempt
    names: Names
    label: Label  # the conversation that it belongs to
    payload: bytes
    sums: Body | None


class Open(Sealed, frozen=True):
    """All of the set have sent: the exchange can be opened."""

    exchange: Exchange
    attempt: Attempt


Request: TypeAlias = Begin | Roster | Agreed | Ask | Open
Reply: TypeAlias = Hello | Agree | Ready | Masked | Opened | Refused
_REQUEST, _REPLY = Decoder(Request, 1), Decoder(Reply, 1)


def read_request(data: bytes) -> Any:
    """A request as a site reads it; ProtocolError if it is none."""
    return _read(_REQUEST, data)


def read_reply(data: bytes) -> Any:
    """A reply as the Master reads it; ProtocolError if it is none."""
    reply = _read(_REPLY, data)
    if isinstance(reply, Masked):
        check_body(reply.body)
    return reply


def _read(decoder: Decoder, data: bytes) -> Any:
    try:
        return decoder(data)
    except CodecError as error:
        raise ProtocolError(f"this is not a message of masked sums: {error}") from error


def check_body(body: Body) -> None:
    """ProtocolError unless the words are as many as the shape says, and the tags below their primes."""
    if body.shape.wide < 1 or len(body.words) != 8 * body.shape.words:
        raise ProtocolError(f"{len(body.words)} bytes are not the numbers of {body.shape}")
    if any(tag >= prime for tag, prime in zip(tags_of(body), PRIMES, strict=True)):
        raise ProtocolError("a tag is not below its prime")


def tags_of(body: Body) -> Tags:
    """The tags of a body."""
    return tuple(int.from_bytes(body.tags[i : i + 8], "little") for i in range(0, 8 * TAGS, 8))


def tag_bytes(tags: Tags) -> bytes:
    """Tags as they are sent."""
    return b"".join(tag.to_bytes(8, "little") for tag in tags)
