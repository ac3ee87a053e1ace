"""Experiments: algorithms compared on the same data, and the figures of such comparisons."""

from fedshed.experiments.compare import compare
from fedshed.experiments.comparison import Comparison, Trial
from fedshed.experiments.study import ComparisonSpec
from fedshed.experiments.summaries import Summary

__all__ = ["Comparison", "ComparisonSpec", "Summary", "Trial", "compare"]
