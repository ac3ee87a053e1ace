"""How much one row contributes to what a site released: a number for the audit, which forbids nothing.

Each gradient is a sum of rows with weights v = w l', each curvature one of squared rows with v = w l''.
Let V have these vectors as rows.  A combination of what was released is about row j alone exactly if the
unit vector e_j is in the row space of V; in general the share of e_j that is there is its leverage,

    h_j = e_j' V' (V V')^+ V e_j,  from 0 to 1,

the diagonal of the hat matrix (Hoaglin and Welsch 1978, The American Statistician 32, 1).  Where the design
has a constant column, the curvature holds sum_j v_j x_j too, so both kinds of vectors are about the same rows
and belong to one basis.  Honest fits reach any value, and attacks can stay below 0.5, so it only says
where to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedshed._utils.errors import CodecError
from fedshed.linalg.arrays import Vector

MOST_ROWS = 5_000  # beyond it nothing is said: it would cost more than the answers themselves
LARGEST_BASIS = 4_000_000  # numbers; beyond it nothing is said
AT_ONCE = 65_536  # numbers in a basis: a larger one is extended by several vectors at a time
SEVERAL = 16
TINY, HUGE = 1e-200, 1e200  # sums of squares that have neither lost digits nor overflowed
DEPENDENT = 1e-8  # of a vector's length: what is left of one in the span is rounding


class Leverage:
    """The largest leverage of a row in the vectors added so far, by an orthonormal basis of them.

    Parameters
    ----------
    rows : int
        How many rows the site has.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.privacy.leverage import Leverage
    >>> ledger = Leverage(4)
    >>> ledger.add(np.ones(4))
    0.25
    >>> ledger.add(np.array([2.0, 1.0, 1.0, 1.0]))
    1.0
    """

    def __init__(self, rows: int) -> None:
        self._store = np.zeros((0, rows))
        self._basis: NDArray[np.float64] | None = self._store if rows <= MOST_ROWS else None
        self._shares, self._pending = np.zeros(rows), list[Vector]()
        self.warned = False  # of a large one

    @property
    def largest(self) -> float | None:
        """The largest leverage; None where the basis became too large to be kept."""
        self._extend()
        return None if self._basis is None else float(min(self._shares.max(initial=0.0), 1.0))

    def add(self, vector: Vector) -> float | None:
        """The largest leverage with this vector; of a large site as it was a few vectors before."""
        if self._basis is None:
            return None
        self._pending.append(vector)
        if len(self._pending) >= (1 if self._basis.size < AT_ONCE else SEVERAL):
            self._extend()
        return None if self._basis is None else float(min(self._shares.max(initial=0.0), 1.0))

    def _extend(self) -> None:
        """Take in what is pending: Gram and Schmidt, twice for what is left (Giraud et al. 2005)."""
        if self._basis is None or not self._pending:
            return
        if (len(self._basis) + len(self._pending)) * len(self._shares) > LARGEST_BASIS:
            self._basis, self._store, self._pending = None, self._store[:0], []
            return
        rest = np.array([_unit(vector) for vector in self._pending])
        rest -= (rest @ self._basis.T) @ self._basis
        rest = rest[np.square(rest).sum(axis=1) > DEPENDENT**2]
        rest -= (rest @ self._basis.T) @ self._basis  # what has cancelled is not orthogonal yet
        self._pending, new = [], list[Vector]()
        for vector in rest:
            for other in new * 2:
                vector -= np.vdot(other, vector) * other
            length = sqrt(np.vdot(vector, vector))
            if length > DEPENDENT:
                new.append(vector / length)
                self._shares += new[-1] * new[-1]
        self._append(new)

    def _append(self, new: list[Vector]) -> None:
        """More vectors of the basis, in a store that grows by half of what it holds."""
        assert self._basis is not None
        count, more = len(self._basis), len(new)
        if count + more > len(self._store):
            self._store = np.concatenate([self._basis, np.empty((count // 2 + more + 4, len(self._shares)))])
        for j, vector in enumerate(new):
            self._store[count + j] = vector
        self._basis = self._store[: count + more]

    def save(self) -> bytes:
        """The basis as bytes, for a process that ends after each message."""
        self._extend()
        basis = None if self._basis is None else self._basis.tobytes()
        return msgspec.msgpack.encode((len(self._shares), basis, self.warned))

    def load(self, saved: bytes) -> None:
        """Take a saved basis back; CodecError if it is not one of so many rows."""
        rows = len(self._shares)
        try:
            count, basis, warned = msgspec.msgpack.decode(saved, type=tuple[int, bytes | None, bool])
            if count != rows:
                raise ValueError(f"a basis of {count} rows for a site of {rows}")
            found = None if basis is None else np.frombuffer(basis).reshape(-1, rows)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CodecError(f"{len(saved)} bytes are not a saved leverage: {error}") from error
        self._basis, self._store, self.warned, self._pending = found, self._store[:0], warned, []
        self._shares = np.zeros(rows) if found is None else np.square(found).sum(axis=0)


def curvature_vectors(curvatures: NDArray[np.float64]) -> Iterable[Vector]:
    """The weights of rows in each block of a curvature; between classes k < l they are p_k p_l."""
    if curvatures.ndim == 1:
        return [curvatures]
    return (
        curvatures[:, k] * curvatures[:, m]
        for k, m in zip(*np.triu_indices(curvatures.shape[1], 1), strict=True)
    )


def slope_vectors(slopes: NDArray[np.float64]) -> Iterable[Vector]:
    """The weights of rows in a gradient, of each class."""
    return [slopes] if slopes.ndim == 1 else slopes.T


def _unit(vector: Vector) -> Vector:
    """A vector of length one; one that is zero or not finite has no direction, and becomes zero."""
    squares = float(np.vdot(vector, vector))
    if TINY < squares < HUGE:
        return np.asarray(vector / sqrt(squares))
    largest = float(np.abs(vector).max(initial=0.0))
    return _unit(vector / largest) if 0.0 < largest < np.inf else np.zeros_like(vector)
