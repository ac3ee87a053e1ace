"""scikit-learn's digits: 8 x 8 pixels, nothing to download."""

from typing import ClassVar

from benchopt import BaseDataset

import fedshed


class Dataset(BaseDataset):
    """One class against the others, dealt to 20 agents."""

    name = "digits"
    parameters: ClassVar = {"partition": ["two-class", "iid"]}

    def get_data(self):
        """The rows of each agent."""
        federation = fedshed.datasets.load("digits", partition=self.partition)
        return {"sites": {i: (t.X, t.y) for i, t in federation.tables.items()}, "loss": "logistic"}
