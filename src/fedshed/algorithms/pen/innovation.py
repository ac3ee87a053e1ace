"""PEN's innovation: what the common copy could not predict of an agent's gradient and Hessian.

A copy is an agent's gradient g and Hessian W in the coordinates of the frame: g = G g_i, W = G H_i G'.
Every function that decodes runs alike at Master and agent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.coding import (
    decode_logs,
    decode_rounded,
    digest_of,
    encode_rounded,
    logs_of,
    roots,
    round_triangle,
)
from fedshed.algorithms.pen.dither import Dither
from fedshed.algorithms.pen.frame import GRADIENT_STEP, change_of, decode_step
from fedshed.algorithms.pen.messages import First, Innovation, Move, Start
from fedshed.algorithms.pen.spectral import encode_pairs, has_structure, read_pairs, sum_signed
from fedshed.linalg.arrays import Matrix, Packed, Vector, pack, unpack
from fedshed.protocol.memo import Memo, same
from fedshed.protocol.quantize import decode_steps, encode_logs, encode_steps

NEAR = 0.03  # the Newton decrement below which steps are at their finest
MOST = 1e100  # of what an agent sends: products of such numbers are numbers
TOO_LARGE = "its copy would be too large to compute with"
LARGEST_ENTRY = 4.0  # of a Hessian whose diagonal is near 1


class Copy(Struct, frozen=True):
    """One agent's gradient and Hessian in the coordinates of the frame, as decoded."""

    digest: int
    W: Matrix
    g: Vector

    def matvec(self, s: Vector) -> Vector:
        """W s."""
        product: Vector = self.W @ s
        return product


class Steps(Struct, frozen=True):
    """How coarsely Hessians are coded: steps of entries in whitened units, and of spectral rows."""

    entries: float
    dithered: float
    first: float
    first_dithered: float
    pairs: float  # in units of the weakest row's root mean square; 0: no spectral part

    def of(self, move: Move) -> float:
        """The step of a move's entries: coarser while the Newton decrement is large."""
        if move.dither:
            return self.dithered
        return self.entries * float(np.clip(move.scale / NEAR, 1.0, 2.0))


def first_answer(loss: float, g: Vector, H: Matrix, steps: Steps, dither: Dither) -> First:
    """Everything in the agent's own units: g in 1/511 of its largest entry, H scaled by its own diagonal."""
    logs = logs_of(np.maximum(np.diag(H), 1e-6 * np.diag(H).max()))
    r = roots(logs)
    coded = _encode_first(pack(H / r[:, None] / r), len(g), steps, dither)
    top = float(np.abs(g).max()) or 1.0
    return First(loss, encode_steps(g, top / 511), encode_logs(logs), coded)


def _encode_first(triangle: Packed, n: int, steps: Steps, dither: Dither) -> bytes:
    """The first Hessian in a coarse step if what that misses is noise, else dithered in a finer one.

    Where features are non-negative and sparse, small entries are all of one sign: what a coarse step misses
    of them is no noise but one large eigenvalue, and the same at all agents that are alike.
    """
    coded, values = encode_rounded(round_triangle(triangle, steps.first), steps.first)
    if not has_structure(unpack(triangle - values, n)):
        return coded
    step = float(np.float32(steps.first_dithered))
    return encode_rounded(dither.symbols(triangle, 1.0, step, b"first"), step)[0]


