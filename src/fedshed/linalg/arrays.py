"""The kinds of array that cross the wire; n is the dimension of theta, so no array needs a header.

And whose functions an array wants: NumPy's, or those of the device it is on (linalg/device.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Vector = NDArray[np.float64]
    Gradient = NDArray[np.float64]
    Matrix = NDArray[np.float64]
    Packed = NDArray[np.float64]
    Scalars = NDArray[np.float64]
    Extended = NDArray[np.float64]
else:
    _float64 = np.dtype[np.float64]
    Vector = np.ndarray[tuple[Literal["n"]], _float64]  # one vector of R^n
    Gradient = np.ndarray[tuple[Literal["n", "gradient"]], _float64]  # one whose accuracy the Master sets
    Matrix = np.ndarray[tuple[Literal["rows"], Literal["n"]], _float64]  # rows of R^n
    Packed = np.ndarray[tuple[Literal["n(n+1)/2"]], _float64]  # a symmetric n x n matrix
    Scalars = np.ndarray[tuple[Literal["few"]], _float64]  # a few numbers, not vectors of R^n
    Extended = np.ndarray[tuple[Literal["few", "extended"]], _float64]  # some of them may be infinite


NUMPYS = (np.ndarray, np.generic)
FEW = 1024  # rows of a matrix up to which the places of its entries are remembered: 12 MB


def namespace(x: Any) -> Any:
    """The module with the functions of an array: numpy, or the array API of its library."""
    if isinstance(x, NUMPYS):
        return np
    from array_api_compat import array_namespace

    return array_namespace(x)


class Host:
    """Where batches of arrays live: here, in NumPy's memory; `linalg.Device` is elsewhere."""

    xp: Any = np

    def asarray(self, x: NDArray[Any]) -> Any:
        """The array there."""
        return x

    def host(self, x: Any) -> NDArray[np.float64]:
        """The array here."""
        return np.asarray(x)


HOST = Host()


@lru_cache(maxsize=4)
def _upper(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(n)


@lru_cache(maxsize=2)
def _places(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the entries of the upper triangle are in the matrix, and those of the matrix in the triangle."""
    rows, columns = np.triu_indices(n)
    places = np.empty((n, n), dtype=np.intp)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return rows * n + columns, places


def in_rows(vectors: Sequence[Vector | None]) -> Matrix:
    """Vectors of one length, none of which is missing, as the rows of a matrix: faster than np.array."""
    return np.concatenate(vectors).reshape(len(vectors), -1)  # type: ignore[arg-type]


def pack(H: Matrix) -> Packed:
    """Upper triangle of a symmetric matrix, row by row: n(n + 1)/2 numbers."""
    n = len(H)
    return H[_upper(n)] if n > FEW or H.shape != (n, n) else H.ravel().take(_places(n)[0])


def pack_each(H: NDArray[np.float64]) -> Matrix:
    """`pack` of each of several matrices of at most FEW rows, in a row each."""
    count, n, _ = H.shape
    return H.reshape(count, n * n).take(_places(n)[0], axis=1)


def unpack(packed: Packed, n: int) -> Matrix:
    """The symmetric n x n matrix whose upper triangle is `packed`."""
    if n <= FEW and packed.shape == (n * (n + 1) // 2,):
        return packed.take(_places(n)[1])
    H = np.zeros((n, n))
    H[_upper(n)] = packed
    return H + np.triu(H, 1).T
