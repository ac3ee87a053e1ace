"""One self-contained, interactive page: curves, costs to a target, agents, spectra, and how to rerun it."""

from fedshed.report.model import (
    Agent,
    Coefficient,
    Fit,
    Gap,
    Grid,
    Problem,
    Report,
    Rerun,
    Run,
    SiteTraffic,
    Spectrum,
    Times,
    versions,
)
from fedshed.report.page import page, payload, write
from fedshed.report.recorder import Recorder

__all__ = [
    "Agent", "Coefficient", "Fit", "Gap", "Grid", "Problem", "Recorder", "Report", "Rerun", "Run",
    "SiteTraffic", "Spectrum", "Times", "page", "payload", "versions", "write",
]  # fmt: skip
