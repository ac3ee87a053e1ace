"""Coded links: what travels of theta, directions and gradients where both ends remember the last of each.

An agent knows theta from the directions it was sent, and its own gradient as the Master decoded it; a request
names both by digests.  All copies are made entry by entry from decoded integers, so they are the same bits on
every machine.  Both ends call the functions here.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError
from fedshed.linalg.arrays import Gradient, Scalars, Vector
from fedshed.protocol.limits import MOST_STEP_SIZES, Count
from fedshed.protocol.memo import Memo
from fedshed.protocol.messages import Message, Search, Share, Update
from fedshed.protocol.quantize import decode_logs, decode_steps, encode_logs, encode_steps, power_of_two

Digest: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
LARGEST_LOG = 4000  # quarters of an octave: 2^1000


# --- messages -------------------------------------------------------------------------------------


class FirstExchange(Message, frozen=True, tag="Begin"):
    """Cost, gradient and diagonal of the Hessian at the start; None is theta = 0."""

    start: Vector | None
    accuracy: float = 0.0


class AtCurrentPoint(Message, frozen=True, tag="Here"):
    """The update U_t at the point that each agent's own part names."""

    t: Count
    accuracy: float
    frame: bytes  # the units, while they are new


class AlongDirection(Message, frozen=True, tag="Along"):
    """A Search whose theta each agent's own part names, along a coded direction.

    Of step sizes with a common ratio only the first two travel, and their count.
    """

    direction: bytes
    etas: Scalars
    count: Count
    slopes: bool
    frame: bytes

    def __post_init__(self) -> None:
        if not (self.count >= 1 and min(self.count, 2) <= len(self.etas) <= self.count <= MOST_STEP_SIZES):
            most = f"from 1 to {MOST_STEP_SIZES} are allowed"
            raise ValueError(f"{self.count} step sizes from {len(self.etas)}; {most}")


class FullState(Message, frozen=True, tag="Whole"):
    """The point, the agent's gradient as the Master knows it, and the units, for an agent that lost them."""

    theta: Vector
    gradient: Vector | None
    frame: bytes


class AgentLink(Message, frozen=True, tag="Own"):
    """Which theta and which gradient of the agent's a request goes on from, and what else is for it alone."""

    point: Digest
    gradient: Digest | None  # None: gradients come whole
    whole: FullState | None
    part: Share | None


class FirstReply(Message, frozen=True, tag="First"):
    """f^(i), g^(i) and the diagonal of the Hessian at the start, in quarters of an octave."""

    loss: float
    gradient: Gradient
    diagonal: bytes


class Forgot(Message, frozen=True):
    """The agent does not hold what the digests name."""


class FirstRequest(Struct, frozen=True):
    """`Begin` as an agent reads it."""

    theta: Vector
    accuracy: float


# --- digests --------------------------------------------------------------------------------------


def digest(*parts: bytes) -> int:
    """32 bits that distinguish copies; they detect accidents but do not protect against attacks."""
    hasher = blake2b(digest_size=4)
    for part in parts:
        hasher.update(len(part).to_bytes(4, "little") + part)
    return int.from_bytes(hasher.digest(), "little")


def digest_of_point(theta: Vector, frame: bytes) -> int:
    """The name of a point in its units."""
    return _digest_of_point(theta.tobytes(), frame)


@lru_cache(maxsize=16)  # agents of one process are at one point
def _digest_of_point(theta: bytes, frame: bytes) -> int:
    return digest(theta, frame)


def moved(theta: Vector, eta: float, direction: Vector) -> Vector:
    """theta + eta * direction, read-only: one array for all agents of a process."""
    return _moved(theta.tobytes(), eta, direction.tobytes())


@lru_cache(maxsize=16)
def _moved(theta: bytes, eta: float, direction: bytes) -> Vector:
    point: Vector = np.frombuffer(theta) + eta * np.frombuffer(direction)
    point.flags.writeable = False
    return point


def copied(reference: Vector | None, units: Vector | None, sent: Vector) -> Vector:
    """The gradient as both ends know it: reference + units * sent; neither for an exact one."""
    change = sent if units is None else units * sent
    copy: Vector = 0.0 + change if reference is None else reference + change
    return copy


# --- units: a diagonal in quarters of an octave ---------------------------------------------------------


def encode_diagonal(values: Vector) -> bytes:
    """log2 of each entry in quarter steps, coded as differences; entries that are 0 by a bit mask."""
    positive = values > 0
    logs = np.rint(4 * np.log2(values[positive])).clip(-LARGEST_LOG, LARGEST_LOG)
    mask = b"" if positive.all() else np.packbits(positive).tobytes()
    return bytes([bool(mask)]) + mask + encode_logs(logs)


