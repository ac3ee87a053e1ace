"""How PEN codes numbers: triangles in uniform steps with a dead zone, logarithms, and a chain of digests."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from fedshed.linalg.arrays import Packed, Vector
from fedshed.protocol import quantize
from fedshed.protocol.memo import Memo
from fedshed.protocol.quantize import decode_steps, quantize_values

LARGEST_LOG = 4096  # quarters of an octave
DEAD_ZONE = 0.6  # in steps: innovations below it are 0


def round_triangle(triangle: Packed, step: float) -> Packed:
    """Symbols of a packed symmetric matrix in uniform steps, entries below the dead zone 0."""
    return quantize_values(triangle, float(np.float32(step)), DEAD_ZONE)


def encode_rounded(symbols: Packed, step: float) -> tuple[bytes, Packed]:
    """Symbols as they are sent, and what both ends decode them to."""
    data, values = quantize.encode_symbols(symbols, step)
    _remember(data, values)
    return data, values


def decode_rounded(data: bytes, count: int) -> Packed:
    """The values of `encode_rounded`, read-only; a stream is decoded and verified only once."""
    known: Packed | None = _DECODED.get((count, data))
    return _remember(data, decode_steps(data, count)) if known is None else known


def _remember(data: bytes, values: Packed) -> Packed:
    values.flags.writeable = False
    _DECODED.put((len(values), data), values, values.nbytes + len(data))
    return values


_DECODED = Memo()


def logs_of(values: Vector) -> Vector:
    """log2 in quarter steps."""
    logs: Vector = np.rint(4 * np.log2(np.maximum(values, 1e-300)))
    return logs


def roots(logs: Vector) -> Vector:
    """The square roots of the values with those logarithms."""
    roots: Vector = np.exp2(logs / 8)
    return roots


def decode_logs(data: bytes, n: int) -> Vector:
    """The logarithms of a diagonal in quarter steps, none beyond 2^1024."""
    return quantize.decode_logs(data, n, LARGEST_LOG).astype(float)


def digest_of(before: int, *parts: bytes) -> int:
    """A chain over everything a copy was decoded from; floats that differ in their last bits do not enter."""
    hasher = blake2b((before % 2**64).to_bytes(8, "little"), digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(4, "little") + part)
    return int.from_bytes(hasher.digest(), "little")
