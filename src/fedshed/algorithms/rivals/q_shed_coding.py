"""Bits of Q-SHED: how many each eigenvector gets, and vectors that later bits refine.

The allocation is our derivation.  If v_k travels in b_k bits an entry, the error of its entries has a
variance proportional to 4^-b_k, and (lambda_k - rho) v_k v_k' has the squared error
ERROR (lambda_k - rho)^2 4^-b_k in the Frobenius norm.  Minimising their sum with sum_k b_k given is reverse
water-filling (Cover and Thomas 2006, Section 10.3): b_k = log2((lambda_k - rho)/w) with one water level w, so
bits grow with the logarithm of lambda_k - rho.  In whole bits, each goes where it removes most.  What was
sent stays, so bits of later rounds refine vectors or begin new ones, as the same rule says; rho =
lambda_{q+1} follows from their number q, which is the one with the smallest error in all: that of the
vectors, and sum_{k>q} (rho - lambda_k)^2 of the rest.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError
from fedshed.linalg.arrays import Matrix, Scalars, Vector

Counts: TypeAlias = NDArray[np.int64]
MOST_BITS = 16
ERROR = 6.0  # 8/3 s ||v||_1 for normal entries, the largest of which, s, is about 3/sqrt(n)
TURNS = 4  # numbers of vectors after the best one that are still tried


class WaterFilling(Struct, frozen=True, tag=True):
    """Gives each bit to the eigenvector where it lowers the error of the Hessian most."""

    finest: ClassVar[int] = MOST_BITS  # bits of a vector that are not refined any more

    def __call__(self, spectrum: Vector, sent: Counts, total: int, most: int) -> Counts:
        """The bits of each of at most `most` vectors after `total` more, given the bits already `sent`."""
        best, least, worse = sent, np.inf, 0
        for q in range(len(sent), min(len(sent) + total, most) + 1):
            bits = np.append(sent, np.ones(q - len(sent), dtype=np.int64))
            bits = fill_bits(spectrum[:q] - spectrum[q], bits, total - (q - len(sent)))
            error = allocation_error(spectrum, bits)
            best, least, worse = (bits, error, 0) if error < least else (best, least, worse + 1)
            if worse > TURNS:
                break
        return best


class EqualBits(Struct, frozen=True, tag=True):
    """The naive variant: every vector has the same number of bits, and none is refined later.

    Parameters
    ----------
    bits : int
        The number of bits per entry, from 1 to 16.
    """

    bits: Annotated[int, Meta(ge=1, le=MOST_BITS)] = 8

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise ConfigError(f"bits of EqualBits must be from 1 to {MOST_BITS}, not {self.bits}")

    @property
    def finest(self) -> int:
        """The number of bits at which a vector is no longer refined."""
        return self.bits

    def __call__(self, spectrum: Vector, sent: Counts, total: int, most: int) -> Counts:
        """As many new vectors as the bits suffice for."""
        new = min(total // self.bits, most - len(sent))
        return np.append(sent, np.full(new, self.bits))


Allocation: TypeAlias = WaterFilling | EqualBits


def fill_bits(excess: Vector, bits: Counts, total: int) -> Counts:
    """`total` more bits, each where (lambda - rho)^2 4^-b is largest: the least error in whole bits."""
    widths = np.arange(MOST_BITS)
    gains = np.where(widths >= bits[:, None], np.square(excess)[:, None] * 4.0**-widths, 0.0).ravel()
    places = np.flatnonzero(gains)
    if total < len(places):
        places = places[np.argpartition(-gains[places], total)[:total]]
    more: Counts = bits + np.bincount(places // MOST_BITS, minlength=len(bits))
    return more


def allocation_error(spectrum: Vector, bits: Counts) -> float:
    """The squared error of the Hessian, in the Frobenius norm, as the model has it."""
    q = len(bits)
    rounded = ERROR * np.square(spectrum[:q] - spectrum[q]) * 4.0**-bits
    return float(rounded.sum() + np.square(spectrum[q] - spectrum[q:]).sum())


# --- vectors in planes of bits ----------------------------------------------------------------------


def scales_of(vectors: Matrix) -> Scalars:
    """The largest magnitude in each vector."""
    scales: Scalars = np.abs(vectors).max(axis=1, initial=0.0)
    return scales


def planes(vectors: Matrix, old: Counts, new: Counts) -> bytes:
    """Bits old + 1 to new of each vector's entries, one plane of n bits after the other.

    With u = sign(v) sqrt(|v|/s) an entry is in the cell floor((u + 1)/2 * 2^b); one more bit halves the cell.
    The root makes cells narrow where entries are small: eigenvectors of sparse rows have many zeros.
    """
    top = 1 << MOST_BITS
    scales = scales_of(vectors)[:, None]
    u = np.sign(vectors) * np.sqrt(np.abs(vectors) / np.where(scales > 0, scales, 1.0))
    cells = np.floor((u + 1) / 2 * top).clip(0, top - 1).astype(np.int64)
    rows, widths = _places(old, new)
    return np.packbits((cells[rows] >> (MOST_BITS - widths)[:, None]) & 1, axis=1).tobytes()


def _places(old: Counts, new: Counts) -> tuple[Counts, Counts]:
    """The vector and the width of each plane, in the order of planes."""
    widths = np.arange(1, MOST_BITS + 1)
    rows, places = np.nonzero((widths > old[:, None]) & (widths <= new[:, None]))
    return rows, widths[places]


def plane_bytes(n: int) -> int:
    """Bytes of a plane."""
    return (n + 7) // 8


def refine_cells(cells: Matrix, code: bytes, old: Counts, new: Counts) -> Matrix:
    """The cells of each vector with the bits that were sent."""
    n, (rows, widths) = cells.shape[1], _places(old, new)
    bits = np.unpackbits(np.frombuffer(code, np.uint8).reshape(-1, plane_bytes(n)), axis=1, count=n)
    found: Matrix = cells * 2.0 ** (new - old)[:, None]
    np.add.at(found, rows, bits * 2.0 ** (new[rows] - widths)[:, None])
    return found


def unit_vectors(cells: Matrix, scales: Scalars, bits: Counts) -> Matrix:
    """The middles of the cells, made unit again."""
    u = (2 * cells + 1) / 2.0 ** bits[:, None] - 1
    rows = scales[:, None] * u * np.abs(u)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Matrix = rows / np.where(norms > 0, norms, 1.0)
    return unit


def upright(vectors: Matrix) -> Matrix:
    """Each vector with its largest entry positive: an agent that forgot it draws the same again."""
    if not len(vectors):
        return vectors
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1)
    return np.where(largest < 0, -vectors, vectors)
