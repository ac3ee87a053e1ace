"""PEN's innovation: what the common copy could not predict of an agent's gradient and Hessian.

A copy is an agent's gradient g and Hessian W in the coordinates of the frame: g = G g_i, W = G H_i G'.
Every function that decodes runs alike at Master and agent.
"""

from __future__ import annotations

import struct

import numpy as np
from msgspec import Struct

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.coding import decode_logs, digest_of, encode_logs, encode_triangle, logs_of, roots
from fedshed.algorithms.pen.dither import Dither
from fedshed.algorithms.pen.frame import GRADIENT_STEP, change_matrix, decoded_step
from fedshed.algorithms.pen.messages import First, Innovation, Move, Start
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.protocol.quantize import decode_steps, encode_steps


class Copy(Struct, frozen=True):
    """One agent's gradient and Hessian in the coordinates of the frame, as decoded."""

    digest: int
    W: Matrix
    g: Vector

    def matvec(self, s: Vector) -> Vector:
        """W s."""
        product: Vector = self.W @ s
        return product


def first_answer(loss: float, g: Vector, H: Matrix, step: float) -> First:
    """Everything in the agent's own units: g in 1/511 of its largest entry, H scaled by its own diagonal."""
    logs = logs_of(np.maximum(np.diag(H), 1e-6 * np.diag(H).max()))
    r = roots(logs)
    triangle = pack(H / r[:, None] / r)
    top = float(np.abs(g).max()) or 1.0
    return First(loss, encode_steps(g, top / 511), encode_logs(logs), encode_triangle(triangle, step))


def decoded_first(first: First, n: int) -> Copy:
    """The copy that both ends make of a first answer, in the identity frame."""
    r = roots(decode_logs(first.diagonal, n))
    H = unpack(decode_steps(first.hessian, n * (n + 1) // 2), n) * r[:, None] * r
    return Copy(
        digest_of(0, first.gradient, first.diagonal, first.hessian), H, decode_steps(first.gradient, n)
    )


def first_error(step: float, n: int) -> float:
    """Expected energy of the first Hessian's error in its own units: half of n^2 uniform errors."""
    return step**2 / 24 * n * n


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
    loss: float, g: Vector, W: Matrix | None, prediction: Copy, move: Move, step: float, limit: float,
    dither: Dither | None = None,
) -> Innovation:  # fmt: skip
    """What the prediction missed, coded; the Hessian's step grows until the message fits the link."""
    rest = encode_steps(g - prediction.g, GRADIENT_STEP * move.scale)
    if W is None:
        return Innovation(loss, rest, 1.0, b"", 0.0)
    energy = float(np.sum(np.square(prediction.W)))
    c = float(np.float32(np.sum(prediction.W * W) / energy)) if energy > 0 else 1.0
    R = pack(W - c * prediction.W)
    coded = _coded(R, c, step, move, dither)
    while len(coded) + len(rest) > limit and step < 1e6:
        step *= 1.5
        coded = _coded(R, c, step, move, dither)
    missed = unpack(R - decode_steps(coded, len(R)), len(g))
    return Innovation(loss, rest, c, coded, float(np.sum(np.square(missed))))


def _coded(R: Packed, c: float, step: float, move: Move, dither: Dither | None) -> bytes:
    """The innovation R in uniform steps, to the nearest or dithered."""
    if dither is None:
        return encode_triangle(R, step)
    step = float(np.float32(step))
    return encode_steps(step * dither.symbols(R, c, step, move), step)


def corrected_copy(prediction: Copy, move: Move, answer: Innovation) -> Copy:
    """The prediction with the decoded innovation: what both ends go on from."""
    n, W = len(prediction.g), prediction.W
    if move.curvature:
        W = answer.c * W + unpack(decode_steps(answer.hessian, n * (n + 1) // 2), n)
    unit = struct.pack("<dd", move.scale, answer.c)
    digest = digest_of(prediction.digest, move.change, move.step, unit, answer.gradient, answer.hessian)
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