def roots_of(coded: bytes, n: int) -> Vector:
    """Square roots of a coded diagonal, 2^(k/8), the same on every machine, read-only; 0 where it is 0."""
    roots: Vector | None = _ROOTS.get((coded, n))
    if roots is None:
        roots = _roots_of(coded, n)
        _ROOTS.put((coded, n), roots, roots.nbytes + len(coded))
    return roots


_ROOTS = Memo(8 * 2**20)  # an agent, the Master's check and its first step look at the same diagonal


def _roots_of(coded: bytes, n: int) -> Vector:
    head = 1 + (coded[:1] == b"\1") * -(-n // 8)
    if coded[:1] not in (b"\0", b"\1") or len(coded) < head:
        raise CodecError("a coded diagonal is cut off or malformed")
    positive = np.ones(n, dtype=bool)
    if head > 1:
        positive = np.unpackbits(np.frombuffer(coded[1:head], np.uint8), count=n).astype(bool)
    logs = decode_logs(coded[head:], int(positive.sum()), LARGEST_LOG)
    roots = np.zeros(n)
    roots[positive] = _powers(logs)
    roots.flags.writeable = False
    return roots


def _powers(eighths: NDArray[np.int64]) -> Vector:
    """2^(k/8)."""
    table = np.array([power_of_two(j, 8) for j in range(8)])
    powers: Vector = np.ldexp(table[eighths & 7], eighths >> 3)
    return powers


@lru_cache(maxsize=4)
def units_of(coded: bytes, n: int) -> Vector:
    """The square roots, 1 where the diagonal is 0: what numbers are divided by; read-only."""
    roots = roots_of(coded, n)
    units: Vector = np.where(roots > 0, roots, 1.0)
    units.flags.writeable = False
    return units


# --- directions -----------------------------------------------------------------------------------


def encode_direction(d: Vector, units: Vector, step: float) -> bytes:
    """A direction in uniform steps of units * d; step 0: exactly."""
    return b"\1" + encode_steps(units * d, step) if step else b"\0" + d.astype("<f8").tobytes()


@lru_cache(maxsize=4)
def decode_direction(raw: bytes, frame: bytes, n: int) -> Vector:
    """The direction as both ends take it, read-only: one array for all agents of a process."""
    if raw[:1] == b"\1":
        d: Vector = decode_steps(raw[1:], n) / units_of(frame, n)
    elif raw[:1] == b"\0" and len(raw) == 1 + 8 * n:
        d = np.frombuffer(raw[1:], "<f8").astype(float)
    else:
        raise CodecError(f"{len(raw)} bytes are not a coded direction of {n} entries")
    if not np.isfinite(d).all():
        raise CodecError("a direction holds NaN or infinity")
    d.flags.writeable = False
    return d


# --- searches -------------------------------------------------------------------------------------


def along(search: Search, direction: bytes, frame: bytes) -> AlongDirection:
    """A search as it travels."""
    count = len(search.etas)
    short = AlongDirection(direction, search.etas[:2], count, search.slopes, frame)
    same = np.array_equal(step_sizes_of(short), search.etas)
    return short if same else AlongDirection(direction, search.etas, count, search.slopes, frame)


def step_sizes_of(part: AlongDirection) -> Scalars:
    """All step sizes: those that travel, or the geometric sequence that the first two begin."""
    return part.etas if len(part.etas) == part.count else _sequence(*part.etas[:2].tolist(), part.count)


@lru_cache(maxsize=4)
def _sequence(first: float, second: float, count: int) -> Scalars:
    """The first numbers of the geometric sequence, read-only."""
    with np.errstate(divide="ignore"):  # too far away: rejected later
        ratios = np.full(count, np.float64(second) / first)
    ratios[0] = first
    numbers: Scalars = np.multiply.accumulate(ratios)
    numbers.flags.writeable = False
    return numbers


def search_from(theta: Vector, part: AlongDirection, frame: bytes) -> Search:
    """The search that a coded one stands for."""
    direction = decode_direction(part.direction, frame, len(theta))
    return Search(theta, direction, step_sizes_of(part), part.slopes)


def coded_parts(parts: tuple[Message, ...], direction: bytes, frame: bytes, new: bool) -> tuple[Message, ...]:
    """The common parts of a request as they travel; the units go along while they are new."""
    sent = frame if new else b""

    def coded(part: Message) -> Message:
        if isinstance(part, Search):
            return along(part, direction, sent)
        at_trial_point = isinstance(part, Update) and part.theta is None
        return (
            part
            if at_trial_point or not isinstance(part, Update)
            else AtCurrentPoint(part.t, part.accuracy, sent)
        )

    return tuple(coded(part) for part in parts)
