"""What PEN sends, and what both ends make of it: every function here runs alike at Master and agent.

A copy is an agent's gradient g and Hessian W in the coordinates of the frame: g = G g_i, W = G H_i G'.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import CodecError
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message
from fedshed.protocol.quantize import decode_steps, encode_steps, entropy_decode, entropy_encode

GRADIENT_STEP = 0.01  # of a gradient's innovation and of a step, in units of the Newton decrement
DEAD_ZONE = 0.6  # in steps: innovations below it are 0
LOW, HIGH = np.exp(-0.85), np.exp(1.2)  # eigenvalues of the Hessian that a frame may have
MOST_CHANGES = 4  # of frame in one move
SETTLED = 1.3  # |log w| below which secants help


class Start(Message, frozen=True):
    """Cost, gradient and Hessian at theta, in the agent's own units."""

    theta: Vector


class Move(Message, frozen=True):
    """A change of frame and a step, both coded; `scale` is the Newton decrement, the unit of both."""

    t: Count
    change: bytes
    step: bytes
    scale: float
    curvature: bool  # whether the Hessian's innovation is asked for


class Whole(Message, frozen=True):
    """The Master's frame and copy in full, for an agent that lost its own."""

    G: Matrix
    theta: Vector
    W: Packed
    g: Vector


class Mine(Message, frozen=True):
    """Which copy the Master holds: a digest of everything it was made of."""

    digest: int
    whole: Whole | None


class First(Message, frozen=True):
    """Loss, coded gradient, logarithms of the diagonal, and the Hessian scaled by it."""

    loss: float
    gradient: bytes
    diagonal: bytes
    hessian: bytes


class Innovation(Message, frozen=True):
    """Loss, what was not predicted of the gradient, W = c W_predicted + R, and the error ||R - R_q||^2."""

    loss: float
    gradient: bytes
    c: float
    hessian: bytes
    error: float


class Forgot(Message, frozen=True):
    """The agent has no copy with that digest."""


class Frame(Struct, frozen=True):
    """The common coordinates, and theta as both ends know it."""

    G: Matrix
    theta: Vector


class Copy(Struct, frozen=True):
    """One agent's gradient and Hessian in the coordinates of the frame, as decoded."""

    digest: int
    W: Matrix
    g: Vector

    def matvec(self, s: Vector) -> Vector:
        """W s."""
        product: Vector = self.W @ s
        return product


# --- the first exchange -----------------------------------------------------------------------------


def first_answer(loss: float, g: Vector, H: Matrix, step: float) -> First:
    """Everything in the agent's own units: g in 1/511 of its largest entry, H scaled by its own diagonal."""
    logs = _logs(np.maximum(np.diag(H), 1e-6 * np.diag(H).max()))
    r = _roots(logs)
    triangle = pack(H / r[:, None] / r)
    top = float(np.abs(g).max()) or 1.0
    return First(loss, encode_steps(g, top / 511), _encode_logs(logs), _encode_triangle(triangle, step))


