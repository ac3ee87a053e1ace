"""Arrays in few bits: uniform steps, packed levels, and an entropy coder (constriction).

Everything that is decoded is decoded the same on every machine: symbols are integers, steps are float32.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.arrays import Matrix, Vector
from fedshed.errors import CodecError

Symbols = NDArray[np.int32]
LARGEST = 1 << 14  # symbols beyond this are sent as plain integers
_SIDE = struct.Struct("<BBH")  # probability of zero, decay of the tail, largest magnitude


def entropy_encode(symbols: NDArray[Any]) -> bytes:
    """Integers as a range-coded stream: P(0) and a geometric tail are fitted, 4 bytes of side information."""
    x = np.ascontiguousarray(symbols, dtype=np.int32).ravel()
    largest = int(np.abs(x).max(initial=0))
    if largest >= LARGEST:
        return _SIDE.pack(0, 0, 0xFFFF) + x.astype("<i4").tobytes()
    zeros, tail = _fitted(x)
    side = _SIDE.pack(zeros, tail, largest)
    if largest == 0:
        return side
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(x + largest, _model(zeros, tail, largest))
    return side + bytes(encoder.get_compressed().astype("<u4").tobytes())


def entropy_decode(data: bytes, count: int) -> Symbols:
    """The `count` integers of a stream; anything else raises CodecError."""
    if len(data) < _SIDE.size or count < 0:
        raise CodecError(f"{len(data)} bytes are too few for an entropy-coded array")
    zeros, tail, largest = _SIDE.unpack_from(data)
    body = data[_SIDE.size :]
    if largest == 0xFFFF:
        if len(body) != 4 * count:
            raise CodecError(f"{len(body)} bytes are not {count} integers")
        return np.frombuffer(body, "<i4").astype(np.int32)
    if largest == 0:
        return np.zeros(count, dtype=np.int32)
    return _decoded(body, count, zeros, tail, largest)


def _decoded(body: bytes, count: int, zeros: int, tail: int, largest: int) -> Symbols:
    import constriction

    if len(body) % 4 or largest >= LARGEST:
        raise CodecError("an entropy-coded array is cut off or malformed")
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(body, "<u4").astype(np.uint32))
    try:
        symbols = decoder.decode(_model(zeros, tail, largest), count)
    except Exception as error:  # constriction raises several kinds for a stream that is not one
        raise CodecError(f"an entropy-coded array cannot be decoded: {error}") from error
    return np.asarray(symbols, dtype=np.int32) - largest


def _fitted(x: Symbols) -> tuple[int, int]:
    """P(0) and the decay of the geometric tail, each on a grid of 1/256."""
    magnitudes = np.abs(x[x != 0])
    zero = 1 - len(magnitudes) / max(len(x), 1)
    decay = 1 - 1 / magnitudes.mean() if len(magnitudes) else 0.0
    return int(np.clip(round(256 * zero), 0, 255)), int(np.clip(round(256 * decay), 0, 255))


def _model(zeros: int, tail: int, largest: int) -> Any:
    import constriction

    zero, decay = (zeros + 0.5) / 256.5, min((tail + 0.25) / 256.5, 0.9995)
    side = (1 - zero) * decay ** np.arange(largest) + 1e-9
    probabilities = np.concatenate(
        [side[::-1] / (2 * side.sum()) * (1 - zero), [zero], side / (2 * side.sum()) * (1 - zero)]
    )
    return constriction.stream.model.Categorical(probabilities, perfect=False)


# --- arrays ---------------------------------------------------------------------------------------


def quantized(x: NDArray[np.float64], step: float, dead_zone: float = 0.5) -> Symbols:
    """x/step rounded to integers, those below `dead_zone` to 0."""
    scaled = np.asarray(x) / step
    symbols = np.rint(scaled).clip(-(2**31) + 1, 2**31 - 1)
    symbols[np.abs(scaled) < dead_zone] = 0
    return symbols.astype(np.int32)


def encode_steps(x: Vector, step: float) -> bytes:
    """A vector in uniform steps: the step as float32, then the entropy-coded symbols."""
    step = float(np.float32(step))
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
