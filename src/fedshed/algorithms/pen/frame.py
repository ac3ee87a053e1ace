"""PEN's frame: common coordinates G in which the global Hessian S is near the identity, G S G' = I.

Both ends hold the same frame; it changes by coded matrices, and theta moves by coded steps in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.sparse import csr_array

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.coding import (
    decode_logs,
    decode_rounded,
    encode_rounded,
    logs_of,
    roots,
    round_triangle,
)
from fedshed.algorithms.pen.messages import Move
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.protocol.memo import Memo, same
from fedshed.protocol.quantize import encode_logs, encode_steps

GRADIENT_STEP = 0.01  # of a gradient's innovation and of a step, in units of the Newton decrement
LOW, HIGH = np.exp(-0.85), np.exp(1.2)  # eigenvalues that the Hessian has after a change of frame
STAY_LOW, STAY_HIGH = np.exp(-1.2), np.exp(1.4)  # while it has these, it stays; chosen on F5, F8, W5
MOST_CHANGES = 4  # of frame in one move
STEPS = tuple(4 / 1.5**k for k in range(39))  # of a change of frame
SPARSE = 0.1  # share of entries other than 0 up to which a sparse product takes less time
USUAL = 11  # the place of the step that is tried first: the median on F5 and W5


class Frame(Struct, frozen=True):
    """The common coordinates, and theta as both ends know it."""

    G: Matrix
    theta: Vector


def identity(theta: Vector) -> Frame:
    """The frame both ends start with."""
    return Frame(np.eye(len(theta)), theta)


class Change(Struct, frozen=True):
    """A change of coordinates B; `d` is its diagonal where it has nothing else, `S` is B if it is sparse."""

    B: Matrix
    d: Vector | None
    S: Any = None

    def times(self, x: Matrix) -> Matrix:
        """B x, for a vector or a matrix."""
        if self.d is not None:
            return np.asarray((self.d * x.T).T)
        return np.asarray((self.B if self.S is None else self.S) @ x)

    def solve_transposed(self, x: Matrix) -> Matrix:
        """B'^-1 x, for a vector or a matrix."""
        return np.asarray((x.T / self.d).T if self.d is not None else np.linalg.solve(self.B.T, x))

    def congruence(self, W: Matrix) -> Matrix:
        """B W B'."""
        if self.d is not None:
            return W * np.outer(self.d, self.d)
        return congruence(self.B if self.S is None else self.S, W)


def congruence(B: Any, W: Matrix) -> Matrix:
    """B W B' for a symmetric W, exactly symmetric; B is dense or CSR."""
    product = B @ (B @ W).T  # (B W)' = W B'
    product += product.T  # NumPy buffers what overlaps
    product *= 0.5
    return np.asarray(product)


def diagonal_change(diagonal: Vector) -> bytes:
    """A change to coordinates in which this diagonal is near 1: logarithms in quarter steps."""
    return _framed(b"D", encode_logs(logs_of(diagonal)))


def frame_change(w: Vector, V: Matrix) -> bytes:
    """The coarsest coded B with all eigenvalues of B A B' within bounds, A = V w V'; none while near them.

    B = alpha (I + Y) with Y rounded; steps are 4 / 1.5^k, and the search goes from a usual one up or down.
    """
    if w.min() >= STAY_LOW and w.max() <= STAY_HIGH:
        return b""
    alpha = float(np.float32(np.exp(-np.log(w).mean() / 2)))
    Y, root = pack((V / (alpha * np.sqrt(w))) @ V.T - np.eye(len(w))), V * np.sqrt(w)
    if alpha**2 * w.min() >= LOW and alpha**2 * w.max() <= HIGH:
        coded, _ = encode_rounded(np.zeros_like(Y), STEPS[0])  # a change of scale is enough
    else:
        step = STEPS[_coarsest(lambda step: _within_bounds(alpha, Y, step, root))]
        coded, _ = encode_rounded(round_triangle(Y, step), step)
    return _framed(b"B", struct.pack("<f", alpha) + coded)


