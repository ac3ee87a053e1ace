"""Whether a cost falls for ever along some direction: separated classes, or a level whose counts are all 0.

Without a penalty there is then no finite optimum (Albert and Anderson 1984, Biometrika 71, 1).  A linear
program decides (Konis 2007), in a basis where near collinearity and units do not show, and on few rows: those
that the last solution broke are added until none is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Matrix, Vector
from fedshed.linalg.rows import chosen_columns, gram
from fedshed.linalg.solve import inverse_root
from fedshed.objectives import LinearModel
from fedshed.protocol.conversation import Agent, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message, Search

FLAT = 1e-3  # curvature per squared margin: only in so flat a direction can a cost fall for ever
BROKEN = 1e-6  # of a typical margin: a loss below it is rounding
MOVED = 0.5  # change of the linear predictor: 1 where data are separated, next to 0 at an optimum
BEYOND = 4.0  # steps at which the slope is looked at
MORE_ROWS, MOST_ROUNDS = 500, 100  # of a site in each linear program, and how many of these

Models = Sequence[LinearModel]


class Step(Message, frozen=True):
    """Asks whether a step moves rows."""

    direction: Vector


class Moved(Message, frozen=True):
    """How many rows it moves by more than a half in their linear predictor; None: a few, too few to say."""

    rows: int | None

    def censored(self, least: int) -> Moved:
        """A count below the least that a site tells is not told."""
        return Moved(None) if self.rows is not None and 0 < self.rows < least else self


class SeparationTest(Conversation, frozen=True, tag=True):
    """Tells an optimum from a cost that decreases without bound, after a run has ended.

    Where the data are separated a row's loss and its derivatives all fall like exp(-m) in its margin m, so
    that the Newton step moves margins by 1, however small the gradient is, and the cost falls beyond it too.
    At an optimum it moves no row; at a point that is merely not near enough, the cost rises beyond it.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Step, Moved)

    def flow(self, problem: Problem, theta: Vector, step: Vector) -> Flow[bool]:
        """Whether the step moves any row anywhere, and the cost still falls at some steps."""
        replies = yield from everyone([Step(step)], problem)
        for i, (answer,) in replies.items():
            if not isinstance(answer, Moved):
                raise ProtocolError(f"site {i!r} answered Step with {type(answer).__name__}")
        if all(answer.rows == 0 for (answer,) in replies.values()):
            return False
        search = Search(theta, -step, np.array([BEYOND]), slopes=True)
        replies = yield from everyone([search], problem)
        slopes = [problem.p[i] * float(costs.slopes[0]) for i, (costs,) in replies.items()]
        return bool(sum(slopes) - problem.l2 * (theta - BEYOND * step) @ step <= 0)

    def respond(self, agent: Agent, cache: None, part: Step, own_part: Any) -> tuple[None, Moved]:
        """The site's rows that it moves."""
        return None, Moved(agent.objective.rows_moved(part.direction, MOVED))


def separated(names: tuple[str, ...]) -> str:
    """Why there is no optimum, and what to do."""
    shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
    remedy = "no row has an event: add rows that do" if names == ("intercept",) else "set l2 > 0 or drop them"
    return (
        f"separated: the cost decreases without bound along {shown}, so there is no finite optimum; {remedy}"
    )


def along(step: Vector, H: Matrix, columns: Sequence[str]) -> tuple[str, ...]:
    """The coefficients with the largest part in a step, the largest first, in the units of the Hessian."""
    size = np.abs(step) * np.sqrt(np.diag(H))
    order = [j for j in np.argsort(-size).tolist() if size[j] > 0.1 * size.max()]
    largest = [columns[j].partition(" [contrast")[0] for j in order]
    return tuple(dict.fromkeys(largest))


def separating(objectives: Mapping[str, LinearModel], problem: Problem, theta: Vector) -> tuple[str, ...]:
    """The unpenalised coefficients along which the cost falls for ever; none where it has an optimum."""
    models = [objectives[i] for i in problem.agents]
    free = np.flatnonzero(problem.l2 == 0)
    if not models[0].can_recede or not len(free):
        return ()
    G = _squares(models, free)
    R = inverse_root(G)
    H = sum(problem.p[i] * gram(chosen_columns(objectives[i].at(theta).factor, free)) for i in problem.agents)
    values = np.linalg.eigvalsh(R.T @ H @ R)
    if values[0] > FLAT * max(1.0, values[-1]):
        return ()
    v = _recession(models, free, R, theta)
    size = np.abs(v[free]) * np.sqrt(np.diag(G))
    names = [problem.columns[j].partition(" [contrast")[0] for j in free[size > 0.1 * size.max()]]
    return tuple(dict.fromkeys(names))


def _squares(models: Models, free: NDArray[np.intp]) -> Matrix:
    """The mean over rows of the squared margins, as a quadratic form of the free coefficients."""
    width = models[0].X.shape[1]
    contrast, column = np.divmod(free, width)
    rows = sum(model.X.shape[0] for model in models)
    G: Matrix = sum(gram(chosen_columns(model.X, column)) for model in models) / rows
    return np.asarray(G * (contrast[:, None] == contrast))


def _recession(models: Models, free: NDArray[np.intp], R: Matrix, theta: Vector) -> Vector:
    """A direction that no row loses by and some gain by; 0 if there is none.

    By the last coefficient, an intercept, or by theta every row may gain; else it is the program's.
    """
    basis, last, whole = np.zeros((len(theta), R.shape[1])), np.zeros_like(theta), np.zeros_like(theta)
    basis[free], whole[free], last[free[-1]] = R, theta[free], 1.0
    for v in (last, -last, whole):
        if all(model.gains(v).min() > 0 for model in models):
            return v
    return np.asarray(basis @ _program(models, basis))


def _program(models: Models, basis: Matrix) -> Vector:
    """u that maximises the mean gain over |u_j| <= 1 where no row loses: over 1 / sqrt(N), or else 0."""
    rows = sum(model.X.shape[0] for model in models)
    gain = np.array([sum(float(m.gains(b).sum()) for m in models) for b in basis.T]) / rows
    u, known = np.sign(gain), np.zeros((0, len(gain)))
    for _ in range(MOST_ROUNDS):
        if gain @ u < 0.5 / np.sqrt(rows):
            break
        broken = [_broken(model, basis, basis @ u) for model in models]
        if not sum(map(len, broken)):
            return np.asarray(u)
        known = np.vstack([known, *broken])
        u = linprog(-gain, A_ub=-known, b_ub=np.zeros(len(known)), bounds=(-1, 1)).x
    return np.zeros(len(gain))


def _broken(model: LinearModel, basis: Matrix, direction: Vector) -> Matrix:
    """What the rows that lose most by a direction gain by each of the basis."""
    least = model.gains(direction).min(axis=1)
    worst = np.argsort(least)[:MORE_ROWS]
    part = model.rows(np.sort(worst[least[worst] < -BROKEN]))
    return np.column_stack([part.gains(b).ravel() for b in basis.T])
