"""Made-up responses of every family, for tests that need all of them."""

from __future__ import annotations

import numpy as np

FAMILIES = ("least-squares", "logistic", "poisson", "gamma", "multinomial")


def response(loss, z, rng, cuts=(0.0, 1.0)):
    """y of a family with linear predictor z; the classes of a multinomial one are cut from z and noise."""
    if loss == "least-squares":
        return z + rng.normal(size=len(z))
    if loss == "logistic":
        return np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), "yes", "no")
    if loss == "poisson":
        return rng.poisson(np.exp(z))
    if loss == "gamma":
        return rng.gamma(2.0, np.exp(z) / 2)
    return np.array(["low", "mid", "high", "top"])[np.digitize(z + rng.normal(size=len(z)), cuts)]
