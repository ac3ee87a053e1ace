"""A site's rows: reading them from files and frames, checking them, and holding them as a `Federation`."""

from fedshed.tables.csv_files import CsvFormat
from fedshed.tables.federation import Federation
from fedshed.tables.reading import read_sites, read_table, split
from fedshed.tables.stored import Table

__all__ = ["CsvFormat", "Federation", "Table", "read_sites", "read_table", "split"]
