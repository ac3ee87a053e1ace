"""Firth's logistic regression: Newton on the cost less log det I(theta) / (2 W), W the weight of all rows.

The penalty (Jeffreys' prior; Firth 1993, Biometrika 80, 27) removes the first-order bias of the estimates and
makes them finite where the data are separated (Heinze and Schemper 2002, Statist. Med. 21, 2409).  The
information I = sum_j w_j pi_j (1 - pi_j) x_j x_j' is a sum over all rows and its determinant is not, so an
iteration takes two exchanges: one for costs, scores and information at theta, and one that tells every site
the inverse of I and returns sum_j h_j (1/2 - pi_j) x_j, h_j being the leverage of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import SingularError
from fedshed.algorithms.base import Algorithm, AnyAlgorithm, Info, SiteModel, State, advance, cost, gradient
from fedshed.algorithms.lbfgs import two_loop, update_secants
from fedshed.algorithms.newton import PackedHessian, hessian
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.solve import unit_diagonal
from fedshed.protocol.conversation import Agent, Ask, Flow, Problem, Replies
from fedshed.protocol.messages import LocalHessian, Message, Update
from fedshed.protocol.sums import GRADIENT, Rule

HALVINGS, MEMORY = 30, 10
QUICK = 0.2  # of the last gradient: what Newton steps leave where the penalty has little curvature
ENOUGH = 1e-4  # of the decrease that a linear cost would have
NO_STEP = "no step lowers the penalised cost: it is at rounding level, or columns are collinear"


class AskLeverages(Message, frozen=True):
    """Asks for the mean of h_j (1/2 - pi_j) x_j at theta, `inverse` being that of the information of all."""

    theta: Vector
    inverse: Packed


class Leverages(Message, frozen=True):
    """sum_j h_j (1/2 - pi_j) x_j / W_i: what a site's rows add to the slope of log det I / 2."""

    pull: Gradient

    adds: ClassVar[Mapping[str, Rule] | None] = {"pull": GRADIENT}


class FirthState(State[PackedHessian], frozen=True):
    """The Master between two rounds, with the penalty and its slope at theta where they are known."""

    bonus: float = 0.0  # -log det I / (2 W)
    pull: Vector | None = None  # its gradient
    s: Matrix | None = None  # steps, oldest first,
    y: Matrix | None = None  # and how the gradient changed along them
    last: tuple[Vector, Vector] | None = None  # theta and g of the last step

    def joint_cost(self) -> float:
        """-log det I / (2 W)."""
        return self.bonus

    def joint_gradient(self) -> Vector | None:
        """Its gradient."""
        return self.pull


