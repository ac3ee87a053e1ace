"""Symmetric matrices for the tests."""

from __future__ import annotations

import numpy as np


def spd(n, seed, spread=3.0):
    """A positive definite matrix with eigenvalues from exp(-spread) to exp(spread) and random axes."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (Q * np.exp(rng.uniform(-spread, spread, n))) @ Q.T
