"""Who a site is in protected studies: an Ed25519 key (RFC 8032), whose public half the others have pinned."""

from __future__ import annotations

from secrets import token_bytes

KEY, SIGNATURE = 32, 64  # bytes


def new_identity() -> bytes:
    """A private key: 32 random bytes."""
    return token_bytes(KEY)


def public_key(identity: bytes) -> bytes:
    """The public half of a private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return bytes(Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw())


def sign(identity: bytes, message: bytes) -> bytes:
    """The signature of a message."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return bytes(Ed25519PrivateKey.from_private_bytes(identity).sign(message))


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a message was signed by whoever has the private half of a key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(key) != KEY or len(signature) != SIGNATURE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True
