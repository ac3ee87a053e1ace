"""PEN's dither: where agents are alike, errors of rounding are alike too, and do not average out.

The Master sees it in its own numbers (`coherence`) and asks for dithered changes: rounded at random, with
draws that differ between agents, so that the mean over agents keeps what each of them alone would round to 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.algorithms.pen.coding import digest_of
from fedshed.linalg.arrays import Packed, Vector

COHERENT = 5.0  # rho above it means a bias; chosen on F5, F6, F8 (1 to 3.4) and W5 (7.6 and more)
GOLDEN = (5**0.5 - 1) / 2  # multiples of it are evenly spread modulo 1


def coherence(missed: Vector, noise: float, u: Vector) -> float:
    """rho = ||r|| / (nu ||u|| / 2), for what the mean Hessian missed along u; at most about 1 for noise.

    r = sum_i p_i [g_i(new) - g_i - (W_i(old) + W_i(new)) u / 2] is the trapezoidal rule's error; a random
    symmetric matrix of spectral radius nu has ||E u|| near nu ||u|| / 2.
    """
    radius = noise / 2 * float(np.linalg.norm(u))
    return float(np.linalg.norm(missed)) / max(radius, 1e-300)


class Dither(Struct, frozen=True):
    """How one agent rounds at random: its place among the agents, its seed, the error of its last Hessian."""

    index: int
    seed: int
    error: Packed | None = None  # its last Hessian less its copy, both in the frame of the move

    def symbols(self, R: Packed, c: float, step: float, key: bytes) -> Packed:
        """Symbols of R = W_new - c W_copy: the *change* since the last Hessian, R - c error, is dithered.

        The error itself is sent again only where it exceeds a step: dithered each time it would be noise.
        """
        if self.error is None:
            return np.asarray(np.floor(R / step + self.draws(key, len(R))))
        old = c * self.error
        symbols: Packed = np.floor((R - old) / step + self.draws(key, len(R)))
        large = np.flatnonzero(np.abs(old) > step)
        own = np.random.default_rng(self.seed).random(len(large))
        symbols[large] += np.floor(old[large] / step + own)
        return symbols

    def draws(self, key: bytes, size: int) -> NDArray[np.float32]:
        """frac(V + index golden): each is uniform on [0, 1), and over the agents they are spread evenly.

        So the error of a sum over agents is smaller than with independent draws.
        """
        v = _common_draws(digest_of(0, key), size) + np.float32((self.index * GOLDEN) % 1.0)
        return np.asarray(v - np.floor(v), dtype=np.float32)


@lru_cache(maxsize=2)
def _common_draws(seed: int, size: int) -> NDArray[np.float32]:
    """V, the same at every agent: a function of the coded step of the move."""
    draws = np.random.default_rng(seed).random(size, dtype=np.float32)
    draws.flags.writeable = False
    return draws
