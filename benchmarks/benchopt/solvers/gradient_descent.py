"""An example to copy: a solver that does not use fedshed and counts its own rounds and bits."""

import numpy as np
from benchopt import BaseSolver


class Solver(BaseSolver):
    """Gradient descent with the step 1/K, K a bound on the curvature that sites agree on beforehand."""

    name = "gradient-descent"

    def set_objective(self, sites, loss, l2):
        """The problem; the curvature of the logistic loss is at most a quarter of the squares'."""
        self.sites, self.loss, self.l2 = sites, loss, l2
        self.N = sum(len(y) for _, y in sites.values())
        largest = sum(
            (X * X).sum() if isinstance(X, np.ndarray) else X.power(2).sum() for X, _ in sites.values()
        )
        self.step = 1 / (largest / self.N * (0.25 if loss == "logistic" else 1.0) + l2)

    def run(self, callback):
        """One exchange a round: theta goes down, a gradient comes up, 64 bits a number."""
        n = next(iter(self.sites.values()))[0].shape[1]
        self.theta, self.rounds = np.zeros(n), 0
        while callback():
            self.theta = self.theta - self.step * (
                sum(map(self.local, self.sites)) / self.N + self.l2 * self.theta
            )
            self.rounds += 1

    def local(self, site):
        """What a site sends: the sum of its rows' gradients."""
        X, y = self.sites[site]
        z = X @ self.theta
        return X.T @ (-y / (1 + np.exp(y * z)) if self.loss == "logistic" else z - y)

    def get_result(self):
        """The last iterate, and what it cost."""
        bits = 64 * len(self.theta) * len(self.sites) * self.rounds
        costs = {"rounds": self.rounds, "exchanges": self.rounds, "bits_up": bits, "bits_down": bits}
        return {"theta": self.theta, **costs}
