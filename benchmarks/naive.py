"""The naive form of Fib-SHED: full eigendecompositions, H_hat rebuilt every round, agents one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedshed.algorithms.shed import Shed, Spectrum
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.linalg import Leading
from fedshed.linalg.rows import gram


def one_by_one(sites: Mapping[str, Site]) -> InProcess:
    """Agents that are not evaluated together."""
    for site in sites.values():
        model: Any = site.objective
        model.slot = None
    return InProcess(sites)


class NaiveShed(Shed, frozen=True, tag=True):
    """As one would write it from the paper."""

    def _recalled(self, agent: Any, cache: Any, part: Any, mine: Any, point: Any, q: int) -> Any:
        if mine.k != part.t:
            return cache
        values, columns = np.linalg.eigh(gram(point.factor))
        values, rows = np.maximum(values[::-1], 0.0), columns.T[::-1][: len(values) - 1]
        return Spectrum(mine.k, part.theta, Leading("naive", values, rows, True, float(values[-1])))
