"""Local tables (`Federation`), named data sets (`load`), and ways to distribute their rows over agents."""

from fedshed.datasets.examples import example_tables
from fedshed.datasets.loaders import labels, load, names
from fedshed.tables.federation import Federation, Table

__all__ = ["Federation", "Table", "example_tables", "labels", "load", "names"]