def decoded_first(first: First, n: int) -> Copy:
    """The copy that both ends make of a first answer, in the identity frame."""
    r = _roots(_decode_logs(first.diagonal, n))
    H = unpack(decode_steps(first.hessian, n * (n + 1) // 2), n) * r[:, None] * r
    return Copy(_digest(0, first.gradient, first.diagonal, first.hessian), H, decode_steps(first.gradient, n))


def first_error(step: float, n: int) -> float:
    """Expected energy of the first Hessian's error in its own units: half of n^2 uniform errors."""
    return step**2 / 24 * n * n


def identity(theta: Vector) -> Frame:
    """The frame both ends start with."""
    return Frame(np.eye(len(theta)), theta)


# --- changes of frame -------------------------------------------------------------------------------


def diagonal_change(diagonal: Vector) -> bytes:
    """A change to coordinates in which this diagonal is near 1: logarithms in quarter steps."""
    coded = _encode_logs(_logs(diagonal))
    return b"D" + len(coded).to_bytes(4, "little") + coded


def frame_change(A: Matrix) -> bytes:
    """The coarsest coded B with all eigenvalues of B A B' within bounds; none while they are."""
    w, V = np.linalg.eigh(A)
    if w[0] >= LOW and w[-1] <= HIGH:
        return b""
    alpha = float(np.float32(np.exp(-np.log(w).mean() / 2)))
    Y = pack((V / (alpha * np.sqrt(w))) @ V.T - np.eye(len(A)))
    step = 4.0
    while step > 1e-6:
        coded = struct.pack("<f", alpha) + _encode_triangle(Y, step)
        change = b"B" + len(coded).to_bytes(4, "little") + coded
        B = change_matrix(change, len(A))
        values = np.linalg.eigvalsh(B @ A @ B.T)
        if values[0] >= LOW and values[-1] <= HIGH:
            break
        step /= 1.5
    return change


def change_matrix(change: bytes, n: int) -> Matrix:
    """The matrix of a coded change: a diagonal, a symmetric matrix, or one after the other."""
    B, count = np.eye(n), 0
    while change:
        if (count := count + 1) > MOST_CHANGES:
            raise CodecError(f"a move changes the frame at most {MOST_CHANGES} times")
        kind, size = change[:1], int.from_bytes(change[1:5], "little")
        body, change = change[5 : 5 + size], change[5 + size :]
        if len(body) != size or kind not in (b"D", b"B"):
            raise CodecError("a change of frame is cut off or malformed")
        B = _one_change(kind, body, n) @ B
    return B


def _one_change(kind: bytes, body: bytes, n: int) -> Matrix:
    if kind == b"D":
        return np.diag(1 / _roots(_decode_logs(body, n)))
    (alpha,) = struct.unpack_from("<f", body.ljust(4, b"\0"))
    if not np.isfinite(alpha):
        raise CodecError("a change of frame has a scale that is not finite")
    return float(alpha) * (np.eye(n) + unpack(decode_steps(body[4:], n * (n + 1) // 2), n))


def changed(frame: Frame, change: bytes) -> Frame:
    """The frame after a coded change."""
    return replace(frame, G=change_matrix(change, len(frame.theta)) @ frame.G) if change else frame


# --- moves ------------------------------------------------------------------------------------------


def coded_move(t: int, change: bytes, u: Vector, decrement: float, curvature: bool = True) -> Move:
    """A step in whitened coordinates, in units of the decrement."""
    return Move(t, change, encode_steps(u, GRADIENT_STEP * decrement), decrement, curvature)


def decoded_step(move: Move, n: int) -> Vector:
    """The step as both ends take it."""
    return decode_steps(move.step, n)


def moved(frame: Frame, move: Move) -> Frame:
    """theta <- theta + G'u in the (changed) frame."""
    return replace(frame, theta=frame.theta + decoded_step(move, len(frame.theta)) @ frame.G)


def predicted(copy: Copy, move: Move) -> Copy:
    """The copy in the changed frame, its gradient predicted at the new point: g + W u."""
    n = len(copy.g)
    W, g = copy.W, copy.g
    if move.change:
        B = change_matrix(move.change, n)
        W, g = B @ W @ B.T, B @ g
        W = (W + W.T) / 2
    return Copy(copy.digest, W, g + W @ decoded_step(move, n))


def innovation(
    loss: float, g: Vector, W: Matrix | None, prediction: Copy, move: Move, step: float, limit: float
) -> Innovation:
    """What the prediction missed, coded; the Hessian's step grows until the message fits the link."""
    rest = encode_steps(g - prediction.g, GRADIENT_STEP * move.scale)
    if W is None:
        return Innovation(loss, rest, 1.0, b"", 0.0)
    energy = float(np.sum(np.square(prediction.W)))
    c = float(np.float32(np.sum(prediction.W * W) / energy)) if energy > 0 else 1.0
    R = pack(W - c * prediction.W)
    coded = _encode_triangle(R, step)
    while len(coded) + len(rest) > limit and step < 1e6:
        step *= 1.5
        coded = _encode_triangle(R, step)
    missed = unpack(R - decode_steps(coded, len(R)), len(g))
    return Innovation(loss, rest, c, coded, float(np.sum(np.square(missed))))


def corrected_copy(prediction: Copy, move: Move, answer: Innovation) -> Copy:
    """The prediction with the decoded innovation: what both ends go on from."""
    n, W = len(prediction.g), prediction.W
    if move.curvature:
        W = answer.c * W + unpack(decode_steps(answer.hessian, n * (n + 1) // 2), n)
    unit = struct.pack("<dd", move.scale, answer.c)
    digest = _digest(prediction.digest, move.change, move.step, unit, answer.gradient, answer.hessian)
    return Copy(digest, W, prediction.g + decode_steps(answer.gradient, n))


def undecodable(part: Start | Move, answer: First | Innovation, n: int) -> str | None:
    """Why an answer cannot be made a copy of, if it cannot."""
    try:
        if isinstance(answer, First):
            copy = decoded_first(answer, n)
        else:
            assert isinstance(part, Move)
            copy = corrected_copy(Copy(0, np.zeros((n, n)), np.zeros(n)), part, answer)
    except CodecError as error:
        return str(error)
    finite = np.isfinite(copy.W).all() and np.isfinite(copy.g).all()
    return None if finite and getattr(answer, "error", 0.0) >= 0 else "its copy would not be finite"


# --- parts ------------------------------------------------------------------------------------------


def _encode_triangle(triangle: Packed, step: float) -> bytes:
    return encode_steps(triangle, step, DEAD_ZONE)


def _logs(values: Vector) -> Vector:
    """log2 in quarter steps."""
    logs: Vector = np.rint(4 * np.log2(np.maximum(values, 1e-300)))
    return logs


def _roots(logs: Vector) -> Vector:
    roots: Vector = np.exp2(logs / 8)
    return roots


def _encode_logs(logs: Vector) -> bytes:
    return entropy_encode(np.diff(logs, prepend=0.0).astype(np.int32))


def _decode_logs(data: bytes, n: int) -> Vector:
    logs = np.cumsum(entropy_decode(data, n)).astype(float)
    if np.abs(logs).max(initial=0.0) > 4096:
        raise CodecError("logarithms of a diagonal are out of range")
    return logs


def _digest(before: int, *parts: bytes) -> int:
    """A chain over everything a copy was decoded from; floats that differ in their last bits do not enter."""
    hasher = blake2b((before % 2**64).to_bytes(8, "little"), digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(4, "little") + part)
    return int.from_bytes(hasher.digest(), "little")
