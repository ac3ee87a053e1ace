"""Rows drawn at sites that differ in size, in their mean, and in what y depends on."""

from typing import ClassVar

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Columns with a decaying spectrum; sizes grow from site to site, means move apart by `shift`."""

    name = "simulated"
    parameters: ClassVar = {"loss": ["logistic", "least-squares"], "agents": [10], "n": [50], "shift": [0.5]}

    def get_data(self):
        """The rows of each agent."""
        rng = np.random.default_rng(0)
        truth = rng.normal(size=self.n)
        return {
            "sites": {f"agent-{i:02}": self.site(rng, truth, i) for i in range(self.agents)},
            "loss": self.loss,
        }

    def site(self, rng, truth, i):
        """X and y of agent i."""
        rows, scales = 100 + 20 * i, np.geomspace(1, 0.03, self.n)
        X = rng.normal(loc=self.shift * rng.normal(size=self.n), size=(rows, self.n)) * scales
        z = X @ (truth + self.shift * rng.normal(size=self.n)) + rng.normal(size=rows)
        return X, z if self.loss == "least-squares" else np.where(z > 0, 1.0, -1.0)
