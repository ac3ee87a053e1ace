"""Keys, masks, signatures and boxes of masked sums, all from `cryptography`.

X25519 (RFC 7748) gives each pair of sites a key, HKDF with SHA-256 (RFC 5869) every other key, AES-256 in
counter mode the masks and the coefficients of tags, AES-256-GCM the boxes, Ed25519 (RFC 8032) the signatures.
Each derivation names its purpose and all that it belongs to, so none can stand for another: the digest of
the roster holds the study, its run and the public keys of all sites; the context of an attempt holds the
roster, the exchange, the attempt, its set of sites, what happened before, and the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.privacy import fixed_point as fp
from fedshed.privacy.fixed_point import WORD, Shape, Words
from fedshed.privacy.linear_tags import PRIMES, TAGS, Coefficients, Tags, coefficient_bytes, coefficients

VERSION = b"fedshed masked sums 1"
KEY = 32  # bytes of every key, seed, share and digest
SIGNATURE = 64
BOX = KEY + 16  # bytes of a boxed share
AT_ONCE = 1 << 17  # words of masks that are held at a time


@cache
def _library() -> Any:
    """What is used of `cryptography`, or what to do where it is not installed."""
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
    except ImportError:
        raise ConfigError("protected mode needs cryptography: pip install 'fedshed[protected]'") from None
    return SimpleNamespace(
        InvalidSignature=InvalidSignature, InvalidTag=InvalidTag, ed25519=ed25519, x25519=x25519,
        Cipher=Cipher, AES=algorithms.AES, counting=modes.CTR(bytes(16)), AESGCM=AESGCM,
        HKDF=HKDF, HKDFExpand=HKDFExpand, sha256=SHA256(),
    )  # fmt: skip


# --- digests -------------------------------------------------------------------------------------


def joined(purpose: str, *parts: bytes) -> bytes:
    """The parts behind the version and the purpose, each with its length, so that no two lists are alike."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in (VERSION, purpose.encode(), *parts))


_info = lru_cache(maxsize=16)(joined)  # the context of an attempt comes once for every pair


def digest(purpose: str, *parts: bytes) -> bytes:
    """The SHA-256 of these parts, for one purpose."""
    return sha256(joined(purpose, *parts)).digest()


def number(value: int) -> bytes:
    """A whole number as a part of a digest."""
    return value.to_bytes(8, "big", signed=True)


def roster_digest(study: bytes, run: bytes, keys: Mapping[str, tuple[bytes, bytes]]) -> bytes:
    """The study, its run, and the names of all sites with their Ed25519 and X25519 public keys."""
    each = [part for name in sorted(keys) for part in (name.encode(), *keys[name])]
    return digest("roster", study, run, *each)


def context(
    roster: bytes, exchange: int, attempt: int, names: Sequence[str], transcript: bytes, request: bytes
) -> bytes:
    """What the masks and tags of one attempt are bound to."""
    among = digest("set", *(name.encode() for name in sorted(names)))
    return digest("context", roster, number(exchange), number(attempt), among, transcript, request)


# --- keys ----------------------------------------------------------------------------------------


