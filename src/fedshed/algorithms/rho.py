"""How rho, the eigenvalue that stands for all that were not sent, is chosen in the SHED family."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import Struct

from fedshed.linalg import Leading
from fedshed.linalg.arrays import Vector


class RhoRule(Struct, frozen=True):
    """A function of an agent's eigenvalues; it needs all n of them unless it says otherwise."""

    needs_all_eigenvalues: ClassVar[bool] = True
    needs_trace: ClassVar[bool] = False

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from the eigenvalues in decreasing order."""
        raise NotImplementedError

    def after(self, pairs: Leading, q: int, trace: float) -> float:
        """rho after q of an agent's eigenpairs; `trace` is that of its Hessian if `needs_trace`."""
        return self(pairs.spectrum, q)


class NextEigenvalue(RhoRule, frozen=True, tag=True):
    """rho = lambda_{q+1}, the largest eigenvalue not sent: H_hat is an upper bound of H (Corollary 5).

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.algorithms import NextEigenvalue
    >>> NextEigenvalue()(np.array([8.0, 4.0, 2.0, 1.0]), 1)
    4.0
    """

    needs_all_eigenvalues: ClassVar[bool] = False

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from the first q + 1 eigenvalues at least."""
        return float(values[q])


class Midpoint(RhoRule, frozen=True, tag=True):
    """rho = (lambda_{q+1} + lambda_n) / 2, the best choice for least squares with eta = 1 (Corollary 2).

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.algorithms import Midpoint
    >>> Midpoint()(np.array([8.0, 4.0, 2.0, 1.0]), 1)
    2.5
    """

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from all n eigenvalues."""
        return float(values[q] + values[-1]) / 2


class TailMean(RhoRule, frozen=True, tag=True):
    """rho = m + share (lambda_{q+1} - m), where m is the mean of lambda_{q+1}, ..., lambda_n.

    With share = 0, H_hat has the trace of H but is not an upper bound of it. An algorithm that corrects H_hat
    by secants and compares costs does not need the bound. The default share was chosen on the problems F5,
    F6, F8 and W5 of docs/beyond.md (partition seed 0): 0 leads to rejected steps on W5, and 0.1 takes more
    iterations on all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshed.algorithms import TailMean
    >>> TailMean(share=0.0)(np.array([8.0, 4.0, 3.0, 2.0]), 1)
    3.0
    """

    share: float = 0.025  # between the mean (0) and the largest (1) of the eigenvalues not sent
    needs_all_eigenvalues: ClassVar[bool] = False
    needs_trace: ClassVar[bool] = True

    def after(self, pairs: Leading, q: int, trace: float) -> float:
        """rho after q of an agent's eigenpairs; the mean of those that follow is computed from the trace."""
        if pairs.complete and q >= pairs.q:  # all that follow are equal
            return float(pairs.values[q])
        rest = max(trace - float(pairs.values[:q].sum()), 0.0)
        return self._between(rest / (pairs.vectors.shape[1] - q), float(pairs.values[q]))

    def __call__(self, values: Vector, q: int) -> float:
        """rho after q eigenpairs, from all n eigenvalues."""
        return self._between(float(values[q:].mean()), float(values[q]))

    def _between(self, mean: float, largest: float) -> float:
        """rho from the mean and the largest of the eigenvalues that follow."""
        mean = min(mean, largest)
        return mean + self.share * (largest - mean)


Rho: TypeAlias = NextEigenvalue | Midpoint | TailMean
