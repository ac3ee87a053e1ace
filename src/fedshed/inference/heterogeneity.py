"""The score test of heterogeneity: whether one theta is enough for all sites (Rao 1948)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import chdtrc

from fedshed.inference.records import Score
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.solve.inspection import Inspected
from fedshed.solve.site_scores import Whitened


def excess(sites: Mapping[str, Inspected], root: Matrix) -> Vector:
    """I^+ sum_j s_j, with I^+ = root root': what a ridge leaves of the scores s_j = -W_j g_j."""
    scores = sum(-site.weight * site.gradient for site in sites.values())
    return np.asarray(root @ (root.T @ scores))


def score_test(statistic: float, ranks: int, root: Matrix, phi: float | None) -> Score:
    """The test of all sites.

    With s_i the score and I_i the information of site i at the common estimate, the statistic is
    sum_i s_i' I_i^+ s_i / phi on sum_i rank(I_i) - rank(I) degrees of freedom: that of the model in which
    every site has its own theta.  The ridge is taken out of the scores to first order,
    s_i - I_i I^+ sum_j s_j, so that they sum to 0.
    """
    return _score(statistic, ranks - root.shape[1], phi)


def site_tests(own: Mapping[str, Whitened], root: Matrix, phi: float | None) -> dict[str, Score]:
    """The test of each site against the others: s_i' (I_i - I_i I^+ I_i)^+ s_i / phi."""
    return {
        i: _score(*_against_others(site.u, root.T @ site.information @ site.root), phi)
        for i, site in own.items()
    }


def _against_others(u: Vector, B: Matrix) -> tuple[float, int]:
    """u'(1 - B'B)^+ u and its rank: what is left of a site's information where the others have some too."""
    values, vectors = np.linalg.eigh(np.eye(len(u)) - B.T @ B)
    kept = values > 1e-8
    return float((np.square(vectors[:, kept].T @ u) / values[kept]).sum()), int(kept.sum())


def _score(statistic: float, df: int, phi: float | None) -> Score:
    if phi is None or phi <= 0 or df <= 0:
        return Score(0.0, max(df, 0), None)
    return Score(statistic / phi, df, float(chdtrc(df, statistic / phi)))
