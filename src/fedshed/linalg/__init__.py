"""The few heavy kernels: leading eigenpairs at an agent, the solve at the Master."""

from fedshed.linalg.solve import DensePlusRidge, LowRankPlusDiagonal
from fedshed.linalg.spectrum import leading_eigenpairs

__all__ = ["DensePlusRidge", "LowRankPlusDiagonal", "leading_eigenpairs"]
