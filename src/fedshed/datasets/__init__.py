"""Local tables (`Federation`), named data sets (`load`), and how their rows are dealt to agents."""

from fedshed.datasets.loaders import labels, load, names
from fedshed.tables.federation import Federation, Table

__all__ = ["Federation", "Table", "labels", "load", "names"]