def _coarsest(fits: Callable[[float], bool]) -> int:
    """The place of a step that fits where the next coarser one does not."""
    k = USUAL
    if fits(STEPS[k]):
        while k > 0 and fits(STEPS[k - 1]):
            k -= 1
        return k
    while k < len(STEPS) - 1 and not fits(STEPS[k + 1]):
        k += 1
    return min(k + 1, len(STEPS) - 1)


def _within_bounds(alpha: float, Y: Packed, step: float, root: Matrix) -> bool:
    """Whether LOW I <= B A B' <= HIGH I, by two Cholesky factorisations; `root` root' is A."""
    n = len(root)
    Broot = root + unpack(float(np.float32(step)) * round_triangle(Y, step), n) @ root
    M, unit = alpha**2 * (Broot @ Broot.T), np.eye(n)
    try:
        np.linalg.cholesky(M - LOW * unit)
        np.linalg.cholesky(HIGH * unit - M)
    except np.linalg.LinAlgError:
        return False
    return True


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4, "little") + body


@lru_cache(maxsize=4)
def change_of(change: bytes, n: int) -> Change:
    """A coded change: a diagonal, a symmetric matrix, or one after the other."""
    total, count = Change(np.eye(n), np.ones(n)), 0
    while change:
        if (count := count + 1) > MOST_CHANGES:
            raise CodecError(f"a move changes the frame at most {MOST_CHANGES} times")
        kind, size = change[:1], int.from_bytes(change[1:5], "little")
        body, change = change[5 : 5 + size], change[5 + size :]
        if len(body) != size or kind not in (b"D", b"B"):
            raise CodecError("a change of frame is cut off or malformed")
        one = _one_change(kind, body, n)
        B = one.times(total.B)
        total = Change(B, None if total.d is None or one.d is None else one.d * total.d)
    total.B.flags.writeable = False
    if total.d is None and np.count_nonzero(total.B) <= SPARSE * n * n:
        return Change(total.B, None, csr_array(total.B))
    return total


def _one_change(kind: bytes, body: bytes, n: int) -> Change:
    if kind == b"D":
        d = 1 / roots(decode_logs(body, n))
        return Change(np.diag(d), d)
    (alpha,) = struct.unpack_from("<f", body.ljust(4, b"\0"))
    if not np.isfinite(alpha):
        raise CodecError("a change of frame has a scale that is not finite")
    Y = decode_rounded(body[4:], n * (n + 1) // 2)
    if not Y.any():
        return Change(float(alpha) * np.eye(n), np.full(n, float(alpha)))
    return Change(float(alpha) * (np.eye(n) + unpack(Y, n)), None)


def change_frame(frame: Frame, change: bytes) -> Frame:
    """The frame after a coded change."""
    if not change:
        return frame
    known = _CHANGED.get(change)
    if known is None or not same(known[0], frame.G):  # by content: the agents of a process share it
        known = frame.G, change_of(change, len(frame.theta)).times(frame.G)
        _CHANGED.put(change, known, 2 * frame.G.nbytes)
    return replace(frame, G=known[1])


_CHANGED = Memo()


def encode_move(
    t: int, change: bytes, u: Vector, decrement: float, curvature: bool = True, dither: bool = False,
    secant: bool = False,
) -> Move:  # fmt: skip
    """A step in whitened coordinates, in units of the decrement."""
    step = encode_steps(u, GRADIENT_STEP * decrement)
    return Move(t, change, step, decrement, curvature, dither, secant)


def decode_step(move: Move, n: int) -> Vector:
    """The step as both ends take it."""
    return decode_rounded(move.step, n)


def move_frame(frame: Frame, move: Move) -> Frame:
    """theta <- theta + G'u in the (changed) frame."""
    return replace(frame, theta=frame.theta + decode_step(move, len(frame.theta)) @ frame.G)
