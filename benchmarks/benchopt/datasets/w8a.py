"""w8a of the LIBSVM page: 300 keywords, sparse; in FEDSHED_DATA (docs/data.md)."""

from typing import ClassVar

from benchopt import BaseDataset

import fedshed


class Dataset(BaseDataset):
    """One class against the others, dealt to 62 agents."""

    name = "w8a"
    parameters: ClassVar = {"partition": ["two-class", "iid"]}

    def get_data(self):
        """The rows of each agent."""
        federation = fedshed.datasets.load("w8a", partition=self.partition)
        return {"sites": {i: (t.X, t.y) for i, t in federation.tables.items()}, "loss": "logistic"}
