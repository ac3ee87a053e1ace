"""Whether a cost decreases without bound: separated classes, or a level whose counts are all 0.

Without a penalty there is then no finite optimum (Albert and Anderson 1984, Biometrika 71, 1).  A short
Newton step proves that there is one; otherwise a linear program decides (Konis 2007), in a basis where near
collinearity and units do not matter and columns of levels stay sparse.  It starts with few rows; those that
the last solution violates are added until there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import scipy.linalg
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import chosen_columns, gram
from fedshed.linalg.solve import plain_name, sparse_inverse_root, unit_diagonal
from fedshed.objectives import LinearModel
from fedshed.protocol.conversation import Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message, Search

FLAT = 1e-3  # curvature per squared margin: a cost can fall without end only in a direction as flat as this
SOLVABLE = 1e-10  # of the largest curvature: the Newton step along a flatter direction may be rounding
SHORT = 0.5  # by which a Newton step may move a margin
VANISHED = 1e-12  # the same of a direction that no number of rows could have an optimum in
BROKEN = 1e-6  # of a typical margin: a loss below it is rounding
BEYOND = 4.0  # Newton steps at which the slope is looked at
RISEN = 0.1  # of what a quadratic says: less is no optimum
MORE_ROWS, MOST_ROUNDS = 500, 100  # of a site in each linear program, and how many of these

Models = Sequence[LinearModel]
WITH_FIRTH = ("logistic", "binomial")  # losses for which there is Firth's penalty


class SeparationTest(Conversation, frozen=True, tag=True):
    """Tells an optimum from a cost that decreases without bound, from slopes that any line search asks for.

    Let p = -H^-1 g be the Newton step at the end of a run, q = p'Hp and W the weight of all rows.  At an
    optimum the slope rises along p as a quadratic says it does, by c q at c steps, also at the c that makes
    one standard error, W q c^2 = 1.  Where the data are separated a row's loss and its derivatives all fall
    like exp(-m) in its margin m: the cost still falls at 4 steps, and its slope has hardly risen at c.
    """

    messages: ClassVar[tuple[type[Message], ...]] = ()
    requests = ()

    def flow(self, problem: Problem, theta: Vector, step: Vector, H: Matrix, weight: float) -> Flow[bool]:
        """Whether the cost decreases without bound; `step` is H^-1 g."""
        q = float(step @ H @ step)
        c = 1 / np.sqrt(weight * q) if q > 0 else 0.0
        if not BEYOND < c < np.inf:  # at the optimum to the last bit, or far from one
            return False
        etas = np.array([BEYOND, c])
        replies = yield from everyone([Search(theta, -step, etas, slopes=True)], problem)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = sum(problem.p[i] * costs.slopes for i, (costs,) in replies.items())
            slopes = slopes - np.array([(problem.l2 * (theta - eta * step)) @ step for eta in etas])
            return bool(slopes[0] <= 0 and slopes[1] + q < RISEN * c * q)


def flat_part(step: Vector, H: Matrix, H_0: Matrix) -> tuple[Vector, bool]:
    """The part of a Newton step along which the Hessian H is far below H_0, that at theta = 0.

    Only there can a cost decrease without bound.  In the rest of the space a run may have stopped just before
    its optimum, and what the slope gains there would hide that it gains nothing here.  With H v = lambda H_0
    v the directions v are orthogonal in both, so the slope along the part is -part'H part.  Where H is 0 to
    rounding, a run has gone so far that nothing is left to test: that direction, and True.
    """
    _, unit = unit_diagonal(H_0)
    if np.linalg.eigvalsh(unit)[0] <= len(H) * np.finfo(float).eps:
        return step, False
    values, directions = scipy.linalg.eigh(H, H_0)
    if values[0] < VANISHED * max(1.0, values[-1]):
        return np.asarray(directions[:, 0]), True
    flat = directions[:, values < FLAT * max(1.0, values[-1])]
    return np.asarray(flat @ (flat.T @ (H_0 @ step))), False


def separated(names: tuple[str, ...], loss: str = "") -> str:
    """The reason why there is no optimum, and what to do."""
    shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
    remedy = "no row has an event: add rows that do"
    if names != ("intercept",):
        firth = "use Firth's penalty (firth = true, --firth), " if loss in WITH_FIRTH else ""
        remedy = f"{firth}set l2 > 0 (--l2), or drop {'it' if len(names) == 1 else 'them'}"
    return (
        f"separated: the cost decreases without bound along {shown}, so there is no finite optimum; {remedy}"
    )


def along(step: Vector, H: Matrix, columns: Sequence[str]) -> tuple[str, ...]:
    """The coefficients with the largest part in a step, the largest first, in the units of the Hessian."""
    size = np.abs(step) * np.sqrt(np.diag(H))
    return _named(size, columns, 0.3)


def _named(size: Vector, columns: Sequence[str], share: float) -> tuple[str, ...]:
    """The coefficients with a large part in a direction, the largest first.

    The intercept is named alone only where nothing else moves: where a reference level has no event, it moves
    all rows, and each other coefficient brings back the few rows of its level.
    """
    names = [plain_name(column) for column in columns]
    beside = np.array([name != "intercept" for name in names])
    large = size > share * size.max()
    if not (large & beside).any():
        large |= beside & (size > max(share * size[beside].max(initial=0.0), BROKEN * size.max()))
    return tuple(dict.fromkeys(names[j] for j in np.argsort(-size, kind="stable") if large[j]))


def separating(objectives: Mapping[str, LinearModel], problem: Problem, theta: Vector) -> tuple[str, ...]:
    """The unpenalised coefficients along which the cost decreases without bound, if there are any."""
    names = sorted(objectives)  # of sites, which the Master may know as groups
    models = [objectives[i] for i in names]
    free = np.flatnonzero(problem.penalised == 0)
    if not models[0].can_recede or not len(free):
        return ()
    G = _squares(models, free)
    R = sparse_inverse_root(G)
    basis = np.zeros((len(theta), R.shape[1]))
    basis[free] = R
    p = replace(problem, weights={i: objectives[i].weight for i in names}).p
    found = [_at(objectives[i], theta, free, p[i]) for i in names]  # one point at a time
    H, g = (sum(parts) for parts in zip(*found, strict=True))
    if _has_optimum(models, theta, basis, R.T @ H @ R, basis.T @ g):
        return ()
    v = _recession(models, free, basis, theta)
    size = np.abs(v[free]) * np.sqrt(np.diag(G))
    return _named(size, [problem.columns[j] for j in free], 0.1)


def _at(model: LinearModel, theta: Vector, free: NDArray[np.intp], p: float) -> tuple[Matrix, Vector]:
    """The curvature of the free coefficients and the gradient of one site, with its share of the weight."""
    point = model.at(theta)
    return p * gram(chosen_columns(point.factor, free)), p * point.gradient


def _squares(models: Models, free: NDArray[np.intp]) -> Matrix:
    """The mean over rows of the squared margins, as a quadratic form of the free coefficients."""
    rows = sum(model.X.shape[0] for model in models)
    return np.asarray(sum(model.squares(free) for model in models) / rows)


def _has_optimum(models: Models, theta: Vector, basis: Matrix, H: Matrix, g: Vector) -> bool:
    """Whether curvature in every direction, or a Newton step that moves every margin by little, shows it.

    Let v be a direction that no row loses by.  Row j has the slope -s_j a_j along it, with s_j > 0 and a gain
    a_j >= 0.  After a Newton step the linear model of s_j is at least s_j (1 - |u_j|) for a margin that moves
    by u_j (|u_j| l''_j / s_j if that is more: `LinearModel.moves`), and the slopes so predicted sum to 0.  If
    every |u_j| < 1, then every a_j is 0.
    """
    values = np.linalg.eigvalsh(H)
    if values[0] > FLAT * max(1.0, values[-1]):
        return True
    if values[0] <= SOLVABLE * values[-1]:
        return False
    step = basis @ np.linalg.solve(H, g)
    return all(model.moves(theta, step).max() < SHORT for model in models)


def _recession(models: Models, free: NDArray[np.intp], basis: Matrix, theta: Vector) -> Vector:
    """A direction that no row loses by and some gain by; 0 if there is none.

    By the last coefficient, an intercept, or by theta every row may gain; else it is the program's.
    """
    last, whole = np.zeros_like(theta), np.zeros_like(theta)
    whole[free], last[free[-1]] = theta[free], 1.0
    for v in (last, -last, whole):
        if all(model.gains(v).min(initial=np.inf) > 0 for model in models):
            return v
    return np.asarray(basis @ _program(models, basis))


def _program(models: Models, basis: Matrix) -> Vector:
    """u that maximises the mean gain over |u_j| <= 1 where no row loses: over 1 / sqrt(N), or else 0."""
    rows = sum(model.X.shape[0] for model in models)
    gain = np.array([sum(float(m.gains(b).sum()) for m in models) for b in basis.T]) / rows
    u, known = np.sign(gain), csr_array((0, len(gain)))
    for _ in range(MOST_ROUNDS):
        if gain @ u < 0.5 / np.sqrt(rows):
            break
        broken = [_broken(model, basis, basis @ u) for model in models]
        if not sum(map(len, broken)):
            return np.asarray(u)
        known = vstack([known, *map(csr_array, broken)], format="csr")
        u = linprog(-gain, A_ub=-known, b_ub=np.zeros(known.shape[0]), bounds=(-1, 1)).x
    return np.zeros(len(gain))


def _broken(model: LinearModel, basis: Matrix, direction: Vector) -> Matrix:
    """What the rows that lose most by a direction gain by each of the basis."""
    least = model.gains(direction).min(axis=1)
    worst = np.argsort(least)[:MORE_ROWS]
    part = model.rows(np.sort(worst[least[worst] < -BROKEN]))
    return np.column_stack([part.gains(b).ravel() for b in basis.T])
