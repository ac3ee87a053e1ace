"""A convex model of all sites' rows, mean loss plus ridge, and what a solver paid for the point it shows."""

from typing import ClassVar

import numpy as np
from benchopt import BaseObjective

import fedshed

LOSSES = {  # of the linear predictor z and the target y, and its derivative in z
    "logistic": (lambda z, y: np.logaddexp(0, -y * z), lambda z, y: -y / (1 + np.exp(y * z))),
    "least-squares": (lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - y),
}


class Objective(BaseObjective):
    """f(theta) = mean of loss(x'theta, y) over all rows + l2 |theta|^2 / 2."""

    name = "Federated convex model"
    min_benchopt_version = "1.8"
    sampling_strategy = "callback"
    parameters: ClassVar = {"l2": [1e-5]}

    def set_data(self, sites, loss):
        """`sites` maps a name to its (X, y); y is +1 or -1 for the logistic loss."""
        self.sites, self.loss = sites, loss
        federation = fedshed.Federation.from_sites(sites)
        _, self.f_star = fedshed.optimum(federation, loss=loss, l2=self.l2)

    def get_objective(self):
        """What a solver is given."""
        return {"sites": self.sites, "loss": self.loss, "l2": self.l2}

    def evaluate_result(self, theta, rounds, exchanges, bits_up, bits_down):
        """The gap f - f*, the gradient's norm, and the costs: bits are totals over all sites."""
        f, g = self.cost(theta)
        return {
            "value": f - self.f_star, "grad_norm": float(np.linalg.norm(g)),
            "rounds": rounds, "exchanges": exchanges, "bits_up": bits_up, "bits_down": bits_down,
        }  # fmt: skip

    def cost(self, theta):
        """f and its gradient, in plain numpy: no solver marks its own work."""
        value, slope = LOSSES[self.loss]
        N = sum(len(y) for _, y in self.sites.values())
        f, g = self.l2 * theta @ theta / 2, self.l2 * theta
        for X, y in self.sites.values():
            z = X @ theta
            f, g = f + value(z, y).sum() / N, g + X.T @ slope(z, y) / N
        return float(f), g

    def get_one_result(self):
        """The start, for nothing."""
        X, _ = next(iter(self.sites.values()))
        nothing = dict.fromkeys(("rounds", "exchanges", "bits_up", "bits_down"), 0)
        return {"theta": np.zeros(X.shape[1]), **nothing}
