"""Whether a site's exact statistics agree with its rows, with the fit, and with each other.

Let g_0, I_00 be the intercept's entries of the mean gradient and information, y the mean response (from the
sums for the null model), and s_j the mean square of design column j (from the preparation).  Then

    linear    I_00 = 1,  I_jj = s_j
    gamma     I_00 = 1,  I_jj = s_j,  and observed 1 - g_0, as g_0 = mean(1 - y / mu)
    Poisson   I_00 = mean mu = g_0 + y
    logistic  I_00 = mean p (1 - p) <= m (1 - m) with m = mean p = g_0 + y (Jensen);  I_jj <= s_j / 4
    classes   in contrasts Q with means m = y + Q g_0:  sum_c I_c0,c0 = mean(1 - sum p^2) <= 1 - sum m^2;
              sum_c I_cj,cj <= (1 - 1/K) s_j

So a site cannot overstate how much its rows tell.  Without an intercept, or where s_j is unknown, fewer hold.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshed.linalg.arrays import Matrix, Vector, unpack
from fedshed.objectives import LinearModel, family_of
from fedshed.objectives.binomial import Binomial
from fedshed.objectives.gamma import Gamma
from fedshed.objectives.least_squares import LeastSquares
from fedshed.objectives.logistic import Logistic
from fedshed.objectives.multinomial import Multinomial, contrasts
from fedshed.objectives.poisson import Poisson
from fedshed.protocol.conversation import AgentId, Problem

if TYPE_CHECKING:
    from fedshed.solve.inspection import Inspected

CLOSE = 1e-6  # relative: what rounding cannot explain
TINY = 1e-150  # entries below it may have lost their digits
Bounds: TypeAlias = tuple[float | Vector, float | Vector]  # least and most


def disagreement(problem: Problem, site: AgentId, said: Inspected) -> str | None:
    """Why a site's statistics at a point cannot be those of its rows, if they cannot."""
    n = problem.n
    with np.errstate(over="ignore", invalid="ignore"):
        if why := _other_rows(problem, site, said) or _other_deviance(problem, said):
            return why
        information = unpack(said.information, n)
        observed = information if said.observed is None else unpack(said.observed, n)
        if not semidefinite(information) or not semidefinite(observed):
            return "its information is negative in some direction"
        return _overstated(problem, site, said, information, np.diag(observed))


def _other_rows(problem: Problem, site: AgentId, said: Inspected) -> str | None:
    """Rows and weight are those of the preparation; without weights they are the same number."""
    rows = problem.sizes[site].rows if site in problem.sizes else said.rows
    if rows != said.rows or not isclose(said.weight, problem.weights[site]):
        return (
            f"it has {said.rows} rows of weight {said.weight:.6g} now, and {rows} of weight "
            f"{problem.weights[site]:.6g} before"
        )
    if not said.weighing and said.weight != said.rows:
        return f"it has {said.rows} rows without weights, but a weight of {said.weight:.6g}"
    return None


def _other_deviance(problem: Problem, said: Inspected) -> str | None:
    """D >= 0 and Pearson's chi2 >= 0; D = 2 W f where the least loss of a row is 0."""
    if said.deviance < 0 or (said.pearson is not None and said.pearson < 0):
        return "its deviance is negative"
    objective = family_of(problem.loss).objective
    twice = 2 * said.weight * said.loss
    if objective.excess is LinearModel.excess and not isclose(
        said.deviance, twice, rel_tol=CLOSE, abs_tol=1e-9
    ):
        return f"its deviance is {said.deviance:.6g}, but its mean loss makes it {twice:.6g}"
    return None


def semidefinite(A: Matrix) -> bool:
    """Whether a symmetric matrix is not negative in any direction, by more than rounding explains."""
    diagonal = np.diag(A)
    if diagonal.min(initial=0.0) < 0:
        return False
    roots = np.sqrt(diagonal)
    if (np.abs(A) > (1 + CLOSE) * np.outer(roots, roots) + TINY).any():
        return False
    large = roots > np.sqrt(TINY)
    unit = A[np.ix_(large, large)] / np.outer(roots[large], roots[large])
    try:
        np.linalg.cholesky(unit + len(A) * 1e-9 * np.eye(len(unit)))
    except np.linalg.LinAlgError:
        return False
    return True


