"""Symmetric matrices for the tests."""

from __future__ import annotations

import numpy as np


def spd(n, seed, spread=3.0):
    """A positive definite matrix with eigenvalues from exp(-spread) to exp(spread) and random axes."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    A = (Q * np.exp(rng.uniform(-spread, spread, n))) @ Q.T
    return (A + A.T) / 2


def symmetric(n, rng):
    """A random symmetric matrix: its spectral radius is near 2 (||A||_F^2 / n)^0.5."""
    A = rng.normal(size=(n, n))
    return (A + A.T) / np.sqrt(2)
