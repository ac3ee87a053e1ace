"""PEN's frame: common coordinates G in which the global Hessian S is near the identity, G S G' = I.

Both ends hold the same frame; it changes by coded matrices, and theta moves by coded steps in it.
"""

from __future__ import annotations

import struct

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.coding import decode_logs, encode_logs, encode_triangle, logs_of, roots
from fedshed.algorithms.pen.messages import Move
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.protocol.quantize import decode_steps, encode_steps

GRADIENT_STEP = 0.01  # of a gradient's innovation and of a step, in units of the Newton decrement
LOW, HIGH = np.exp(-0.85), np.exp(1.2)  # eigenvalues of the Hessian that a frame may have
MOST_CHANGES = 4  # of frame in one move


class Frame(Struct, frozen=True):
    """The common coordinates, and theta as both ends know it."""

    G: Matrix
    theta: Vector


def identity(theta: Vector) -> Frame:
    """The frame both ends start with."""
    return Frame(np.eye(len(theta)), theta)


def diagonal_change(diagonal: Vector) -> bytes:
    """A change to coordinates in which this diagonal is near 1: logarithms in quarter steps."""
    coded = encode_logs(logs_of(diagonal))
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
        coded = struct.pack("<f", alpha) + encode_triangle(Y, step)
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
        return np.diag(1 / roots(decode_logs(body, n)))
    (alpha,) = struct.unpack_from("<f", body.ljust(4, b"\0"))
    if not np.isfinite(alpha):
        raise CodecError("a change of frame has a scale that is not finite")
    return float(alpha) * (np.eye(n) + unpack(decode_steps(body[4:], n * (n + 1) // 2), n))


def changed(frame: Frame, change: bytes) -> Frame:
    """The frame after a coded change."""
    return replace(frame, G=change_matrix(change, len(frame.theta)) @ frame.G) if change else frame


def coded_move(
    t: int, change: bytes, u: Vector, decrement: float, curvature: bool = True, dither: bool = False
) -> Move:
    """A step in whitened coordinates, in units of the decrement."""
    return Move(t, change, encode_steps(u, GRADIENT_STEP * decrement), decrement, curvature, dither)


def decoded_step(move: Move, n: int) -> Vector:
    """The step as both ends take it."""
    return decode_steps(move.step, n)


def moved(frame: Frame, move: Move) -> Frame:
    """theta <- theta + G'u in the (changed) frame."""
    return replace(frame, theta=frame.theta + decoded_step(move, len(frame.theta)) @ frame.G)
