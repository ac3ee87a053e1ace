"""Made-up responses of every family, for tests that need all of them."""

from __future__ import annotations

import numpy as np

RESPONSES = {
    "least-squares": lambda z, rng, cuts: z + rng.normal(size=len(z)),
    "logistic": lambda z, rng, cuts: np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), "yes", "no"),
    "poisson": lambda z, rng, cuts: rng.poisson(np.exp(z)),
    "gamma": lambda z, rng, cuts: rng.gamma(2.0, np.exp(z) / 2),
    "multinomial": lambda z, rng, cuts: np.array(["low", "mid", "high", "top"])[
        np.digitize(z + rng.normal(size=len(z)), cuts)
    ],
}
FAMILIES = tuple(RESPONSES)


def response(loss, z, rng, cuts=(0.0, 1.0)):
    """y of a family with linear predictor z; the classes of a multinomial one are cut from z and noise."""
    return RESPONSES[loss](z, rng, cuts)
