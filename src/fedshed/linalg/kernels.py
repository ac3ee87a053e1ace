"""Kernels for the leading eigenpairs of F'F, at a cost that follows how many are sent.

A kernel is a pure function of the factor and of how many pairs are wanted, so an agent that lost its cache
draws the same bits again.  All work on the shorter side: FF' where F has fewer rows than columns.  Of dense
factors of one shape `short_sides` gives the same, one bit like the other, in one pass over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy import matrix_transpose
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.linalg.blas import dsymv, dtrsm

from fedshed._utils.errors import SingularError
from fedshed.linalg.arrays import Matrix, Scalars
from fedshed.linalg.rows import Rows, gram

Pairs: TypeAlias = tuple[Scalars, Matrix]  # falling eigenvalues, eigenvectors as columns; or many of each
Stack: TypeAlias = NDArray[np.float64]  # matrices of one shape
Product: TypeAlias = Callable[[Matrix], Matrix]


class _Kernel(Struct, frozen=True):
    """What kernels have in common unless they say otherwise."""

    look_ahead: ClassVar[int] = 64  # rounds before the next renewal whose pairs are drawn at once

    def few(self, m: int) -> float:
        """The pairs of a short side of m from which on all of them cost about the same."""
        return m / 4

    def short_sides(self, F: Stack, count: int) -> Pairs | None:
        """None: one factor after the other."""
        return None


class Textbook(_Kernel, frozen=True, tag=True):
    """All pairs by a dense eigendecomposition: the reference that the others are tested against."""

    def short_side(self, F: Rows, count: int) -> Pairs:
        """All eigenpairs of the Gram matrix of the shorter side."""
        values, columns = np.linalg.eigh(short_gram(F))
        return values[::-1], columns[:, ::-1]

    def short_sides(self, F: Stack, count: int) -> Pairs | None:
        """The same of many dense factors."""
        values, columns = np.linalg.eigh(_short_grams(F))
        return values[:, ::-1], columns[:, :, ::-1]


class Tridiagonal(_Kernel, frozen=True, tag=True):
    """One Householder tridiagonalisation Q T Q', the pairs of T that are wanted, and Q on those alone: exact.

    Few pairs of T by MRRR (Dhillon and Parlett 2004), more by QL and inverse iteration, many by divide and
    conquer: each where it costs least.
    """

    def short_side(self, F: Rows, count: int) -> Pairs:
        """The leading `count` eigenpairs of the Gram matrix of the shorter side, or more."""
        m = min(F.shape)
        if _small(m, count):
            return Textbook().short_side(F, count)
        S = np.asfortranarray(short_gram(F))
        c, d, e, tau, info = lapack.dsytrd(S, lower=1, lwork=_panel(m) * m, overwrite_a=1)
        values, Z, info = _few(d, e, count) if 4 * count <= m else lapack.dstevd(d, e, compute_v=1)
        if info:
            raise SingularError(f"LAPACK found no eigenpairs of a tridiagonal matrix of size {m} ({info = })")
        columns = np.asfortranarray(Z[:, ::-1][:, :count])
        columns[1:] = lapack.dormqr("L", "N", c[1:, :-1], tau, columns[1:], lwork=32 * count)[0]
        return values[::-1][:count], columns

    def short_sides(self, F: Stack, count: int) -> Pairs | None:
        """All eigenpairs of small ones; None for others, each of which has a decomposition of its own."""
        return Textbook().short_sides(F, count) if _small(min(F.shape[1:]), count) else None


class Subspace(_Kernel, frozen=True, tag=True):
    """Nystrom's approximation from a randomised subspace (Halko, Martinsson and Tropp 2011, Algorithm 5.5).

    S is replaced by Y (Q'Y)^-1 Y' with Y = S Q, which never exceeds it.  It starts from fixed random columns,
    not from the vectors of an earlier Hessian: what an agent answers must not depend on what it remembers.
    """

    passes: int = 1
    extra: int = 4
    look_ahead: ClassVar[int] = 7  # a few more cost a few more: drawing them again is no loss

    def few(self, m: int) -> float:
        """Of a small side, of which many pairs take all that there are, some more."""
        return 0.4 * m if m < 2 * SMALL else m / 4

    def short_side(self, F: Rows, count: int) -> Pairs:
        """`count` approximate pairs of the shorter side."""
        m, width = min(F.shape), count + self.extra
        if self._too_wide(m, width):
            return Tridiagonal().short_side(F, count)
        product = _product(
            F, dense=_forms(F.shape, F.size, isinstance(F, np.ndarray), width, self.passes + 1)
        )
        try:
            return self._ritz(product, m, count, F.shape[0] < F.shape[1])
        except np.linalg.LinAlgError:  # S is 0, or too near to it for the shift
            return Tridiagonal().short_side(F, count)

    def short_sides(self, F: Stack, count: int) -> Pairs | None:
        """The same of many dense factors; None where one of them has too low a rank for that."""
        (rows, n), width = F.shape[1:], count + self.extra
        m = min(rows, n)
        if self._too_wide(m, width):
            return Tridiagonal().short_sides(F, count)
        if not _forms((rows, n), rows * n, True, width, self.passes + 1):
            return None
        S = _short_grams(F)
        try:
            return self._ritz(lambda Q: S @ Q, m, count, rows < n)
        except np.linalg.LinAlgError:
            return None

    def _too_wide(self, m: int, width: int) -> bool:
        return (2 if m < 2 * SMALL else 3) * width >= m or m < SMALL

    def _ritz(self, product: Product, m: int, count: int, wide: bool) -> Pairs:
        """The pairs of Nystrom's approximation, from products with one Gram matrix or with many of them."""
        width = count + self.extra
        Q = _random_columns(1 << (m - 1).bit_length(), width)[:m]
        for _ in range(self.passes):
            Q = _orthonormal(product(Q))
        Y = product(Q)
        B = matrix_transpose(Q) @ Y
        shift = EPS * m**0.5 * _norms(Y)  # above the rounding of B, whatever the rank of S
        L = np.linalg.cholesky((B + matrix_transpose(B)) / 2 + shift * np.eye(width))
        E = _solved(L, matrix_transpose(Y + shift * Q))
        squares, U = np.linalg.eigh(E @ matrix_transpose(E))
        squares, U = squares[..., ::-1][..., :count], U[..., ::-1][..., :count]
        floor = shift if E.ndim == 2 else shift[:, :, 0]
        if wide:  # Ritz pairs of F'F on F'Q: vectors that F' makes orthonormal
            return squares - floor, Q @ _solved(L, U, transposed=1)
        scales = np.sqrt(np.maximum(squares, floor))
        return squares - floor, (matrix_transpose(E) @ U) / scales[..., None, :]


class Lanczos(_Kernel, frozen=True, tag=True):
    """Implicitly restarted Lanczos (ARPACK) to machine precision: few pairs of a large factor."""

    look_ahead: ClassVar[int] = 8

    def short_side(self, F: Rows, count: int) -> Pairs:
        """The leading `count` eigenpairs of the shorter side, by products with F or its Gram matrix."""
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

        m = min(F.shape)
        if 2 * count >= m:
            return Tridiagonal().short_side(F, count)
        dense = isinstance(F, np.ndarray)
        product = _product(F, dense=_forms(F.shape, F.size, dense, 1, 100 + 10 * count))
        operator = LinearOperator((m, m), matvec=product, dtype=float)
        rng, basis = np.random.default_rng(0), min(m, 2 * count + 30)  # rng: also where it must start again
        start = rng.standard_normal(m)
        try:
            values, columns = eigsh(operator, k=count, v0=start, which="LA", ncv=basis, rng=rng)
        except ArpackError:  # F is 0, or far from convergence
            return Tridiagonal().short_side(F, count)
        return values[::-1], columns[:, ::-1]


class Automatic(Struct, frozen=True, tag=True):
    """The cheapest kernel for (n, N, density, pairs), exact unless `approximate` (docs/performance.md)."""

    approximate: bool = False

    @property
    def look_ahead(self) -> int:
        """Rounds before the next renewal whose pairs are drawn at once."""
        return Subspace.look_ahead if self.approximate else Tridiagonal.look_ahead

    def few(self, m: int) -> float:
        """The pairs of a short side of m from which on all of them cost about the same."""
        return Subspace().few(m) if self.approximate else Tridiagonal().few(m)

    def choose(self, F: Rows, count: int) -> Chosen:
        """Crossovers measured on one core; the short side decides, not n."""
        m = min(F.shape)
        if self.approximate and count <= self.few(m):
            return Subspace()
        if m >= LANCZOS_FROM and 25 * count <= m:
            return Lanczos()
        return Tridiagonal()


Chosen: TypeAlias = Textbook | Tridiagonal | Subspace | Lanczos
Kernel: TypeAlias = Chosen | Automatic
EPS = float(np.finfo(float).eps)
BLOCKED = 10  # a product of dense matrices does so many times more multiplications in a second
LANCZOS_FROM = 500  # from here on few pairs by Lanczos cost less than a tridiagonalisation
SMALL = 32  # below this a dense eigendecomposition is as quick as anything


def _small(m: int, count: int) -> bool:
    """Whether so many pairs are drawn by a dense eigendecomposition: many ones below twice SMALL, too."""
    return m < SMALL or (m < 2 * SMALL and 4 * count > m)


def _orthonormal(Y: Matrix) -> Matrix:
    """A basis of the same span: by Cholesky, which is quick, or by Householder where Y is nearly singular.

    Of many matrices, one of which is, there is none.
    """
    try:
        L = np.asarray(np.linalg.cholesky(matrix_transpose(Y) @ Y), dtype=float)
        pivots = np.diagonal(L, axis1=-2, axis2=-1)
        if (pivots.min(axis=-1) ** 2 < 1e-10 * pivots.max(axis=-1) ** 2).any():
            raise np.linalg.LinAlgError("nearly singular")
    except np.linalg.LinAlgError:
        if Y.ndim > 2:
            raise
        return np.linalg.qr(Y)[0]
    return matrix_transpose(_solved(L, matrix_transpose(Y)))


def _solved(L: Matrix, B: Matrix, transposed: int = 0) -> Matrix:
    """L^-1 B, or L'^-1 B, of one or of many lower triangular L."""
    if L.ndim == 2:
        return np.asarray(dtrsm(1.0, L, B, lower=1, trans_a=transposed))
    each = [dtrsm(1.0, one, other, lower=1, trans_a=transposed).T for one, other in zip(L, B, strict=True)]
    return matrix_transpose(np.stack(each))  # in LAPACK's order, as one of them is


def _norms(Y: Matrix) -> Any:
    """The Frobenius norm of a matrix, or of each of many."""
    return (
        float(np.linalg.norm(Y)) if Y.ndim == 2 else np.array([np.linalg.norm(y) for y in Y])[:, None, None]
    )


@lru_cache(maxsize=8)
def _random_columns(rows: int, count: int) -> Matrix:
    """Always the same ones."""
    return np.random.default_rng(0).standard_normal((rows, count))


def short_gram(F: Rows) -> Matrix:
    """F'F or FF', whichever is smaller; a small sparse factor is as quick made dense once."""
    F = F if F.shape[0] >= F.shape[1] else F.T
    small = F.shape[0] * F.shape[1] <= 1 << 18 and not isinstance(F, np.ndarray)
    return np.asarray(F.T @ F.toarray()) if small else gram(F)


def _short_grams(F: Stack) -> Stack:
    """The same of many dense factors, by the same products."""
    return matrix_transpose(F) @ F if F.shape[1] >= F.shape[2] else F @ matrix_transpose(F)


def _panel(m: int) -> int:
    """Columns that dsytrd reduces before it updates the rest: few where the matrix fits into the cache."""
    return 8 if m < 600 else 32


def _few(d: Scalars, e: Scalars, count: int) -> Any:
    """The last `count` eigenpairs of a tridiagonal matrix, rising, and LAPACK's word on them."""
    m = len(d)
    if count <= 2 + m // 16:
        il, iu = m - count + 1, m
        found, values, Z, info = lapack.dstemr(d, np.append(e, 0.0), 2, 0.0, 0.0, il, iu, compute_v=1)
        return values[:found], Z[:, :found], info
    values, info = lapack.dsterf(d, e)
    # as one block even where T falls apart: so vectors of equal values in two blocks are made orthogonal too
    one_block = np.ones(m, dtype=np.int32), np.full(m, m, dtype=np.int32)
    Z, failed = lapack.dstein(d, e, values[-count:], *one_block)
    if failed or not np.isfinite(np.vdot(Z, Z)):  # values so large or small that LAPACK scales them elsewhere
        return lapack.dstevd(d, e, compute_v=1)
    return values[-count:], Z, info


def _forms(shape: tuple[int, ...], size: int, dense: bool, width: int, products: int) -> bool:
    """Whether so many products with so many columns cost less once the Gram matrix is there.

    Of a factor with this shape and so many entries.
    """
    m = int(min(shape))
    gram = size * m / (2 * BLOCKED) if dense else size * m
    formed, unformed = _work(m * m, width, True), 2 * _work(size, width, dense)
    return bool(gram + products * formed < products * unformed)


def _work(entries: int, width: int, dense: bool) -> float:
    """Multiplications of a matrix with so many columns, those of dense blocks counted as they cost."""
    return entries * width / (BLOCKED if dense and width >= 8 else 1)


def _product(F: Rows, dense: bool) -> Any:
    """Q -> S Q for the Gram matrix S of the shorter side; formed first where that costs less."""
    if dense:
        S = short_gram(F)
        return lambda Q: S @ Q if Q.ndim > 1 else dsymv(1.0, S.T, Q)  # which reads half of S
    tall = F if F.shape[0] >= F.shape[1] else F.T
    wide = tall.T
    return lambda Q: wide @ (tall @ Q)
