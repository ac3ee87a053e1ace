"""The score test of heterogeneity: whether one theta is enough for all sites (Rao 1948)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import chdtrc

from fedshed.inference.result import Score
from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.linalg.solve import inverse_root
from fedshed.solve.inspection import Inspected


def score_tests(
    sites: Mapping[str, Inspected], information: Matrix, phi: float | None
) -> tuple[Score, dict[str, Score], dict[str, float]]:
    """The test of all sites, that of each against the others, and what each adds to the first.

    With s_i the score and I_i the information of site i at the common estimate, the statistic is
    sum_i s_i' I_i^+ s_i / phi on sum_i rank(I_i) - rank(I) degrees of freedom: that of the model in which
    every site has its own theta.  For one site it is s_i' (I_i - I_i I^+ I_i)^+ s_i / phi.  The ridge is
    taken out of the scores to first order, s_i - I_i I^+ sum_j s_j, so that they sum to 0.
    """
    root = inverse_root(information)
    scores = {i: -site.weight * site.gradient for i, site in sites.items()}
    excess = root @ (root.T @ sum(scores.values()))
    tests, parts, ranks = {}, {}, 0
    for i, site in sites.items():
        own = site.weight * unpack(site.information, len(information))
        R = inverse_root(own)
        u = R.T @ (scores[i] - own @ excess)
        tests[i] = _score(*_against_others(u, root.T @ own @ R), phi)
        parts[i], ranks = float(u @ u) / (phi or np.inf), ranks + R.shape[1]
    return _score(sum(parts.values()) * (phi or 1.0), ranks - root.shape[1], phi), tests, parts


def _against_others(u: Vector, B: Matrix) -> tuple[float, int]:
    """u'(1 - B'B)^+ u and its rank: what is left of a site's information where the others have some too."""
    values, vectors = np.linalg.eigh(np.eye(len(u)) - B.T @ B)
    kept = values > 1e-8
    return float((np.square(vectors[:, kept].T @ u) / values[kept]).sum()), int(kept.sum())


def _score(statistic: float, df: int, phi: float | None) -> Score:
    if phi is None or phi <= 0 or df <= 0:
        return Score(0.0, max(df, 0), None)
    return Score(statistic / phi, df, float(chdtrc(df, statistic / phi)))
