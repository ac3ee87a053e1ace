"""Preparation: sites agree on columns, levels, classes and scales before the first gradient is sent."""

from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.protocol import Prepared, negotiate, prepare
from fedshed.preparation.site import Preparer
from fedshed.preparation.study import Study, read_study, study_of

__all__ = [
    "DesignPlan",
    "Prepared",
    "Preparer",
    "Study",
    "negotiate",
    "prepare",
    "read_study",
    "study_of",
]
