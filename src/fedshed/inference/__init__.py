"""Statistics after convergence: one exchange of exact Hessians gives standard errors, tests and a summary."""

from fedshed.inference.classes import per_class, reference_class
from fedshed.inference.infer import Evidence, gather, infer, infer_from, robust_by_rows
from fedshed.inference.records import Score, SiteReport
from fedshed.inference.result import FewSitesWarning, Inference
from fedshed.inference.summary import Summary

__all__ = [
    "Evidence",
    "FewSitesWarning",
    "Inference",
    "Score",
    "SiteReport",
    "Summary",
    "gather",
    "infer",
    "infer_from",
    "per_class",
    "reference_class",
    "robust_by_rows",
]
