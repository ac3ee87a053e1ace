"""Compressors of FedNL: they compress the difference between an agent's Hessian and the one learnt so far.

A compressor C is *contractive* if ||C(A) - A||_F^2 <= (1 - delta) ||A||_F^2, and FedNL then learns with rate
1; it is *unbiased* if E C(A) = A and E ||C(A) - A||_F^2 <= omega ||A||_F^2, and the rate is 1/(omega + 1)
(Safaryan, Islamov, Qian, Richtarik, ICML 2022, Section 3).  All of them act on the upper triangle only.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError
from fedshed._utils.names import name_key
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Scalars, Vector, pack
from fedshed.objectives import Point
from fedshed.protocol.limits import Version
from fedshed.protocol.messages import Message

LOST = -1  # in place of a version: the agent lost its matrix


class Correction(Message, frozen=True):
    """f^(i), g^(i) and the leading part sum_j values_j v_j v_j' of the Hessian minus what was learnt."""

    loss: float
    gradient: Gradient
    version: Version  # what the difference was taken from; -1: the agent lost its matrix
    values: Scalars
    vectors: Matrix


class CodedCorrection(Message, frozen=True):
    """f^(i), g^(i) and the compressed difference as bytes, which the compressor reads."""

    loss: float
    gradient: Gradient
    version: Version
    code: bytes


class Draw(Struct, frozen=True):
    """Where a correction is made: what the link carries there, and what the random numbers depend on."""

    agent: str
    t: int
    rank: int

    def random(self, seed: int | None, size: int) -> Vector:
        """Uniform numbers that follow from (seed, agent, t) alone: a repeated request draws them again."""
        return np.random.default_rng((seed or 0, name_key(self.agent), self.t)).random(size)


class RankR(Struct, frozen=True, tag=True):
    """The best approximation of the rank that the link carries; it is contractive with delta = R/n.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.algorithms.rivals.compressors import RankR
    >>> fedshed.algorithms.FedNL().compressor == RankR()
    True
    """

    rate: ClassVar[float] = 1.0
    message: ClassVar[type[Message]] = Correction

    def corrected(self, point: Point, version: int, A: Matrix, draw: Draw) -> Correction:
        """The eigenpairs of largest magnitude."""
        return Correction(point.value, point.gradient, version, *leading_part(A, draw.rank))

    def lost(self, point: Point) -> Correction:
        """The answer of an agent that lost its matrix."""
        n = len(point.gradient)
        return Correction(point.value, point.gradient, LOST, np.zeros(0), np.zeros((0, n)))

    def change(self, answer: Any) -> Packed:
        """The matrix that the answer stands for."""
        return pack((answer.vectors.T * answer.values) @ answer.vectors)


class _Coded(Struct, frozen=True):
    """A compressor whose answer is bytes."""

    message: ClassVar[type[Message]] = CodedCorrection

    def corrected(self, point: Point, version: int, A: Matrix, draw: Draw) -> CodedCorrection:
        """The code of A."""
        return CodedCorrection(point.value, point.gradient, version, self.encode(A, draw))

    def lost(self, point: Point) -> CodedCorrection:
        """The answer of an agent that lost its matrix."""
        return CodedCorrection(point.value, point.gradient, LOST, b"")

    def change(self, answer: Any) -> Packed:
        """The matrix that the answer stands for."""
        return self.decode(answer.code, len(answer.gradient))

    def encode(self, A: Matrix, draw: Draw) -> bytes:
        """C(A)."""
        raise NotImplementedError

    def decode(self, code: bytes, n: int) -> Packed:
        """C(A) as a packed matrix; CodecError for bytes that are not one."""
        raise NotImplementedError


