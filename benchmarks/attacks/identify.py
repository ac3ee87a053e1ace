"""How well an honest fit identifies single rows: the Gauss-Newton information of all that was told.

Entries of rows are drawn from the standard normal; what was told is known to an error of 1e-8.  Of the
variance of a row's entries, the share that is then explained is its identifiability: 1 means that the row is
known.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from benchmarks.attacks.sensitivity import Array, Told, jacobian

NOISE = 1e-8
BLOCK = 200  # rows whose derivatives are held at once


def identifiability(X: Array, y: Array, told: list[Told], noise: float = NOISE) -> Array:
    """The explained share of each row: tr(J_i' (J J' + noise^2)^-1 J_i) / p, J_i its derivatives."""
    rows, p = len(X), X.shape[1] - 1
    blocks = range(0, rows, BLOCK)
    R = np.zeros((0, sum(one.numbers for one in told)))
    for k in blocks:  # J J' = R'R, without squaring what is small
        stacked = np.vstack([R, _flat(X, y, told, k).T])
        R = scipy.linalg.qr(stacked, mode="r", check_finite=False)[0][: stacked.shape[1]]
    _, sizes, axes = scipy.linalg.svd(R, full_matrices=False, check_finite=False)
    white = axes / np.sqrt(np.square(sizes) + noise**2)[:, None]
    shares = [np.square(white @ _flat(X, y, told, k)).sum(axis=0).reshape(-1, p).mean(axis=1) for k in blocks]
    return np.concatenate(shares)


def _flat(X: Array, y: Array, told: list[Told], start: int) -> Array:
    """The derivatives by a block of rows, as a matrix."""
    some = slice(start, start + BLOCK)
    return jacobian(X[some], y[some], told, len(X)).reshape(-1, len(X[some]) * (X.shape[1] - 1))
