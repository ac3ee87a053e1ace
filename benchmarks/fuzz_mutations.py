"""Mutations of bytes, of text, and of the values inside a message."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fedshed.fitting.stages import RUN, STUDY, digest

NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -1.0, float("nan"), float("inf"),
    1e308, 5e-324, "", "x", "\x1b[31m", "y ~ x", "\u202e", "a" * 5000, b"", b"\0", b"\xff" * 9,
    np.full(3, np.nan).tobytes(), np.full(3, 1e308).tobytes(), np.zeros(3).tobytes(), np.ones(200).tobytes(),
    [], [[]], [0] * 40, {}, {"x": 1}, {"": {}},
)  # fmt: skip
WORDS = (
    b"(", b")", b"~", b"+", b"**", b"^", b":", b"*", b"|", b"`", b"[", b"]", b"{", b"}", b'"', b"'", b",",
    b"=", b"\n", b"\r", b"\0", b"\xff", b"\xe9", b"nan", b"inf", b"-1", b"1e999", b"9" * 400, b"C(", b"bs(",
    b"poly(", b"I(", b"log(", b"exp(", b"df=", b"knots=[", b"__import__('os')", b"x", b" 0 ", b"//", b"\\",
    b"@", b"lambda:0", b"\xf0\x9f\x98\x80", b"[[x]]", b"true", b"1979-05-27", b"\x1b[31m", b";", b"\t", b"#",
)  # fmt: skip


def mutated(samples: list[bytes], style: str, rng: np.random.Generator) -> bytes:
    """One of the samples with one to four changes."""
    data = samples[rng.integers(len(samples))]
    for _ in range(min(rng.geometric(0.6), 4)):
        if style == "reply":  # its first byte says when it is sent
            data = data[:1] + mutated([data[1:]], "message", rng)
        elif style == "text":
            data = _text(data, samples, rng)
        elif rng.random() < 0.75 and style != "bytes":
            data = (_envelope if style == "envelope" else _message)(data, rng)
        else:
            data = _bytes(data, samples, rng)
    return data


def _bytes(data: bytes, samples: list[bytes], rng: np.random.Generator) -> bytes:
    """Flipped, cut, repeated, inserted, or the end of another."""
    at, size = (int(rng.integers(len(data) + 1)) for _ in range(2))
    kind = rng.integers(6)
    if kind == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at : at + min(size, 64)] * 2 + data[at + min(size, 64) :]
    if kind == 3:
        return data[:at] + rng.bytes(int(rng.integers(1, 9))) + data[at:]
    if kind == 4:
        other = samples[rng.integers(len(samples))]
        return data[:at] + other[int(rng.integers(len(other) + 1)) :]
    return data[:at] + bytes([int(rng.integers(256))]) * min(4, len(data) - at) + data[at + 4 :]


def _text(data: bytes, samples: list[bytes], rng: np.random.Generator) -> bytes:
    """Words of the language in odd places, or what may happen to any bytes."""
    if rng.random() < 0.4:
        return _bytes(data, samples, rng)
    at, skip = int(rng.integers(len(data) + 1)), int(rng.integers(4))
    return data[:at] + WORDS[rng.integers(len(WORDS))] + data[at + skip :]


def _message(data: bytes, rng: np.random.Generator) -> bytes:
    """A value inside is another; the head of a message mostly stays."""
    try:
        value = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(_changed(value, rng))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return data


def _envelope(data: bytes, rng: np.random.Generator) -> bytes:
    """The same of an envelope, whose stage keeps the name that it must have."""
    try:
        key, part, opening, payload = msgspec.msgpack.decode(data)
        if opening is not None and rng.random() < 0.5:
            opening = _message(opening, rng)
            key = key[: STUDY + RUN] + digest(opening)
        elif rng.random() < 0.7:
            payload = _message(payload, rng)
        else:
            part = NASTY[rng.integers(len(NASTY))]
        return msgspec.msgpack.encode((key, part, opening, payload))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return data


def _changed(value: Any, rng: np.random.Generator, depth: int = 0) -> Any:
    """A copy in which one value, some levels down, is another, missing, or there twice."""
    if isinstance(value, list) and value and (depth < 1 or rng.random() < 0.9):
        at = int(rng.integers(2 if depth == 0 and len(value) > 2 and rng.random() < 0.9 else 0, len(value)))
        if depth and rng.random() < 0.15:
            return value[:at] + value[at + 1 :] if rng.random() < 0.5 else value[:at] + value[at:] * 2
        return [_changed(one, rng, depth + 1) if k == at else one for k, one in enumerate(value)]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = list(value)[rng.integers(len(value))]
        if rng.random() < 0.15:
            return {key: one for key, one in value.items() if key != name}
        return value | {name: _changed(value[name], rng, depth + 1)}
    return _another(value, rng)


def _another(value: Any, rng: np.random.Generator) -> Any:
    """Something nasty, or a value of the same kind that is near or far."""
    if isinstance(value, bytes) and len(value) % 8 == 0 and value and rng.random() < 0.5:
        array = np.frombuffer(value).copy()
        array[rng.integers(len(array))] *= rng.choice([-1.0, 0.0, 1e9, 1e200, np.nan])
        return array.tobytes()
    if isinstance(value, int | float) and rng.random() < 0.5:
        return (-value, value + 1, value - 1, 1000 * value)[rng.integers(4)]
    return NASTY[rng.integers(len(NASTY))]
