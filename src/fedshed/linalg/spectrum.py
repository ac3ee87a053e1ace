"""The leading eigenpairs of an agent's Hessian G = F'F, as many as its messages need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct

from fedshed.linalg.arrays import Matrix, Scalars, Vector
from fedshed.linalg.columns import Batched, Narrow, narrowed
from fedshed.linalg.kernels import Automatic, Kernel, Stack, Textbook
from fedshed.linalg.rows import Rows

EPS = float(np.finfo(float).eps)


class Leading(Struct, frozen=True, gc=False):
    """The first q eigenpairs of F'F, vectors as rows, and one eigenvalue more: lambda_1 to lambda_{q+1}.

    `complete`: no pairs follow, because the rest is below the data rank (lambda <= n eps lambda_1) or v_n.
    Values that rounding hides are reported as n eps lambda_1, so that rho stays an upper bound; those beyond
    the number of rows or of distinct columns in use are exactly 0.
    """

    kernel: str
    values: Scalars
    vectors: Matrix
    complete: bool
    smallest: float | None = None  # lambda_n, where all pairs were drawn

    @property
    def q(self) -> int:
        """Number of pairs."""
        return len(self.vectors)

    @property
    def spectrum(self) -> Scalars:
        """All n eigenvalues where all pairs were drawn, else those at hand; beyond the rank all are alike."""
        rest = max(self.vectors.shape[1] - len(self.values), 0) if self.smallest is not None else 0
        return np.append(self.values, np.full(rest, self.smallest)) if rest else self.values

    def followed_by(self, more: Leading) -> Leading:
        """These pairs, and those of a larger set that follow: an orthonormal basis even where values repeat.

        The rows W of `more` are turned by the null space of W V', so that nothing of V is left in them.
        """
        turn = np.linalg.svd(more.vectors @ self.vectors.T)[0][:, self.q :]
        values, mix = np.linalg.eigh((turn.T * more.values[: more.q]) @ turn)
        rows = (turn @ mix[:, ::-1]).T @ more.vectors
        chain = np.concatenate([self.values[: self.q], values[::-1], more.values[more.q :]])
        return Leading(
            more.kernel,
            np.minimum.accumulate(chain),
            np.concatenate([self.vectors, rows]),
            more.complete,
            more.smallest,
        )


def leading(factor: Rows | Narrow | Batched, count: int, kernel: Kernel) -> Leading:
    """At least the first `count` eigenpairs of F'F, unless its rank is lower."""
    if isinstance(factor, Batched):
        if isinstance(kernel, Automatic):
            return _drawn_together(factor, count)
        factor = factor.narrow()
    narrow = factor if isinstance(factor, Narrow) else narrowed(factor)
    F, n = narrow.rows, len(narrow.columns.place)
    m = min(F.shape)
    wanted = min(count + 1, m)
    chosen = kernel.choose(F, wanted) if isinstance(kernel, Automatic) else kernel
    name = type(chosen).__name__
    if m == 0:
        return _nothing(name, n)
    values, short = chosen.short_side(F, wanted)
    return _ranked(name, values, m, n, lambda q: narrow.columns.expand(_lifted(F, short[:, :q])))


def leading_together(factors: Stack, count: int, kernel: Kernel) -> list[Leading] | None:
    """`leading` of dense factors of one shape, all of whose columns matter; None: one after the other."""
    rows, n = factors.shape[1:]
    wanted = min(count + 1, n)
    chosen = kernel.choose(factors[0], wanted) if isinstance(kernel, Automatic) else kernel
    found = chosen.short_sides(factors, wanted) if rows >= n > 0 else None
    if found is None:
        return None
    name, vectors = type(chosen).__name__, np.ascontiguousarray(np.matrix_transpose(found[1]))
    each = zip(found[0], vectors, strict=True)
    return [_ranked(name, values, n, n, partial(_first_rows, own)) for values, own in each]


def _first_rows(rows: Matrix, count: int) -> Matrix:
    return rows[:count]


def _drawn_together(batched: Batched, count: int) -> Leading:
    """The same of pairs that were computed for many agents at once."""
    name, m = type(batched).__name__, batched.short
    if m == 0:
        return _nothing(name, batched.n)
    values, vectors = batched.pairs(min(count + 1, m))
    return _ranked(name, values[:m], m, batched.n, partial(_first_rows, vectors))


def _nothing(kernel: str, n: int) -> Leading:
    """The pairs of a Hessian that is 0."""
    return Leading(kernel, np.zeros(1), np.zeros((0, n)), True, 0.0)


def _ranked(kernel: str, values: Scalars, m: int, n: int, vectors: Callable[[int], Matrix]) -> Leading:
    """The pairs above the floor of rounding, of the m values at most that are not known to be 0."""
    floor = n * EPS * max(values[0], 0.0)
    q = min(int(np.count_nonzero(values > floor)), n - 1)
    whole = len(values) == m
    if not whole and q == len(values):  # the last one is the rho of the others
        q -= 1
    rho = max(values[q], floor) if q < len(values) else 0.0
    smallest = float(max(values[-1], floor) if m == n else 0.0) if whole else None
    complete = whole or rho <= floor or q == n - 1
    first = np.full(q + 1, rho)
    first[:q] = values[:q]
    return Leading(kernel, first, vectors(q), complete, smallest)


def leading_eigenpairs(factor: Rows) -> tuple[Vector, Matrix]:
    """All n eigenvalues of F'F in descending order, and the eigenvectors up to the data rank as rows."""
    pairs = leading(factor, factor.shape[1], Textbook())
    return pairs.spectrum, pairs.vectors


def _lifted(F: Rows, short: Matrix) -> Matrix:
    """Eigenvectors of F'F as rows: themselves, or the rows of U'F, made unit, from those of FF'."""
    if F.shape[0] >= F.shape[1]:
        return short.T
    rows = np.asarray((F.T @ short).T)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Matrix = rows / np.where(norms > 0, norms, 1.0)
    return unit
