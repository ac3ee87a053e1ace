"""Preparation: sites agree on columns, levels, classes and scales before any gradient moves."""

from fedshed.preparation.csv_files import CsvFormat
from fedshed.preparation.plan import Plan
from fedshed.preparation.protocol import Prepared, negotiate, prepare
from fedshed.preparation.reading import read_sites, read_table, split
from fedshed.preparation.site import Preparer
from fedshed.preparation.study import Study, read_study, study_of

__all__ = [
    "CsvFormat",
    "Plan",
    "Prepared",
    "Preparer",
    "Study",
    "negotiate",
    "prepare",
    "read_sites",
    "read_study",
    "read_table",
    "split",
    "study_of",
]
