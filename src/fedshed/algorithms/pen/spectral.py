"""PEN's spectral innovations: the few eigenpairs of what entry coding missed that stand out of its noise.

A symmetric matrix of independent errors with energy e has its eigenvalues within the radius 2 (e / n)^(1/2)
(Wigner 1958).  What lies outside is structure whose entries were too small, one by one, to be sent.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.linalg.blas import ssymv

from fedshed._utils.errors import CodecError
from fedshed.algorithms.pen.coding import decode_rounded, encode_rounded
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.protocol.quantize import quantize_values

MOST_PAIRS = 24
OUTSIDE = 1.0  # times the radius of the noise: eigenvalues beyond are sent
LEAST = 0.1  # eigenvalues below it do not matter, in units in which the Hessian is near 1
MORE = 18  # steps of Lanczos beyond the number of pairs; with 36 the bytes on F5, F6 and F8 are the same
AGAIN = 0.1  # of the square of what orthogonalisation removed: if less is left, it is done again
STRUCTURED = 2.0  # times the radius; for the first Hessians it is 1.0 to 1.7 on F5, 1.8 to 3.7 on W5


def noise_radius(energy: float, n: int) -> float:
    """2 (e / n)^(1/2): the spectral radius of a random symmetric matrix of energy e."""
    return 2 * float(np.sqrt(max(energy, 0.0) / n))


def has_structure(E: Matrix) -> bool:
    """Whether E has an eigenvalue so far outside its noise that errors like it will not average out."""
    (largest,), _ = largest_pairs(E, 1)
    return bool(abs(largest) > STRUCTURED * noise_radius(float(np.vdot(E, E)), len(E)))


def standing_out(E: Matrix) -> tuple[Vector, Matrix]:
    """The eigenvalues of E outside the noise of what remains, the largest first, and their eigenvectors."""
    return _standing_out(E, float(np.vdot(E, E)))


def _standing_out(E: Matrix, energy: float) -> tuple[Vector, Matrix]:
    w, V = largest_pairs(E, min(MOST_PAIRS, len(E)))
    rest = energy - np.cumsum(np.square(w))
    inside = [
        abs(value) <= max(OUTSIDE * noise_radius(e, len(E)), LEAST) for value, e in zip(w, rest, strict=True)
    ]
    k = inside.index(True) if True in inside else len(w)
    return w[:k], V[:, :k]


def largest_pairs(E: Matrix, count: int) -> tuple[Vector, Matrix]:
    """The eigenpairs of largest magnitude, the largest first; by Lanczos where that is less work."""
    steps = count + MORE
    if len(E) > 2 * steps:
        return lanczos(E, steps, count)
    w, V = np.linalg.eigh(E)
    order = _largest(w, count)
    return w[order], V[:, order]


def _largest(w: Vector, count: int) -> NDArray[np.intp]:
    """The places of the largest magnitudes, the largest first."""
    return np.argsort(-np.abs(w), kind="stable")[:count]


def lanczos(E: Matrix, steps: int, count: int) -> tuple[Vector, Matrix]:
    """The largest Ritz pairs of E in a Krylov space, from a start that depends on n alone.

    Golub and Van Loan, Matrix Computations (4th ed.), Sections 10.1 and 10.3.  Single precision: pairs are
    coded in far coarser steps.
    """
    A, Q = E.astype(np.float32).T, np.zeros((steps, len(E)), dtype=np.float32)  # A = A' in BLAS's order
    v = np.random.default_rng(len(E)).normal(size=len(E)).astype(np.float32)
    scale = float(max(A.max(), -A.min()))
    diagonal, beside = np.zeros(steps, np.float32), np.zeros(steps, np.float32)
    size, found = sqrt(float(v @ v)), 0
    while found < steps and (found == 0 or size > 1e-5 * scale):  # else the space is invariant
        q = np.multiply(v, np.float32(1 / size), out=Q[found])
        beside[found], found = size, found + 1
        v, basis = ssymv(1.0, A, q), Q[:found]
        along = basis @ v
        v -= along @ basis
        diagonal[found - 1], after = along[-1], float(v @ v)
        if after < AGAIN * float(along @ along):  # what was subtracted left its rounding errors behind
            v -= (basis @ v) @ basis  # twice is enough (Kahan)
            after = float(v @ v)
        size = sqrt(after)
    w, U = eigh_tridiagonal(diagonal[:found], beside[1:found])
    order = _largest(w, count)
    return w[order].astype(np.float64), (Q[:found].T @ U[:, order]).astype(np.float64)


def encode_pairs(E: Matrix, fineness: float) -> tuple[bytes, float]:
    """The pairs of E that stand out, coded as rows |w|^(1/2) v, and the energy of E without them.

    One uniform step serves all: `fineness` times the root mean square of the weakest row.  Nothing is sent if
    that would leave more energy than there was.
    """
    energy = float(np.vdot(E, E))
    w, V = _standing_out(E, energy)
    if not len(w):
        return b"", energy
    rows = (V * np.sqrt(np.abs(w))).T
    step = float(np.float32(fineness * float(np.sqrt(np.mean(np.square(rows[-1]))))))
    coded, values = encode_rounded(quantize_values(rows.ravel(), step), step)
    left = energy - _norm_reduction(E, np.sign(w), values.reshape(rows.shape))
    data = bytes([len(w)]) + bytes(int(value > 0) for value in w) + coded
    return (data, max(left, 0.0)) if left < energy else (b"", energy)


def _norm_reduction(E: Matrix, signs: Vector, rows: Matrix) -> float:
    """||E||^2 - ||E - L||^2 = 2 <E, L> - <L, L> for L = sum_k s_k r_k r_k', without L."""
    along = np.einsum("kn,kn->k", rows @ E, rows)
    return float(2 * (signs @ along) - signs @ np.square(rows @ rows.T) @ signs)


def read_pairs(data: bytes, n: int) -> tuple[Vector, Matrix]:
    """Signs and rows as they were sent; anything malformed raises CodecError before memory is taken."""
    k = data[0] if data else 0
    if not 0 < k <= min(MOST_PAIRS, n):
        raise CodecError(f"a spectral part has {k} pairs, not 1 to {min(MOST_PAIRS, n)}")
    signs = np.frombuffer(data[1 : 1 + k], np.uint8)
    if len(signs) < k or signs.max() > 1:
        raise CodecError("a spectral part has signs that are cut off or malformed")
    return 2 * signs.astype(np.float64) - 1, decode_rounded(data[1 + k :], k * n).reshape(k, n)


def sum_signed(signs: Vector, rows: Matrix) -> Matrix:
    """sum_k +-r_k r_k'."""
    return np.asarray((rows.T * signs) @ rows)