def derived(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """A key from a key: HKDF-Expand (RFC 5869, section 2.3), which is enough for a uniform key."""
    library = _library()
    new: bytes = library.HKDFExpand(library.sha256, KEY, _info(purpose, *parts)).derive(key)
    return new


def extracted(secret: bytes, purpose: str, *parts: bytes) -> bytes:
    """A key from a secret that is not uniform: HKDF (RFC 5869) without salt."""
    library = _library()
    key: bytes = library.HKDF(library.sha256, KEY, None, joined(purpose, *parts)).derive(secret)
    return key


def exchange_public(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    key = _library().x25519.X25519PrivateKey.from_private_bytes(private)
    public: bytes = key.public_key().public_bytes_raw()
    return public


def pair_key(private: bytes, public: bytes, roster: bytes, names: tuple[str, str]) -> bytes:
    """The key of two sites; both compute the same one, and a point of small order is refused."""
    library = _library()
    ours = library.x25519.X25519PrivateKey.from_private_bytes(private)
    try:
        secret = ours.exchange(library.x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("the X25519 key of a site cannot be used") from None
    first, second = sorted(names)
    return extracted(secret, "pair", roster, first.encode(), second.encode())


def group_key(shares: Mapping[str, bytes], roster: bytes) -> bytes:
    """The key that all sites hold and the Master does not, from one share of each site."""
    return extracted(b"".join(shares[name] for name in sorted(shares)), "group", roster)


# --- signatures and boxes ------------------------------------------------------------------------


def identity_public(identity: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    key = _library().ed25519.Ed25519PrivateKey.from_private_bytes(identity)
    public: bytes = key.public_key().public_bytes_raw()
    return public


def signed(identity: bytes, message: bytes) -> bytes:
    """The Ed25519 signature of a digest."""
    made: bytes = _library().ed25519.Ed25519PrivateKey.from_private_bytes(identity).sign(message)
    return made


def verified(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a digest was signed with this key."""
    library = _library()
    try:
        library.ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (library.InvalidSignature, ValueError):
        return False
    return True


def boxed(pair: bytes, roster: bytes, sender: str, receiver: str, share: bytes) -> bytes:
    """A share of the group key for one site: AES-256-GCM under a key for this direction, used once."""
    key = derived(pair, "box", roster, sender.encode(), receiver.encode())
    box: bytes = _library().AESGCM(key).encrypt(bytes(12), share, roster)
    return box


def unboxed(pair: bytes, roster: bytes, sender: str, receiver: str, box: bytes) -> bytes:
    """The share that another site sent; ProtocolError if anyone else made the box."""
    library = _library()
    key = derived(pair, "box", roster, sender.encode(), receiver.encode())
    try:
        share: bytes = library.AESGCM(key).decrypt(bytes(12), box, roster)
    except library.InvalidTag:
        raise ProtocolError(f"site {sender!r} sent no share of the group key that can be opened") from None
    return share


# --- masks ---------------------------------------------------------------------------------------


def stream(key: bytes, count: int) -> bytes:
    """`count` bytes of AES-256 in counter mode from 0, under a key that is used for nothing else."""
    library = _library()
    made: bytes = library.Cipher(library.AES(key), library.counting).encryptor().update(bytes(count))
    return made


def tag_coefficients(group: bytes, context: bytes, shape: Shape) -> Coefficients:
    """The coefficients of the tags of one attempt, which only the sites can compute."""
    return coefficients(stream(derived(group, "tags", context), coefficient_bytes(shape)))


def mask_key(pair: bytes, context: bytes) -> bytes:
    """The key of the mask that two sites share in one attempt: one adds it, the other subtracts it."""
    return derived(pair, "mask", context)


def own_key(seed: bytes, context: bytes) -> bytes:
    """The key of a site's own mask, whose seed it gives away when the attempt is opened."""
    return derived(seed, "own", context)


def masks(keys: Iterable[bytes], shape: Shape) -> tuple[Words, Tags]:
    """The sum of the masks of these keys: for wide numbers, slim numbers and flags, and for the tags."""
    keys, width = list(keys), shape.words + TAGS
    words, tags = np.zeros(shape.words, dtype=WORD), (0,) * TAGS
    rows = max(1, AT_ONCE // width)
    for i in range(0, len(keys), rows):
        drawn = b"".join(stream(key, 8 * width) for key in keys[i : i + rows])
        table = np.frombuffer(drawn, dtype=WORD).reshape(-1, width)
        words = fp.add(words, _column_sums(table[:, : shape.words], shape), shape)
        tags = _tag_sums(tags, table[:, shape.words :])
    return words, tags


def _column_sums(table: Words, shape: Shape) -> Words:
    """The sum of the rows, wide numbers modulo 2^128: carries out of the low halves, by 32 bits at a time."""
    total: Words = table.sum(axis=0, dtype=WORD)
    low = table[:, : shape.wide]
    carry = ((low & np.uint64(2**32 - 1)).sum(axis=0, dtype=WORD) >> np.uint64(32)) + (
        low >> np.uint64(32)
    ).sum(axis=0, dtype=WORD)
    total[shape.wide : 2 * shape.wide] += carry >> np.uint64(32)
    return total


def _tag_sums(tags: Tags, table: Words) -> Tags:
    """The tags, and 61 bits of each row for each of them, added modulo their primes."""
    columns = (table & np.uint64(2**61 - 1)).T.tolist()
    return tuple((t + sum(column)) % p for t, column, p in zip(tags, columns, PRIMES, strict=True))