class TopK(_Coded, frozen=True, tag=True):
    """The k entries of the triangle that matter most in the Frobenius norm; delta = k / (n(n + 1)/2).

    Parameters
    ----------
    k : int, optional
        The number of entries. Default: n entries for each eigenpair that the link carries, because a pair has
        as many numbers.

    Examples
    --------
    >>> import fedshed
    >>> from fedshed.algorithms.rivals.compressors import TopK
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.FedNL(compressor=TopK(k=200))
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    k: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    rate: ClassVar[float] = 1.0

    def encode(self, A: Matrix, draw: Draw) -> bytes:
        """The values in float64, then their places, both in the order of places."""
        packed, n = pack(A), len(A)
        times = pack(np.full((n, n), 2.0) - np.eye(n))  # an entry off the diagonal stands twice
        k = n * draw.rank if self.k is None else self.k
        places = np.sort(np.argsort(-times * np.square(packed), kind="stable")[:k])
        places = places[packed[places] != 0]
        code: bytes = packed[places].astype("<f8").tobytes() + places.astype(_place(n)).tobytes()
        return code

    def decode(self, code: bytes, n: int) -> Packed:
        """The triangle with these entries and no others."""
        size, kind = n * (n + 1) // 2, _place(n)
        count, rest = divmod(len(code), 8 + kind.itemsize)
        values = np.frombuffer(code, "<f8", count)
        places = np.frombuffer(code[8 * count :], kind, count).astype(np.int64)
        if rest or not np.isfinite(values).all() or (np.diff(places, append=size) <= 0).any():
            raise CodecError(
                f"{len(code)} bytes are not entries of a matrix of {n} columns in increasing order"
            )
        packed = np.zeros(size)
        packed[places] = values
        return packed


class Natural(_Coded, frozen=True, tag=True):
    """Each entry rounded at random to a power of two above or below: 9 bits per entry, omega = 1/8.

    Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural compression for distributed deep learning", MSML
    2022, Definition 1.  Exponents count down from the largest; what is 2^255 times smaller becomes 0.

    Parameters
    ----------
    seed : int, optional
        The seed of the random draws, which depend on (seed, agent, t) only. Default: the seed of the run.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.algorithms.rivals.compressors import Draw, Natural
    >>> code = Natural(seed=0).encode(np.array([[3.0, 0.0], [0.0, -4.0]]), Draw("north", 1, 1))
    >>> len(code), np.abs(Natural().decode(code, 2))[[1, 2]]
    (6, array([0., 4.]))
    """

    seed: int | None = None
    rate: ClassVar[float] = 1 / (1 + 1 / 8)

    def encode(self, A: Matrix, draw: Draw) -> bytes:
        """The largest exponent in 2 bytes, a byte for each entry's own, and the signs."""
        packed = pack(A)
        mantissa, exponent = np.frexp(packed)  # |mantissa| is in [1/2, 1)
        up = draw.random(self.seed, len(packed)) < 2 * np.abs(mantissa) - 1
        exponent = exponent + up
        top = int(exponent[packed != 0].max(initial=-1100))
        below = np.where(packed == 0, 255, np.minimum(top - exponent, 255))
        signs = np.packbits(packed < 0)
        return top.to_bytes(2, "little", signed=True) + below.astype(np.uint8).tobytes() + signs.tobytes()

    def decode(self, code: bytes, n: int) -> Packed:
        """Powers of two with a sign, and zeros."""
        size = n * (n + 1) // 2
        top = int.from_bytes(code[:2], "little", signed=True)
        if len(code) != 2 + size + (size + 7) // 8 or not -1100 <= top <= 500:
            raise CodecError(f"{len(code)} bytes are not the powers of two of a matrix of {n} columns")
        below = np.frombuffer(code[2:], np.uint8, size).astype(np.int32)
        signs = np.unpackbits(np.frombuffer(code[2 + size :], np.uint8), count=size)
        packed: Packed = np.where(below == 255, 0.0, np.ldexp(1.0 - 2.0 * signs, top - 1 - below))
        return packed


Compressor: TypeAlias = RankR | TopK | Natural


def unreadable(compressor: Compressor, answer: Any) -> str | None:
    """Why the code of an answer cannot be read, if it cannot."""
    if not isinstance(answer, CodedCorrection) or answer.version == LOST or isinstance(compressor, RankR):
        return None
    try:
        change = compressor.change(answer)
    except CodecError as error:
        return f"its correction cannot be read: {error}"
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.vdot(change, change))
    return None if finite else "its correction is too large to compute with"


def _place(n: int) -> np.dtype[Any]:
    """The smallest whole number of bytes that a place in the triangle fits into."""
    size = n * (n + 1) // 2
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def leading_part(A: Matrix, rank: int) -> tuple[Vector, Matrix]:
    """The best rank-d approximation of a symmetric matrix: its eigenpairs of largest magnitude."""
    n = len(A)
    if rank == 0 or not A.any():
        return np.zeros(0), np.zeros((0, n))
    values: NDArray[np.float64]
    if n < 20 or rank > n // 8:
        values, columns = np.linalg.eigh(A)
    else:
        from scipy.sparse.linalg import eigsh

        values, columns = eigsh(A, k=rank, which="LM", v0=A @ np.ones(n), tol=1e-10)
    order = np.argsort(-np.abs(values), kind="stable")[:rank]
    return values[order], np.ascontiguousarray(columns.T[order])
