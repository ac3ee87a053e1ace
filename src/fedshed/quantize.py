"""Arrays in few bits: uniform steps, packed levels, and an entropy coder (constriction).

Everything that is decoded is decoded the same on every machine: symbols are integers, steps are float32.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.arrays import Matrix, Vector
from fedshed.errors import CodecError

Symbols = NDArray[np.int32]
LARGEST = 1 << 10  # of larger symbols the low bits are sent as they are, and the rest is coded
SPLIT = 0xFF00  # in place of the largest magnitude: a split stream, and by how many bits
_SIDE = struct.Struct("<BBH")  # odds of zero, mean of the others, largest magnitude


def entropy_encode(symbols: NDArray[Any]) -> bytes:
    """Integers as a range-coded stream: P(0) and a geometric tail are fitted, 4 bytes of side information."""
    x = np.asarray(symbols).astype(np.int64).ravel()
    low, high = int(x.min(initial=0)), int(x.max(initial=0))
    if not -(2**31) <= low <= high < 2**31:
        raise CodecError(f"symbols from {low} to {high} do not fit into 32 bits")
    largest = max(-low, high)
    if largest >= LARGEST:
        return _split(x, largest.bit_length() - LARGEST.bit_length() + 2)
    zeros, tail = _fitted(x)
    side = _SIDE.pack(zeros, tail, largest)
    if largest == 0:
        return side
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode((x + largest).astype(np.int32), _model(zeros, tail, largest))
    return side + bytes(encoder.get_compressed().astype("<u4").tobytes())


def _split(x: NDArray[np.int64], bits: int) -> bytes:
    """The low bits of each symbol, then the stream of the rest."""
    low = (x[:, None] >> np.arange(bits)) & 1
    return (
        _SIDE.pack(0, 0, SPLIT + bits)
        + np.packbits(low.astype(np.uint8)).tobytes()
        + entropy_encode(x >> bits)
    )


def entropy_decode(data: bytes, count: int) -> Symbols:
    """The `count` integers of a stream; anything else raises CodecError."""
    if len(data) < _SIDE.size or count < 0:
        raise CodecError(f"{len(data)} bytes are too few for an entropy-coded array")
    zeros, tail, largest = _SIDE.unpack_from(data)
    body = data[_SIDE.size :]
    if largest > SPLIT:
        return _joined(body, count, largest - SPLIT)
    if largest == 0:
        if body:
            raise CodecError(f"an array of zeros is followed by {len(body)} bytes")
        return np.zeros(count, dtype=np.int32)
    return _decoded(body, count, zeros, tail, largest)


def _joined(body: bytes, count: int, bits: int) -> Symbols:
    size = (bits * count + 7) // 8
    if bits > 24 or len(body) < size + _SIDE.size or body[size + 3] >= SPLIT >> 8:
        raise CodecError("an entropy-coded array is cut off or malformed")
    low = np.unpackbits(np.frombuffer(body[:size], np.uint8), count=bits * count).reshape(count, bits)
    high = entropy_decode(body[size:], count).astype(np.int64)
    joined = (high << bits) + (low.astype(np.int64) << np.arange(bits)).sum(axis=1)
    if count and not -(2**31) <= joined.min() <= joined.max() < 2**31:
        raise CodecError("an entropy-coded array holds more than 32 bits")
    symbols: Symbols = joined.astype(np.int32)
    return symbols


def _decoded(body: bytes, count: int, zeros: int, tail: int, largest: int) -> Symbols:
    import constriction

    if len(body) % 4 or largest >= LARGEST:
        raise CodecError("an entropy-coded array is cut off or malformed")
    model = _model(zeros, tail, largest)
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(body, "<u4").astype(np.uint32))
    try:
        symbols = np.asarray(decoder.decode(model, count), dtype=np.int32)
    except Exception as error:  # constriction raises several kinds for a stream that is not one
        raise CodecError(f"an entropy-coded array cannot be decoded: {error}") from error
    # A range decoder reads on past the end and stops before it: only encoding again tells.
    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(symbols, model)
    if encoder.get_compressed().astype("<u4").tobytes() != body:
        raise CodecError("an entropy-coded array is cut off, or followed by more")
    shifted: Symbols = symbols - np.int32(largest)
    return shifted


def _fitted(x: NDArray[np.int64]) -> tuple[int, int]:
    """Log-odds of zero, in eighths of an octave, and of going on in the geometric tail, in elevenths."""
    others = int(np.count_nonzero(x))
    odds = log2((len(x) - others + 0.25) / (others + 0.25))
    more = log2(max(int(np.abs(x).sum()) / others - 1, 2**-9)) if others else -9
    return min(max(round(8 * odds) + 128, 0), 255), min(max(round(11 * more) + 100, 0), 255)


@lru_cache(maxsize=1024)
def _model(zeros: int, tail: int, largest: int) -> Any:
    import constriction

    odds, more = 2.0 ** ((zeros - 128) / 8), 2.0 ** ((tail - 100) / 11)
    side = (more / (1 + more)) ** np.arange(largest) + 1e-9
    side /= 2 * side.sum() * (1 + odds)
    probabilities = np.concatenate([side[::-1], [odds / (1 + odds)], side])
    return constriction.stream.model.Categorical(probabilities, perfect=False)


# --- arrays ---------------------------------------------------------------------------------------


def quantized(x: NDArray[np.float64], step: float, dead_zone: float = 0.5) -> Symbols:
    """x/step rounded to integers, those below `dead_zone` to 0."""
    scaled = np.asarray(x) / step
    symbols = np.rint(scaled)
    symbols[np.abs(scaled) < dead_zone] = 0
    return symbols.astype(np.int32)


def sendable(step: float) -> float:
    """The step as float32, which must be neither 0 nor infinite."""
    with np.errstate(over="ignore"):
        sent = float(np.float32(step))
    if not 0 < sent < np.inf:
        raise CodecError(f"a step of {step} cannot be sent as float32")
    return sent


def encode_steps(x: Vector, step: float) -> bytes:
    """A vector in uniform steps: the step as float32, then the entropy-coded symbols."""
    step = sendable(step)
    if not np.abs(x).max(initial=0.0) < step * (2**31 - 1):
        raise CodecError(f"entries up to {np.abs(x).max()} need more than 32 bits in steps of {step}")
    return struct.pack("<f", step) + entropy_encode(quantized(x, step))


def decode_steps(data: bytes, count: int) -> Vector:
    """The vector of `encode_steps`."""
    if len(data) < 4:
        raise CodecError("a coded vector has no step")
    (step,) = struct.unpack_from("<f", data)
    if not np.isfinite(step):
        raise CodecError("a coded vector has a step that is not finite")
    return float(step) * entropy_decode(data[4:], count).astype(float)


def encode_rows(rows: Matrix, bits: NDArray[np.int64]) -> bytes:
    """Rows of unit vectors, each in its own number of bits: a float32 scale, then packed levels."""
    parts = []
    for row, b in zip(rows, bits, strict=True):
        parts.append(struct.pack("<B", int(b)))
        if b > 0:
            parts.append(_packed_row(row, int(b)))
    return b"".join(parts)


def _packed_row(row: Vector, bits: int) -> bytes:
    top = (1 << (bits - 1)) - 1 if bits > 1 else 1
    scale = float(np.float32(np.abs(row).max() / top if bits > 1 else np.abs(row).mean()))
    levels = np.where(row >= 0, 1, 0) if bits == 1 else np.rint(row / (scale or 1.0)).clip(-top, top) + top
    planes = (levels.astype(np.uint32)[:, None] >> np.arange(bits)) & 1
    return struct.pack("<f", scale) + np.packbits(planes.astype(np.uint8)).tobytes()


def decode_rows(data: bytes, count: int, n: int) -> Matrix:
    """The rows of `encode_rows`; a row of 0 bits is 0."""
    if count > len(data):  # every row has at least its width
        raise CodecError(f"{len(data)} bytes cannot hold {count} rows")
    rows, at = np.zeros((count, n)), 0
    for k in range(count):
        bits, at = _byte(data, at), at + 1
        if bits:
            size = 4 + (bits * n + 7) // 8
            if bits > 16 or at + size > len(data):
                raise CodecError(f"row {k} of a coded matrix is cut off or malformed")
            rows[k], at = _unpacked_row(data[at : at + size], bits, n), at + size
    if at != len(data):
        raise CodecError(f"a coded matrix of {count} rows is followed by {len(data) - at} bytes too many")
    return rows


def _unpacked_row(data: bytes, bits: int, n: int) -> Vector:
    (scale,) = struct.unpack_from("<f", data)
    if not np.isfinite(scale):
        raise CodecError("a coded row has a scale that is not finite")
    planes = np.unpackbits(np.frombuffer(data[4:], np.uint8), count=bits * n).reshape(n, bits)
    levels = (planes.astype(np.int64) << np.arange(bits)).sum(axis=1)
    top = (1 << (bits - 1)) - 1
    row: Vector = float(scale) * (levels - top if bits > 1 else 2.0 * levels - 1)
    return row


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise CodecError("a coded matrix is cut off")
    return data[at]