class Firth(Algorithm[FirthState, Update | AskLeverages, None, LocalHessian, None], frozen=True, tag=True):
    """Newton's method on the cost with Firth's penalty: theta^{t+1} = theta^t - eta B g.

    eta is halved until the cost falls. B is I^-1, corrected by the last steps as in L-BFGS: I is the Hessian
    without that of the penalty, which matters where rows are few or the data are separated. Coefficients of
    `fixed` keep their starting values, for tests by penalised likelihood; there, too, the penalty is that of
    all coefficients (Heinze and Schemper 2002, Section 2.3).
    """

    fixed: tuple[int, ...] = ()

    summable: ClassVar[bool] = True
    messages: ClassVar[tuple[type[Message], ...]] = (Update, LocalHessian, AskLeverages, Leverages)
    requests = ((Update, None), (AskLeverages, None))
    state = FirthState
    cache = None

    @property
    def losses(self) -> tuple[str, ...]:
        """Those with a logit link, whose information is known in closed form."""
        return ("logistic", "binomial")

    @property
    def pooled(self) -> bool:
        """Its limit is the optimum of the pooled rows with the penalised cost."""
        return False

    def ask(self, problem: Problem, state: FirthState) -> Ask:
        """f_i, g_i and H_i at theta^t."""
        return Ask((self.update(state),), dict.fromkeys(problem.agents), frozenset(problem.agents))

    def absorb(self, problem: Problem, state: FirthState, replies: Replies[LocalHessian]) -> FirthState:
        """Each agent is known exactly at theta^t, and so is the penalty."""
        known = {
            i: SiteModel(state.theta, local.loss, local.gradient, PackedHessian(local.hessian))
            for i, (local,) in replies.items()
        }
        state = replace(state, known=known, pull=None, updated=state.t)
        return replace(state, bonus=-log_determinant(problem, state) / (2 * sum(problem.weights.values())))

    def observe(self, problem: Problem, state: FirthState) -> Flow[FirthState]:
        """Costs, scores and information at theta^t; then the slope of the penalty."""
        if not state.fresh:
            replies = yield self.ask(problem, state)
            state = self.absorb(problem, state, replies)
        if state.pull is None:
            asked = AskLeverages(state.theta, pack(inverse_information(problem, state)))
            replies = yield Ask((asked,), dict.fromkeys(problem.agents), frozenset(problem.agents))
            pull = np.zeros(problem.n)
            for i in problem.agents:
                pull -= problem.p[i] * replies[i][0].pull
            fixed = list(self.fixed)
            pull[fixed] = -gradient(problem, state)[fixed]  # nothing pulls at these
            state = replace(state, pull=pull)
        return state

    def step(self, problem: Problem, state: FirthState) -> Flow[tuple[FirthState, Info]]:
        """The step, halved until the penalised cost falls; its last candidate is the next update."""
        g, f = self.free(gradient(problem, state)), cost(problem, state)
        s, y = update_secants(state.s, state.y, state.last, state.theta, g, MEMORY)
        quick = state.last is not None and np.linalg.norm(g) < QUICK * np.linalg.norm(state.last[1])
        used = slice(0) if quick else slice(None)  # I alone does well where the gradient falls quickly
        direction = -two_loop(g, s[used], y[used], lambda v: self.solved(problem, state, v))
        state = replace(state, s=s, y=y, last=(state.theta, g))
        slope, eta = float(g @ direction), 1.0
        rounding = 4 * float(np.finfo(float).eps) * max(1.0, abs(f))
        for halvings in range(HALVINGS):
            trial = advance(replace(state, pull=None), state.theta + eta * direction, g)
            replies = yield self.ask(problem, trial)
            trial = self.absorb(problem, trial, replies)
            hidden = ENOUGH * abs(slope) <= 100 * rounding
            if hidden or cost(problem, trial) <= f + ENOUGH * eta * slope + rounding:
                return trial, Info(eta, 2 + halvings, renewed=len(problem.agents), q_max=problem.n)
            eta /= 2
        return state, Info(0.0, 1 + HALVINGS, stopped=NO_STEP)

    def free(self, g: Vector) -> Vector:
        """The gradient, 0 for coefficients that stay where they are."""
        g = g.copy()
        g[list(self.fixed)] = 0.0
        return g

    def solved(self, problem: Problem, state: FirthState, v: Vector) -> Vector:
        """W I^-1 v of the coefficients that move."""
        moving = np.setdiff1d(np.arange(problem.n), self.fixed)
        solved = np.zeros(problem.n)
        if len(moving):
            H = hessian(problem, state).dense[np.ix_(moving, moving)]
            scale, unit = unit_diagonal(H)
            solved[moving] = scale * np.linalg.solve(unit, scale * v[moving])
        return solved

    def exact_curvature(self, problem: Problem, state: FirthState) -> Any:
        """I / W, which is that of the penalised cost but for terms of the size of 1 / W."""
        return None if self.fixed else hessian(problem, state)

    def answer_kind(self, part: Any) -> type[Message]:
        """f_i, g_i and H_i; or what leverages add."""
        return Leverages if isinstance(part, AskLeverages) else LocalHessian

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """An answer of the wrong kind."""
        kind = self.answer_kind(part)
        return None if isinstance(answer, kind) else f"it sent a {type(answer).__name__}, not {kind.__name__}"

    def respond(
        self, agent: Agent, cache: None, part: Update | AskLeverages, own_part: None
    ) -> tuple[None, LocalHessian | Leverages]:
        """The site's half of both exchanges."""
        if isinstance(part, AskLeverages):
            inverse = unpack(part.inverse, agent.objective.dim)
            return None, Leverages(agent.objective.leverage_pull(part.theta, inverse))
        assert part.theta is not None
        point = agent.objective.at(part.theta)
        return None, LocalHessian(point.value, point.gradient, point.hessian)


def information(problem: Problem, state: State[Any]) -> Matrix:
    """I of all rows."""
    return np.asarray(sum(problem.weights.values()) * hessian(problem, state).dense)


def inverse_information(problem: Problem, state: State[Any]) -> Matrix:
    """I^-1, in units where the diagonal of I is 1; SingularError where columns are collinear."""
    scale, unit = unit_diagonal(information(problem, state))
    values = np.linalg.eigvalsh(unit)
    if not np.isfinite(values).all() or values[0] <= len(unit) * np.finfo(float).eps:
        raise SingularError(
            "Firth's penalty needs columns that are not collinear, but the information is singular; leave "
            "out columns that are combinations of others"
        )
    return np.asarray(scale[:, None] * np.linalg.inv(unit) * scale)


def log_determinant(problem: Problem, state: State[Any]) -> float:
    """log det I; -infinity where it is singular."""
    sign, value = np.linalg.slogdet(information(problem, state))
    return float(value) if sign > 0 else -np.inf


def choose_firth() -> tuple[AnyAlgorithm, str]:
    """The algorithm of a study with Firth's penalty, and why."""
    return Firth(), "firth: Newton's method on Firth's penalised cost"
