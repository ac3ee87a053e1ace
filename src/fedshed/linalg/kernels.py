"""Kernels for the leading eigenpairs of F'F, at a cost that follows how many are sent.

A kernel is a pure function of the factor and of how many pairs are wanted, so an agent that lost its cache
draws the same bits again.  All work on the shorter side: FF' where F has fewer rows than columns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from scipy.linalg import lapack
from scipy.linalg.blas import dsymv, dtrsm

from fedshed._utils.errors import SingularError
from fedshed.linalg.arrays import Matrix, Scalars
from fedshed.linalg.rows import Rows, gram

Pairs: TypeAlias = tuple[Scalars, Matrix]  # falling eigenvalues, eigenvectors as columns


class Textbook(Struct, frozen=True, tag=True):
    """All pairs by a dense eigendecomposition: the reference that the others are tested against."""

    look_ahead: ClassVar[int] = 64  # rounds before the next renewal whose pairs are drawn at once

    def short_side(self, F: Rows, count: int) -> Pairs:
        """All eigenpairs of the Gram matrix of the shorter side."""
        values, columns = np.linalg.eigh(short_gram(F))
        return values[::-1], columns[:, ::-1]


class Tridiagonal(Struct, frozen=True, tag=True):
    """One Householder tridiagonalisation Q T Q', the pairs of T that are wanted, and Q on those alone: exact.

    Few pairs of T by MRRR (Dhillon and Parlett 2004), more by QL and inverse iteration, many by divide and
    conquer: each where it costs least.
    """

    look_ahead: ClassVar[int] = 64

    def short_side(self, F: Rows, count: int) -> Pairs:
        """The leading `count` eigenpairs of the Gram matrix of the shorter side, or more."""
        S = np.asfortranarray(short_gram(F))
        m = len(S)
        if m < SMALL:
            return Textbook().short_side(F, count)
        c, d, e, tau, info = lapack.dsytrd(S, lower=1, lwork=_panel(m) * m, overwrite_a=1)
        values, Z, info = _few(d, e, count) if 4 * count <= m else lapack.dstevd(d, e, compute_v=1)
        if info:
            raise SingularError(f"LAPACK found no eigenpairs of a tridiagonal matrix of size {m} ({info = })")
        columns = np.asfortranarray(Z[:, ::-1][:, :count])
        columns[1:] = lapack.dormqr("L", "N", c[1:, :-1], tau, columns[1:], lwork=32 * count)[0]
        return values[::-1][:count], columns


class Subspace(Struct, frozen=True, tag=True):
    """Nystrom's approximation from a randomised subspace (Halko, Martinsson and Tropp 2011, Algorithm 5.5).

    S is replaced by Y (Q'Y)^-1 Y' with Y = S Q, which never exceeds it.  It starts from fixed random columns,
    not from the vectors of an earlier Hessian: what an agent answers must not depend on what it remembers.
    """

    passes: int = 1
    extra: int = 4
    look_ahead: ClassVar[int] = 7  # a few more cost a few more: drawing them again is no loss

    def short_side(self, F: Rows, count: int) -> Pairs:
        """`count` approximate pairs of the shorter side."""
        m, width = min(F.shape), count + self.extra
        if 3 * width >= m or m < SMALL:
            return Tridiagonal().short_side(F, count)
        product = _product(F, dense=_forms(F, width, self.passes + 1))
        Q = _random_columns(1 << (m - 1).bit_length(), width)[:m]
        for _ in range(self.passes):
            Q = _orthonormal(product(Q))
        Y = product(Q)
        B = Q.T @ Y
        shift = EPS * m**0.5 * float(np.linalg.norm(Y))  # above the rounding of B, whatever the rank of S
        try:
            L = np.linalg.cholesky((B + B.T) / 2 + shift * np.eye(width))
        except np.linalg.LinAlgError:  # S is 0, or too near to it for the shift
            return Tridiagonal().short_side(F, count)
        E = dtrsm(1.0, L, (Y + shift * Q).T, lower=1)
        squares, U = np.linalg.eigh(E @ E.T)
        squares, U = squares[::-1][:count], U[:, ::-1][:, :count]
        if F.shape[0] < F.shape[1]:  # Ritz pairs of F'F on F'Q: vectors that F' makes orthonormal
            return squares - shift, Q @ dtrsm(1.0, L, U, lower=1, trans_a=1)
        return squares - shift, (E.T @ U) / np.sqrt(np.maximum(squares, shift))


class Lanczos(Struct, frozen=True, tag=True):
    """Implicitly restarted Lanczos (ARPACK) to machine precision: few pairs of a large factor."""

    look_ahead: ClassVar[int] = 8

    def short_side(self, F: Rows, count: int) -> Pairs:
        """The leading `count` eigenpairs of the shorter side, by products with F or its Gram matrix."""
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

        m = min(F.shape)
        if 2 * count >= m:
            return Tridiagonal().short_side(F, count)
        product = _product(F, dense=_forms(F, 1, 100 + 10 * count))
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

    def choose(self, F: Rows, count: int) -> Chosen:
        """Crossovers measured on one core; the short side decides, not n."""
        m = min(F.shape)
        if self.approximate and 4 * count <= m:
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


def _orthonormal(Y: Matrix) -> Matrix:
    """A basis of the same span: by Cholesky, which is quick, or by Householder where Y is nearly singular."""
    squares = Y.T @ Y
    try:
        L = np.linalg.cholesky(squares)
    except np.linalg.LinAlgError:
        return np.linalg.qr(Y)[0]
    pivots = np.diag(L)
    if pivots.min() ** 2 < 1e-10 * pivots.max() ** 2:
        return np.linalg.qr(Y)[0]
    return np.asarray(dtrsm(1.0, L, Y.T, lower=1).T)


@lru_cache(maxsize=8)
def _random_columns(rows: int, count: int) -> Matrix:
    """Always the same ones."""
    return np.random.default_rng(0).standard_normal((rows, count))


def short_gram(F: Rows) -> Matrix:
    """F'F or FF', whichever is smaller; a small sparse factor is as quick made dense once."""
    F = F if F.shape[0] >= F.shape[1] else F.T
    small = F.shape[0] * F.shape[1] <= 1 << 18 and not isinstance(F, np.ndarray)
    return np.asarray(F.T @ F.toarray()) if small else gram(F)


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


def _forms(F: Rows, width: int, products: int) -> bool:
    """Whether so many products with so many columns cost less once the Gram matrix is there."""
    m, dense = int(min(F.shape)), isinstance(F, np.ndarray)
    gram = F.size * m / (2 * BLOCKED) if dense else F.size * m
    formed, unformed = _work(m * m, width, True), 2 * _work(F.size, width, dense)
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
