"""Experiments: algorithms compared on the same data, and the figures of such comparisons."""

from fedshed.experiments.compare import Comparison, Summary, compare
from fedshed.experiments.study import Study

__all__ = ["Comparison", "Study", "Summary", "compare"]
