"""One self-contained, interactive page: curves, costs to a target, agents, spectra, and how to rerun it."""

from fedshed.report.model import (
    Agent,
    Coefficient,
    Fit,
    Grid,
    Problem,
    Report,
    Rerun,
    Run,
    Spectrum,
    Times,
    versions,
)
from fedshed.report.page import page, payload, write
from fedshed.report.recorder import Recorder

__all__ = [
    "Agent", "Coefficient", "Fit", "Grid", "Problem", "Recorder", "Report", "Rerun", "Run", "Spectrum",
    "Times", "page", "payload", "versions", "write",
]  # fmt: skip