def decode_first(first: First, n: int) -> Copy:
    """The copy that both ends make of a first answer, in the identity frame."""
    r = roots(decode_logs(first.diagonal, n))
    H = unpack(decode_rounded(first.hessian, n * (n + 1) // 2), n) * np.outer(r, r)
    digest = digest_of(0, first.gradient, first.diagonal, first.hessian)
    return Copy(digest, H, decode_steps(first.gradient, n))


def _add_parts(hessian: bytes, spectral: bytes, n: int) -> Matrix:
    """The matrix of an entry-coded part and, if there is one, a spectral part."""
    triangle = decode_rounded(hessian, n * (n + 1) // 2)
    return unpack(triangle + pack(sum_signed(*read_pairs(spectral, n))) if spectral else triangle, n)


def first_error(first: First, n: int) -> float:
    """Expected energy of the first Hessian's error in its own units: half of n^2 uniform errors."""
    (step,) = struct.unpack_from("<f", first.hessian)
    return float(step) ** 2 / 24 * n * n


def predict_copy(copy: Copy, move: Move) -> Copy:
    """The copy in the changed frame, its gradient predicted at the new point: g + W u."""
    W, g = copy.W, copy.g
    if move.change:
        B = change_of(move.change, len(g))
        W = _once(_TURNED, copy.digest, move.change, copy.W, lambda: B.congruence(copy.W))
        g = B.times(g)
    return Copy(copy.digest, W, g + W @ decode_step(move, len(g)))


def _once(memo: Memo, key: int, said: bytes, W: Matrix, compute: Callable[[], Matrix]) -> Matrix:
    """What agent and Master of one process both compute from W and a message, computed by one of them."""
    known = memo.get(key)
    if known is not None and known[0] == said and same(known[1], W):
        memo.drop(key)  # each of the two has it now
        return np.asarray(known[2])
    made = compute()
    memo.put(key, (said, W, made), made.nbytes)
    return made


def forget_copy(copy: Copy) -> None:
    """Forget what was computed for a copy that both ends have replaced."""
    _TURNED.drop(copy.digest)
    _CORRECTED.drop(copy.digest)


_TURNED, _CORRECTED = Memo(), Memo()


def innovation(
    loss: float, g: Vector, W: Matrix | None, prediction: Copy, move: Move, steps: Steps, limit: float,
    dither: Dither | None = None,
) -> Innovation:  # fmt: skip
    """What the prediction missed, coded; the Hessian's step grows until the message fits the link.

    Only the upper triangle of W is read.
    """
    rest = encode_steps(g - prediction.g, GRADIENT_STEP * move.scale)
    if W is None:
        return Innovation(loss, rest, 1.0, b"", 0.0)
    old, R, step = pack(prediction.W), pack(W).astype(np.float64), steps.of(move)
    c = _multiple(old, R, len(g))
    R -= c * old
    coded, values = _encode_entries(R, c, step, move, dither)
    while len(coded) + len(rest) > limit and step < 1e6:
        step *= 1.5
        coded, values = _encode_entries(R, c, step, move, dither)
    missed, spectral = R - values, b""
    error = energy(missed, len(g))
    if dither is None and steps.pairs:
        found, left = encode_pairs(unpack(missed, len(g)), steps.pairs)
        if len(coded) + len(rest) + len(found) <= limit:
            spectral, error = found, left
    return Innovation(loss, rest, c, coded, error, spectral)


def _multiple(old: Packed, new: Packed, n: int) -> float:
    """c = <old, new> / <old, old>, the multiple of `old` nearest to `new`, in single precision."""
    square = energy(old, n)
    return float(np.float32(inner(old, new, n) / square)) if square > 0 else 1.0


def diagonal_of(triangle: Packed, n: int) -> Vector:
    """The diagonal of the symmetric matrix with that upper triangle."""
    return np.asarray(triangle[_diagonal(n)])


def energy(triangle: Packed, n: int) -> float:
    """The sum of squares of the symmetric matrix with that upper triangle."""
    return inner(triangle, triangle, n)


def inner(one: Packed, other: Packed, n: int) -> float:
    """The sum of products of the entries of two symmetric matrices with those upper triangles."""
    diagonal = _diagonal(n)
    return 2 * float(one @ other) - float(one[diagonal] @ other[diagonal])


@lru_cache(maxsize=4)
def _diagonal(n: int) -> NDArray[np.intp]:
    """Where the diagonal is in a packed upper triangle."""
    return np.cumsum([0, *range(n, 1, -1)])


def _encode_entries(
    R: Packed, c: float, step: float, move: Move, dither: Dither | None
) -> tuple[bytes, Packed]:
    """The innovation R in uniform steps, to the nearest or dithered, and what it is decoded to."""
    step = float(np.float32(step))
    return encode_rounded(
        round_triangle(R, step) if dither is None else dither.symbols(R, c, step, move.step), step
    )


def secant_correction(r: Vector, u: Vector) -> Matrix:
    """The symmetric matrix of least norm that maps u to r (Powell, symmetric Broyden: PSB).

    a u' + u a' with a = (r - u (u'r) / (2 u'u)) / u'u.
    """
    uu = float(u @ u)
    if uu < np.finfo(float).tiny:
        return np.zeros((len(u), len(u)))
    a = (r - float(u @ r) / (2 * uu) * u) / uu
    half = np.outer(a, u)
    return half + half.T


def correct_copy(prediction: Copy, move: Move, answer: Innovation) -> Copy:
    """The prediction with the decoded innovation: what both ends go on from."""
    n, W = len(prediction.g), prediction.W
    unit = struct.pack("<dd??", move.scale, answer.c, move.curvature, move.secant)
    said = answer.gradient, answer.hessian, answer.spectral
    digest, rest = (
        digest_of(prediction.digest, move.change, move.step, unit, *said),
        decode_rounded(said[0], n),
    )
    if move.curvature:
        coded = unit + answer.hessian + answer.spectral
        W = _once(
            _CORRECTED, digest, coded, prediction.W, lambda: _correct_curvature(prediction.W, answer, n)
        )
    elif move.secant:
        W = W + secant_correction(rest, decode_step(move, n))
    return Copy(digest, W, prediction.g + rest)


def _correct_curvature(W: Matrix, answer: Innovation, n: int) -> Matrix:
    """c W and the decoded innovation."""
    made = _add_parts(answer.hessian, answer.spectral, n)
    made += answer.c * W
    return made


def undecodable(part: Start | Move, answer: First | Innovation, n: int) -> str | None:
    """Why an answer cannot be made a copy of, if it cannot; no matrix is built for it."""
    try:
        g = decode_rounded(answer.gradient, n)
        if isinstance(answer, First):
            return _no_hessian(answer, n)
        largest = _largest(answer, n) if isinstance(part, Move) and part.curvature else 0.0
    except (CodecError, OverflowError) as error:
        return str(error)
    if answer.error < 0 or max(abs(answer.c), largest, float(np.abs(g).max(initial=0.0))) > MOST:
        return TOO_LARGE
    return None


def _no_hessian(first: First, n: int) -> str | None:
    """Why a first answer is that of no Hessian: |H_jk| <= (H_jj H_kk)^(1/2), and H_jj >= 0."""
    r, triangle = roots(decode_logs(first.diagonal, n)), decode_rounded(first.hessian, n * (n + 1) // 2)
    if r.max(initial=0.0) > MOST:
        return TOO_LARGE
    if diagonal_of(triangle, n).min(initial=0.0) < 0 or np.abs(triangle).max(initial=0.0) > LARGEST_ENTRY:
        return "its Hessian has entries that its own diagonal does not allow"
    return None


def _largest(answer: Innovation, n: int) -> float:
    """A bound on the entries of what is decoded."""
    largest = float(np.abs(decode_rounded(answer.hessian, n * (n + 1) // 2)).max(initial=0.0))
    if not answer.spectral:
        return largest
    signs, rows = read_pairs(answer.spectral, n)
    return largest + len(signs) * float(np.abs(rows).max()) ** 2
