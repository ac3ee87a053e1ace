"""The log-rank test of two or more groups from counts of a life table (Mantel 1966, Peto and Peto 1972)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from scipy.special import chdtrc

from fedshed.inference.life_curves import exposed
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.objectives.life_table import LifeTable


class LogRank(Struct, frozen=True):
    """Observed and expected events of each group, and the test of their difference: chi^2 on `df` degrees."""

    observed: Vector
    expected: Vector
    variance: Matrix
    statistic: float
    df: int

    @property
    def p(self) -> float:
        """The p-value; nan where there is nothing to compare."""
        return float(chdtrc(self.df, self.statistic)) if self.df else float("nan")


def logrank(tables: Iterable[LifeTable]) -> LogRank:
    """The test over one table, or stratified: over several, whose groups are compared within each.

    With d events among Y exposed at a time, a group with Y_g expects E_g = d Y_g / Y of them, with variance
    V_gh = d (Y - d) / (Y - 1) (Y_g / Y) (delta_gh - Y_h / Y).  In a cell of several times Y is the exposed of
    a life table, and the test is that of Mantel for grouped times.
    """
    parts = [_sums(table) for table in tables]
    observed, expected, V = (np.asarray(sum(part[k] for part in parts)) for k in range(3))
    values, Q = np.linalg.eigh(V)
    used = values > 1e-10 * max(float(np.abs(values).max(initial=0.0)), 1e-300)
    z = (Q[:, used].T @ (observed - expected)) / np.sqrt(values[used])
    return LogRank(observed, expected, V, float(z @ z), int(used.sum()))


def _sums(table: LifeTable) -> tuple[Vector, Vector, Matrix]:
    """Observed, expected and variance over all cells."""
    d = table.events
    Y = exposed(table.points, table.starting, d, table.censored, table.entered)
    total, events = Y.sum(axis=0), d.sum(axis=0)
    share = Y / np.where(total > 0, total, 1)
    scale = np.where(total > 1, events * (total - events) / np.where(total > 1, total - 1, 1), 0.0)
    V = np.diag(share @ scale) - (share * scale) @ share.T
    return d.sum(axis=1).astype(float), share @ events, V
