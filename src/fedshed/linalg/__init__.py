"""The few heavy kernels: leading eigenpairs at an agent, the solve at the Master."""

from fedshed.linalg.kernels import Automatic, Kernel, Lanczos, Subspace, Textbook, Tridiagonal
from fedshed.linalg.solve import DensePlusRidge, LowRankPlusDiagonal
from fedshed.linalg.spectrum import Leading, leading, leading_eigenpairs

__all__ = [
    "Automatic",
    "DensePlusRidge",
    "Kernel",
    "Lanczos",
    "Leading",
    "LowRankPlusDiagonal",
    "Subspace",
    "Textbook",
    "Tridiagonal",
    "leading",
    "leading_eigenpairs",
]
