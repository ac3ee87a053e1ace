"""What the theory says of a problem: spectra, the factor of Theorem 1, the bound of Lemma 7."""

from __future__ import annotations

import numpy as np

from fedshed.experiments.plan import Panel, Problem
from fedshed.experiments.runs import cache_folder, federation, reference
from fedshed.linalg import leading_eigenpairs
from fedshed.linalg.arrays import Vector
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives


def pooled(problem: Problem) -> Vector:
    """Eigenvalues of the pooled least-squares Hessian, ridge included, in descending order."""
    objectives = local_objectives(federation(problem), problem.loss)
    N = sum(objective.weight for objective in objectives.values())
    zero = np.zeros(federation(problem).dim)
    parts = [objective.weight / N * gram(objective.at(zero).factor) for objective in objectives.values()]
    H = np.sum(parts, axis=0)
    values: Vector = np.linalg.eigvalsh(H)[::-1] + problem.l2
    return values


def factor(spectrum: Vector, q: int, rho: float, eta: float) -> float:
    """r(rho, eta, q) = max |1 - eta lambda_j / lambda_hat_j| (Theorem 1)."""
    rest = np.abs(1 - eta * spectrum[q:] / rho).max()
    return float(max(rest, abs(1 - eta)) if q else rest)


def lyapunov_bound(panel: Panel) -> float:
    """a-bar_T = (prod_k 1 - lambda_bar_n / rho_bar_k)^(1/T) at theta*, d = 1 (Lemma 7, equation 29)."""
    problem, (run,) = panel.problem, panel.runs
    least_squares = problem.loss == "least-squares"
    values, p = _local_spectra(problem)
    period = run.renewal_period or values.shape[1] - 1
    n = values.shape[1]
    q = np.minimum(np.arange(1, period + 1), n - 1)  # pairs held in the k-th iteration of a period
    smallest = p @ values[:, -1] + problem.l2
    following = p @ values[:, q] + problem.l2
    rho = (following + smallest) / 2 if least_squares else following
    return float(np.prod(1 - smallest / rho) ** (1 / period))


def _local_spectra(problem: Problem) -> tuple[Vector, Vector]:
    """Eigenvalues of each agent's Hessian at theta*, and the weights p_i."""
    theta_star, _ = reference(problem, cache_folder())
    objectives = local_objectives(federation(problem), problem.loss)
    rows = [leading_eigenpairs(objective.at(theta_star).factor)[0] for objective in objectives.values()]
    weights = np.array([objective.weight for objective in objectives.values()])
    return np.array(rows), weights / weights.sum()
