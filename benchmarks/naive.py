"""The naive form of Fib-SHED: a full eigendecomposition of every n x n Hessian, H_hat rebuilt every round."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedshed.algorithms.shed import Shed, Spectrum
from fedshed.linalg import Leading
from fedshed.objectives.base import gram


class NaiveShed(Shed, frozen=True, tag=True):
    """As one would write it from the paper."""

    def _recalled(self, agent: Any, cache: Any, part: Any, mine: Any, point: Any, q: int) -> Any:
        if mine.k != part.t:
            return cache
        values, columns = np.linalg.eigh(gram(point.factor))
        values, rows = np.maximum(values[::-1], 0.0), columns.T[::-1][: len(values) - 1]
        return Spectrum(mine.k, part.theta, Leading("naive", values, rows, True, float(values[-1])))