def _overstated(
    problem: Problem, site: AgentId, said: Inspected, information: Matrix, observed: Vector
) -> str | None:
    """The entries of the diagonal that lie outside what can be known of them."""
    family, count = family_of(problem.loss), 1
    if family.objective is Multinomial:
        count = len(said.moments) - 1
    if problem.n % max(count, 1):
        return f"it sent sums of {count + 1} classes for {problem.n} coefficients"
    blocks = np.diag(information).reshape(count, -1).sum(axis=0)
    names = problem.columns[: len(blocks)]
    if names and names[-1].partition(" [contrast")[0] == "intercept":
        if _outside(blocks[-1], *_of_intercept(problem, said, count)):
            return "its information on the intercept contradicts its own gradient and mean response"
        if family.objective is Gamma and _outside(observed[-1], *[1.0 - said.gradient[-1]] * 2):
            return "its curvature along the intercept contradicts its gradient"
        blocks = blocks[:-1]
    squares = problem.sizes[site].squares if site in problem.sizes else None
    if squares is not None and len(squares) == len(blocks):
        wrong = _outside(blocks, *_of_columns(family.objective, squares, count))
        if np.any(wrong):
            return f"its information on {names[int(np.argmax(wrong))]!r} is not that of its column"
    return None


def _of_intercept(problem: Problem, said: Inspected, count: int) -> Bounds:
    """The least and the most information on the intercept, summed over contrasts."""
    objective, W = family_of(problem.loss).objective, said.weight
    g = said.gradient.reshape(count, -1)[:, -1]
    if objective in (LeastSquares, Gamma):
        return 1.0, 1.0
    if objective is Poisson:
        mean = float(g[0] + said.moments[0] / W)
        slack = 1e-9 * (abs(float(g[0])) + float(said.moments[0]) / W)
        return mean - slack, mean + slack
    if objective in (Logistic, Binomial):
        m = float(np.clip(g[0] + said.moments[1] / W, 0.0, 1.0))
        return 0.0, m * (1 - m)
    if objective is Multinomial:
        means = said.moments / W + contrasts(count + 1) @ g
        return 0.0, float(1 - means @ means)
    return 0.0, np.inf


def _of_columns(objective: type, squares: Vector, count: int) -> Bounds:
    """The same for columns with these mean squares."""
    most = np.where(np.isnan(squares), np.inf, squares)
    if objective in (LeastSquares, Gamma):
        return np.where(np.isnan(squares), 0.0, squares), most
    if objective is Multinomial:
        return 0.0, (1 - 1 / (count + 1)) * most
    return 0.0, most / 4 if objective in (Logistic, Binomial) else np.full_like(most, np.inf)


def _outside(value: float | Vector, least: float | Vector, most: float | Vector) -> NDArray[np.bool_]:
    slack = 1e-9 + CLOSE * np.abs(value)
    return np.asarray((value < least - slack) | (value > most + slack))


def contradiction(theta: Vector, f: float, g: Vector, said: Inspected) -> str | None:
    """Why a site's statistics are not those of its last answer in the fit, which was exact and at theta.

    The rounding of g_j is relative to mean |l' x_j| <= sqrt(chi2 / W I_jj); that of a quadratic f to the
    squared margins, theta' I theta.
    """
    information = unpack(said.information, len(theta))
    spread = np.sqrt((said.pearson or 0.0) / said.weight * np.maximum(np.diag(information), 0.0))
    slack = CLOSE * (np.abs(g) + np.abs(said.gradient)) + 1e-8 * spread + 1e-12
    cost = CLOSE * (abs(f) + abs(said.loss)) + 1e-10 * abs(float(theta @ information @ theta)) + 1e-12
    if said.pearson is not None and (np.abs(g - said.gradient) > slack).any():
        return "its gradient is not the one it sent in the fit"
    if abs(f - said.loss) > cost:
        return f"its mean loss is {said.loss:.6g}, and was {f:.6g} in the fit"
    return None
