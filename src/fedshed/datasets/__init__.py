"""Local tables (`Federation`), named data sets (`load`), and how their rows are dealt to agents."""

from fedshed.datasets.federation import Federation, Table
from fedshed.datasets.loaders import labels, load, names

__all__ = ["Federation", "Table", "labels", "load", "names"]
