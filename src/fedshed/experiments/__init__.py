"""Experiments: algorithms compared on the same data, and the figures of such comparisons."""

from fedshed.experiments.compare import compare
from fedshed.experiments.comparison import Comparison, Summary, Trial
from fedshed.experiments.study import ComparisonSpec

__all__ = ["Comparison", "ComparisonSpec", "Summary", "Trial", "compare"]
