"""Covariances of the estimate: from the model with its ridge, and from the scores of the sites."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import Matrix, Packed, Vector, unpack
from fedshed.linalg.solve import collinear, unit_diagonal
from fedshed.protocol.conversation import Problem
from fedshed.solve.inspection import Inspected
from fedshed.solve.scatter import Scattered
from fedshed.solve.site_scores import Scores

ROUNDING = 1e-10  # smallest eigenvalue of a unit diagonal with which errors have six digits


class Curvatures:
    """Total information H_0 and Hessian over all sites, and the total ridge W l2."""

    def __init__(self, problem: Problem, sites: Mapping[str, Inspected]) -> None:
        self.weight = sum(site.weight for site in sites.values())
        self.ridge = self.weight * problem.l2
        self.information = _sum(sites, problem.n, expected=True)
        self._columns = problem.columns
        canonical = all(site.observed is None for site in sites.values())
        self.hessian = self.information if canonical else _sum(sites, problem.n, expected=False)

    @property
    def mean(self) -> DensePlusRidge:
        """The Hessian of the mean cost, as an operator."""
        return DensePlusRidge(self.hessian / self.weight, self.ridge / self.weight, self._columns)

    def bread(self, H: Matrix) -> Matrix:
        """H_l2^-1 = (H + W diag(l2))^-1."""
        return DensePlusRidge(H, self.ridge, self._columns).inverse()

    def caveat(self) -> str | None:
        """A note on columns so nearly collinear that digits are lost (eps times the condition number)."""
        _, unit = unit_diagonal(self.information + np.diag(self.ridge))
        values = np.linalg.eigvalsh(unit)
        if values[0] > ROUNDING * values[-1]:
            return None
        names = dict.fromkeys(self._columns[j].partition(" [contrast")[0] for j in collinear(unit))
        lost = min(1.0, np.finfo(float).eps * values[-1] / max(values[0], np.finfo(float).tiny))
        return (
            f"{', '.join([*names][:5])} are nearly collinear, so these figures are good to {lost:.0e} only: "
            "standardise columns far from 0 (--standardize), or leave one out."
        )

    def parameters(self, bread: Matrix) -> float:
        """tr(H_l2^-1 H_0), the effective number (Hastie et al. 2009, 7.6): n where there is no ridge."""
        n = len(self.ridge)
        return float(np.vdot(bread, self.information)) if self.ridge.any() else float(n)

    def covariance(self, bread: Matrix) -> Matrix:
        """H_l2^-1 H_0 H_l2^-1, of the ridge estimate about its mean; H_0^-1 where there is no ridge."""
        return symmetric(bread @ self.information @ bread) if self.ridge.any() else bread


def cluster_covariance(
    scores: Scores, curvatures: Curvatures, k: float, observations: float
) -> Matrix | None:
    """H^-1 (sum_i u_i u_i') H^-1 M/(M - 1) (N - 1)/(N - k) with the Hessian H, ridge included.

    u_i = W_i (g_i + l2 theta) is what site i adds to the estimating equation, so the u_i sum to 0; without a
    ridge this is statsmodels' cov_type="cluster" (Liang and Zeger 1986).  None for one site or N <= k.
    """
    N, M = observations, scores.sites
    if scores.squares is None:
        return None
    if M < 2 or k >= N:
        return None
    return _sandwich(curvatures.bread(curvatures.hessian), scores.squares) * (M / (M - 1) * (N - 1) / (N - k))


def row_covariance(
    sites: Mapping[str, Scattered],
    half: Matrix,
    kind: str,
    k: float,
    observations: float,
    plain: bool = False,
) -> Matrix:
    """H^-1 (sum_j u_j u_j') H^-1 over rows j, with `half` = H^-1: HC0, and HC1 times N / (N - k).

    HC2 and HC3 divide u_j u_j' by 1 - h_j and (1 - h_j)^2 (MacKinnon and White 1985, Journal of Econometrics
    29, 305); the sites have done so.  Over G clusters within the sites: times G/(G - 1) (N - 1)/(N - k),
    unless `plain`, as Lin and Wei (1989, JASA 84, 1074) have it for a Cox model.
    """
    squares = np.sum([site.squares for site in sites.values()], axis=0)
    N, G = observations, sum(site.clusters for site in sites.values())
    scale = N / (N - k) if kind == "HC1" and k < N else 1.0
    if kind == "cluster" and not plain:
        scale = G / (G - 1) * (N - 1) / (N - k) if G > 1 and k < N else np.nan
    return _sandwich(half, squares) * scale


def _sandwich(half: Matrix, squares: Packed) -> Matrix:
    """H^-1 S H^-1 of a sum S of squared scores."""
    return symmetric(half @ unpack(squares, len(half)) @ half)


def effective_clusters(shares: Vector, squared_shares: Vector) -> Vector:
    """How many equal clusters inform each coefficient as much as these unequal ones: (sum v_i)^2 / sum v_i^2.

    v_ij = (H^-1 H_i H^-1)_jj is what cluster i adds to the variance of coefficient j, so that the number is M
    for M equal ones, and 1 where one alone informs it, as a site's own intercept (after Carter, Schnepel and
    Steigerwald 2017, Review of Economics and Statistics 99, 698).
    """
    return np.asarray(np.square(shares) / np.maximum(squared_shares, np.finfo(float).tiny))


def symmetric(A: Matrix) -> Matrix:
    """(A + A')/2, which removes the asymmetry due to rounding."""
    return (A + A.T) / 2


def _sum(sites: Mapping[str, Inspected], n: int, expected: bool) -> Matrix:
    packed = np.zeros(n * (n + 1) // 2)
    for site in sites.values():
        packed += site.weight * (site.information if expected else site.hessian)
    return unpack(packed, n)
