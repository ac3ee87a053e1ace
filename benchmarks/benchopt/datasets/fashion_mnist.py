"""Fashion-MNIST on 300 principal directions; in FEDSHED_DATA, or from OpenML (docs/data.md)."""

from typing import ClassVar

from benchopt import BaseDataset

import fedshed


class Dataset(BaseDataset):
    """One class against the others, dealt to 28 agents."""

    name = "fashion-mnist"
    parameters: ClassVar = {"partition": ["two-class", "iid"]}

    def get_data(self):
        """The rows of each agent."""
        federation = fedshed.datasets.load("fashion-mnist", partition=self.partition)
        return {"sites": {i: (t.X, t.y) for i, t in federation.tables.items()}, "loss": "logistic"}
