"""Arrays in few bits: uniform steps, packed levels, and an entropy coder (constriction).

Everything that is decoded is decoded the same on every machine: symbols are integers, steps are float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import lru_cache
from math import isfinite, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.limits import check_numbers

Symbols = NDArray[np.int32]
LARGEST = 1 << 10  # of larger symbols the low bits are sent as they are, and the rest is coded
SPLIT = 0xFF00  # in place of the largest magnitude: a split stream, and by how many bits
PIECE = 1 << 16  # numbers that are decoded at a time; a multiple of 8
_SIDE = struct.Struct("<BBH")  # odds of zero, mean of the others, largest magnitude
_STEP = struct.Struct("<f")


def entropy_encode(symbols: NDArray[Any]) -> bytes:
    """Integers as a range-coded stream: P(0) and a geometric tail are fitted, 4 bytes of side information."""
    x = np.ravel(symbols)
    low, high = x.min(initial=0), x.max(initial=0)
    if not -(2**31) <= low <= high < 2**31:
        raise CodecError(
            f"values from {low:.3g} to {high:.3g} steps do not fit into 32 bits; standardise the columns, or "
            "use an algorithm that sends plain numbers, such as newton"
        )
    x, largest = x.astype(np.int32, copy=False), max(-int(low), int(high))
    return _fit_stream(x, largest) if largest < LARGEST else _split(x, int(low), int(high))


def _split(x: Symbols, low: int, high: int) -> bytes:
    """The low bits of each symbol, then the stream of the rest."""
    bits = max(-low, high).bit_length() - LARGEST.bit_length() + 2
    rest = _fit_stream(x >> bits, max(-(low >> bits), high >> bits))
    return _SIDE.pack(0, 0, SPLIT + bits) + _low_bits(x, bits) + rest


def _fit_stream(x: Symbols, largest: int) -> bytes:
    return stream(x + largest, largest, int(np.count_nonzero(x)), int(np.abs(x).sum()))


def stream(indices: Symbols, largest: int, others: int, total: int) -> bytes:
    """Symbols plus the largest magnitude: how many are not 0, and the sum of magnitudes, give the model."""
    zeros, tail = _fit_probabilities(len(indices), others, total)
    side = _SIDE.pack(zeros, tail, largest)
    return side + _range_encode(indices, _model(zeros, tail, largest)) if largest else side


def _range_encode(indices: Symbols, model: Any) -> bytes:
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(indices, model)
    return bytes(encoder.get_compressed().astype("<u4", copy=False).tobytes())


def entropy_decode(data: bytes, count: int) -> Symbols:
    """The `count` integers of a stream; anything else raises CodecError."""
    x: Symbols = np.concatenate([np.zeros(0, np.int32), *_pieces(data, count)])
    return x


def _pieces(data: bytes, count: int) -> Iterator[Symbols]:
    """The integers of a stream, piece by piece; the last step checks that it ends where it should."""
    if len(data) < _SIDE.size or count < 0:
        raise CodecError(f"{len(data)} bytes are too few for an entropy-coded array")
    check_numbers(count, len(data))
    zeros, tail, largest = _SIDE.unpack_from(data)
    body = data[_SIDE.size :]
    if largest > SPLIT:
        return _join_symbols(body, count, largest - SPLIT)
    if largest == 0:
        if body:
            raise CodecError(f"an array of zeros is followed by {len(body)} bytes")
        return (np.zeros(size, dtype=np.int32) for size in _lengths(count))
    if len(body) % 4 or largest >= LARGEST:
        raise CodecError("an entropy-coded array is cut off or malformed")
    return _range_decode(body, count, _model(zeros, tail, largest), largest)


def _lengths(count: int) -> Iterator[int]:
    """The lengths of the pieces into which `count` numbers are divided."""
    return (min(PIECE, count - start) for start in range(0, count, PIECE))


def _range_decode(body: bytes, count: int, model: Any, largest: int) -> Iterator[Symbols]:
    import constriction

    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(body, "<u4").astype(np.uint32, copy=False))
    encoder = constriction.stream.queue.RangeEncoder()
    for size in _lengths(count):
        try:
            indices: Symbols = decoder.decode(model, size)
        except Exception as error:  # constriction raises several kinds for a stream that is not one
            raise CodecError(f"an entropy-coded array cannot be decoded: {error}") from error
        encoder.encode(indices, model)
        yield indices - np.int32(largest)
    # A range decoder reads on past the end and stops before it: only encoding again tells.
    if encoder.get_compressed().astype("<u4", copy=False).tobytes() != body:
        raise CodecError("an entropy-coded array is cut off, or followed by more")


def _join_symbols(body: bytes, count: int, bits: int) -> Iterator[Symbols]:
    size = (bits * count + 7) // 8
    if bits > 24 or len(body) < size + _SIDE.size or body[size + 3] >= SPLIT >> 8:
        raise CodecError("an entropy-coded array is cut off or malformed")
    limit = 2**31 >> bits
    low = _from_low_bits(body[:size], count, bits)
    for high in _pieces(body[size:], count):
        if limit < LARGEST and not -limit <= high.min(initial=0) <= high.max(initial=0) < limit:
            raise CodecError("an entropy-coded array holds more than 32 bits")
        yield (high << bits) | next(low)


def _low_bits(x: NDArray[Any], bits: int) -> bytes:
    """The lowest bits of each integer, from the lowest up, without gaps."""
    octets = x.astype("<i4", copy=False).view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(octets, axis=1, count=bits, bitorder="little")).tobytes()


def _from_low_bits(data: bytes, count: int, bits: int) -> Iterator[Symbols]:
    """The integers whose lowest bits those are, the others 0, piece by piece: 32 bytes each on the way."""
    octets = np.frombuffer(data, np.uint8)
    for k, size in enumerate(_lengths(count)):
        mine = octets[k * PIECE * bits // 8 :][: (bits * size + 7) // 8]
        planes = np.zeros((size, 32), np.uint8)
        planes[:, :bits] = np.unpackbits(mine, count=bits * size).reshape(size, bits)
        yield np.packbits(planes, bitorder="little").view("<i4").astype(np.int32, copy=False)


def _fit_probabilities(count: int, others: int, total: int) -> tuple[int, int]:
    """Log-odds of zero, in eighths of an octave, and of going on in the geometric tail, in elevenths."""
    odds = log2((count - others + 0.25) / (others + 0.25))
    more = log2(max(total / others - 1, 2**-9)) if others else -9
    return min(max(round(8 * odds) + 128, 0), 255), min(max(round(11 * more) + 100, 0), 255)


@lru_cache(maxsize=1024)
def _model(zeros: int, tail: int, largest: int) -> Any:
    """The odds of each symbol, the same on every machine: nothing here but sums, products and quotients."""
    import constriction

    odds, (weights, sums) = power_of_two(zeros - 128, 8), _geometric(tail)
    side = weights[:largest] / (2 * sums[largest - 1] * (1 + odds))
    probabilities = np.concatenate([side[::-1], [odds / (1 + odds)], side])
    return constriction.stream.model.Categorical(probabilities, perfect=False)


@lru_cache(maxsize=256)
def _geometric(tail: int) -> tuple[Vector, Vector]:
    """Weights of the magnitudes 1, 2, ..., none so small that it could not be coded, and their sums."""
    more = power_of_two(tail - 100, 11)
    ratios = np.full(LARGEST - 1, more / (1 + more))
    ratios[0] = 1.0
    weights: Vector = np.multiply.accumulate(ratios) + 1e-9
    return weights, np.add.accumulate(weights)


@lru_cache(maxsize=512)
def power_of_two(numerator: int, denominator: int) -> float:
    """2^(a/b), rounded correctly: powers of floats differ from one machine to the next."""
    with localcontext(prec=30):
        return float(Decimal(2) ** (Decimal(numerator) / denominator))


def encode_logs(logs: Vector) -> bytes:
    """Whole logarithms as entropy-coded differences: neighbours are alike."""
    return entropy_encode(np.diff(logs, prepend=0.0).astype(np.int32))


def decode_logs(data: bytes, count: int, largest: int) -> NDArray[np.int64]:
    """The logarithms of `encode_logs`; one beyond the largest raises CodecError."""
    logs: NDArray[np.int64] = np.cumsum(entropy_decode(data, count).astype(np.int64))
    if np.abs(logs).max(initial=0) > largest:
        raise CodecError("logarithms of a diagonal are out of range")
    return logs


# --- arrays ---------------------------------------------------------------------------------------


def quantize_values(
    x: NDArray[np.float64], step: float | Matrix, dead_zone: float = 0.5
) -> NDArray[np.float64]:
    """x/step rounded to integers, those below `dead_zone` (at least a half) to 0."""
    scaled = x / step
    symbols: NDArray[np.float64] = np.rint(scaled)
    if dead_zone > 0.5:
        symbols[np.abs(scaled) < dead_zone] = 0
    return symbols


def encode_steps(x: Vector, step: float, dead_zone: float = 0.5) -> bytes:
    """A vector in uniform steps: the step as float32, then the entropy-coded symbols."""
    head, sent = sendable(step)
    return head + entropy_encode(quantize_values(x, sent, dead_zone))


def encode_symbols(symbols: NDArray[np.float64], step: float) -> tuple[bytes, Vector]:
    """Symbols that are rounded already, as `encode_steps` sends them, and what they are decoded to."""
    head, sent = sendable(step)
    return head + entropy_encode(symbols), sent * symbols


def sendable(step: float) -> tuple[bytes, float]:
    """The step as float32, which must be neither 0 nor infinite: its bytes and its value."""
    try:
        head = _STEP.pack(step)
    except OverflowError:
        head = _STEP.pack(np.inf)
    (sent,) = _STEP.unpack(head)
    if not 0 < sent < np.inf:
        raise CodecError(f"a step of {step} cannot be sent as float32")
    return head, sent


def decode_steps(data: bytes, count: int) -> Vector:
    """The vector of `encode_steps`."""
    if len(data) < _STEP.size:
        raise CodecError("a coded vector has no step")
    (step,) = _STEP.unpack_from(data)
    if not isfinite(step):
        raise CodecError("a coded vector has a step that is not finite")
    pieces, x, at = _pieces(data[_STEP.size :], count), np.empty(count), 0
    for piece in pieces:
        x[at : at + len(piece)] = step * piece
        at += len(piece)
    return x


def encode_rows(rows: Matrix, bits: NDArray[np.int64]) -> bytes:
    """Rows of unit vectors, each in its own number of bits: a float32 scale, then packed levels."""
    parts = []
    for row, b in zip(rows, bits, strict=True):
        parts.append(struct.pack("<B", int(b)))
        if b > 0:
            parts.append(_pack_row(row, int(b)))
    return b"".join(parts)


def _pack_row(row: Vector, bits: int) -> bytes:
    top = (1 << (bits - 1)) - 1 if bits > 1 else 1
    scale = float(np.float32(np.abs(row).max() / top if bits > 1 else np.abs(row).mean()))
    levels = np.where(row >= 0, 1, 0) if bits == 1 else np.rint(row / (scale or 1.0)).clip(-top, top) + top
    return _STEP.pack(scale) + _low_bits(levels, bits)


def decode_rows(data: bytes, count: int, n: int) -> Matrix:
    """The rows of `encode_rows`; a row of 0 bits is 0."""
    if count > len(data):  # every row has at least its width
        raise CodecError(f"{len(data)} bytes cannot hold {count} rows")
    check_numbers(count * n, len(data))
    rows, at = np.zeros((count, n)), 0
    for k in range(count):
        bits, at = _byte(data, at), at + 1
        if bits:
            size = 4 + (bits * n + 7) // 8
            if bits > 16 or at + size > len(data):
                raise CodecError(f"row {k} of a coded matrix is cut off or malformed")
            _unpack_row(data[at : at + size], bits, rows[k])
            at += size
    if at != len(data):
        raise CodecError(f"a coded matrix of {count} rows is followed by {len(data) - at} bytes too many")
    return rows


def _unpack_row(data: bytes, bits: int, row: Vector) -> None:
    """Fill in a row."""
    (scale,) = _STEP.unpack_from(data)
    if not isfinite(scale):
        raise CodecError("a coded row has a scale that is not finite")
    top, at = (1 << (bits - 1)) - 1, 0
    for levels in _from_low_bits(data[_STEP.size :], len(row), bits):
        row[at : at + len(levels)] = scale * (levels - top if bits > 1 else 2.0 * levels - 1)
        at += len(levels)


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise CodecError("a coded matrix is cut off")
    return data[at]
