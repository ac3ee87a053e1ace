"""The private fit: a logistic model from noised totals over all sites, with errors that count the noise.

The Master asks for the bound B = X'X/4 once, then for T gradients, and with one of them for the Hessian; each
answer is a total over all rows of all sites with discrete Gaussian noise (`private_plan.py` says how much).
theta_{t+1} = theta_t - A^-1 g_t, A being the bound until the Hessian H is there, and then H; there is no line
search, because costs would have to be released.  The estimate is the mean of the last iterates, each weighted
by the precision 1 / sigma_t^2 of its gradient.  Near the optimum theta_{t+1} - theta* = -H^-1 z_t up to terms
of second order, z_t being the noise of g_t.  So the noise of the estimate has the covariance

    H^-1 Sigma H^-1,   Sigma = I / sum 1 / sigma_t^2,

as if all these gradients had been one with their budgets together, which no other weights can beat; the last
iterate alone has 2.0 times this variance, and an unweighted mean 1.5 times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.linalg.arrays import Gradient, Matrix, Packed, Vector, pack, unpack
from fedshed.linalg.rows import Rows, gram
from fedshed.objectives import Objective
from fedshed.objectives.logistic import Logistic
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, everyone
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import TOTAL, Rule
from fedshed.solve.private_plan import BOUND_SHARE, CURVATURE_SHARE, PrivatePlan

FLOOR = 0.6  # of the noise's spectral norm: eigenvalues below it are raised to it
STEP = 3.0  # times sqrt(n): the largest change of a margin in one step


class AskBound(Message, frozen=True):
    """The total of xx'/4 over clipped rows: the Hessian at 0, which is a bound of it everywhere."""


class AskSlope(Message, frozen=True):
    """The total of (p - y) x over clipped rows at theta: the gradient with this number."""

    theta: Vector
    step: Annotated[int, Meta(ge=0, le=1000)]


class AskCurvature(Message, frozen=True):
    """The total of p (1 - p) xx' over clipped rows at theta."""

    theta: Vector


class SquareTotal(Message, frozen=True):
    """A total of squares over a site's clipped rows, to which noise is added where it becomes integers."""

    total: Packed

    adds: ClassVar[Mapping[str, Rule] | None] = {"total": TOTAL}


class SlopeTotal(Message, frozen=True):
    """A total of scores over a site's clipped rows, to which noise is added where it becomes integers."""

    total: Gradient

    adds: ClassVar[Mapping[str, Rule] | None] = {"total": TOTAL}


class PrivateResult(Struct, frozen=True):
    """A private fit: the estimate, its errors with the noise, and what was promised for it."""

    theta: Vector
    covariance: Matrix  # of theta around the true coefficients: sampling and noise
    noise_covariance: Matrix  # H^-1 Sigma H^-1, the part of the noise
    plan: PrivatePlan
    rho: float  # spent
    warnings: tuple[str, ...] = ()

    @property
    def errors(self) -> Vector:
        """Standard errors, noise included."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def noise_errors(self) -> Vector:
        """The part of them that is noise: how far theta is from the fit without it."""
        return np.sqrt(np.diag(self.noise_covariance))


def clipped(X: Rows, clip: float, columns: int) -> NDArray[np.float64]:
    """X with the first `columns` numbers of each row scaled to a norm of at most `clip`; an intercept stays.

    It is rounded towards 0, so that the norm is never larger.
    """
    if not isinstance(X, np.ndarray) and not hasattr(X, "toarray"):
        raise ConfigError(
            "a private fit needs tables that fit into memory; use fewer rows or columns, or leave privacy out"
        )
    dense = np.array(X if isinstance(X, np.ndarray) else X.toarray(), dtype=np.float64)
    norms = np.sqrt(np.square(dense[:, :columns]).sum(axis=1))
    dense[:, :columns] *= np.minimum(1.0, clip * (1 - 1e-12) / np.maximum(norms, clip * 1e-12))[:, None]
    return dense


class PrivateFit(Conversation, frozen=True, tag=True, kw_only=True):
    """A private logistic fit, the same plan at all sites and at the Master."""

    plan: PrivatePlan
    messages: ClassVar[tuple[type[Message], ...]] = (
        AskBound, AskSlope, AskCurvature, SquareTotal, SlopeTotal,
    )  # fmt: skip
    requests = ((AskBound, None), (AskSlope, None), (AskCurvature, None))

    def respond(self, agent: Agent, cache: None, part: Any, own_part: Any) -> tuple[None, Message]:
        """The exact total over the site's clipped rows; the noise is added where it becomes integers."""
        if isinstance(part, AskSlope) and part.step >= self.plan.steps:
            raise ProtocolError(f"a private fit of {self.plan.steps} gradients was asked for one more")
        model = self._clipped(agent.objective, agent.name)
        if isinstance(part, AskSlope):
            return None, SlopeTotal(model.weight * model.at(part.theta).gradient)
        theta = np.zeros(self.plan.n) if isinstance(part, AskBound) else part.theta
        return None, SquareTotal(pack(model.weight * gram(model.at(theta).factor)))

    def _clipped(self, objective: Objective, site: AgentId) -> Logistic:
        """The site's cost over clipped rows; each row counts once."""
        objective = getattr(objective, "counted", objective)  # behind what counts its Hessians
        if not isinstance(objective, Logistic):
            raise ConfigError(f"site {site!r}: a private fit is of a logistic model, and this is another")
        if objective.weights is not None or objective.offset is not None:
            raise ConfigError(f"site {site!r}: a private fit has no weights and no offset; leave them out")
        return Logistic(clipped(objective.X, self.plan.privacy.clip, self.plan.columns), objective.y)

    def noise_of(self, part: Message) -> Vector:
        """The noise that each site adds to each number of its answer: all sites but one are enough."""
        return _charged(part, self.plan) / sqrt(self.plan.sites - 1)

    def flow(self, problem: Problem) -> Flow[PrivateResult]:
        """The whole fit, with agents whose answers add up to noised totals (in protected mode one, "all")."""
        _check(problem, self.plan)
        ridge = self.plan.rows * problem.l2
        (bound,) = yield from _totals([AskBound()], problem)
        curvature = _known_corner(bound, self.plan)
        A = definite(curvature, _total_noise(AskBound(), self.plan), ridge)
        theta, states = np.zeros(problem.n), list[tuple[Vector, float]]()
        for step in range(self.plan.steps):
            parts: list[Message] = [AskSlope(theta, step)]
            if turn := step == self.plan.turn:
                parts.append(AskCurvature(theta))
            slope, *squares = yield from _totals(parts, problem)
            if turn:
                A = definite(unpack(squares[0], problem.n), _total_noise(parts[1], self.plan), ridge)
            precision = 1 / _total_noise(parts[0], self.plan) ** 2
            theta = theta - self._step(A, slope + ridge * theta)
            states.append((theta, precision))
        return _result(states[self.plan.turn :], A, ridge, self.plan)

    def _step(self, A: Definite, g: Vector) -> Vector:
        """A^-1 g, shortened where it would move some margin too far."""
        step = A.inverse @ g
        return step * min(1.0, STEP * sqrt(self.plan.n) / max(self.plan.reach(step), 1e-300))


class Definite(Struct, frozen=True):
    """A noised matrix made definite: its inverse, and that inverse without the noise's bias."""

    inverse: Matrix
    unbiased: Matrix


def definite(noised: Matrix, sigma: float, ridge: Vector) -> Definite:
    """A definite matrix from one with noise of scale sigma, and sigma / sqrt(2) beside the diagonal.

    Entries beside the diagonal are multiplied by the positive-part James-Stein factor k = 1 - E / S, E being
    the sum of squares that the noise is expected to have and S theirs; eigenvalues are at least 0.6 of the
    spectral norm k sigma sqrt(2n) of what noise is left.  E (A + Z)^-1 = A^-1 + A^-1 E(Z A^-1 Z) A^-1 to
    second order, with E(Z A^-1 Z) = k^2 sigma^2 (A^-1 + tr(A^-1) I) / 2, which `unbiased` is without.
    """
    n = len(noised)
    beside = noised - np.diag(np.diag(noised))
    squares, expected = float(np.square(beside).sum()), n * (n - 1) / 2 * sigma**2
    k = max(0.0, 1 - expected / squares) if squares > 0 else 0.0
    values, vectors = np.linalg.eigh(np.diag(np.diag(noised)) + k * beside)
    least = max(FLOOR * k * sqrt(2 * n), 0.25) * sigma
    raised = (vectors * np.maximum(values, least)) @ vectors.T + np.diag(ridge)
    inverse = np.linalg.inv(raised)
    bias = (k * sigma) ** 2 / 2 * inverse @ (inverse + np.trace(inverse) * np.eye(n)) @ inverse
    unbiased = inverse - bias
    return Definite(inverse, unbiased if np.linalg.eigvalsh(unbiased)[0] > 0 else inverse)


def _charged(part: Message, plan: PrivatePlan) -> Vector:
    """The noise of each number that the budget is charged for."""
    if isinstance(part, AskSlope):
        return np.full(plan.n, plan.gradient_noise(part.step, part.theta))
    return plan.matrix_noise(BOUND_SHARE if isinstance(part, AskBound) else CURVATURE_SHARE)


def _total_noise(part: Message, plan: PrivatePlan) -> float:
    """The noise of a total over all sites: of each number of a gradient, of the diagonal of a matrix."""
    return float(_charged(part, plan)[0]) * sqrt(plan.surplus)


def _totals(parts: Sequence[Message], problem: Problem) -> Flow[list[Vector]]:
    """The totals over all agents, in sorted order."""
    replies = yield from everyone(parts, problem)
    kinds = [SlopeTotal if isinstance(part, AskSlope) else SquareTotal for part in parts]
    for agent in problem.agents:
        if [type(answer) for answer in replies[agent]] != kinds:
            raise ProtocolError(f"{agent!r} answered a private fit with other messages than it was asked for")
    return [np.sum([replies[agent][k].total for agent in problem.agents], axis=0) for k in range(len(parts))]


def _known_corner(bound: Packed, plan: PrivatePlan) -> Matrix:
    """The bound, whose entry of the intercept is N / 4: that is public."""
    matrix = unpack(bound, plan.n)
    if plan.intercept:
        matrix[-1, -1] = plan.rows / 4
    return matrix


def _result(
    states: Sequence[tuple[Vector, float]], A: Definite, ridge: Vector, plan: PrivatePlan
) -> PrivateResult:
    """The mean of the last iterates by precision, with H^-1 (H - ridge) H^-1 + H^-1 Sigma H^-1."""
    whole = sum(precision for _, precision in states)
    theta = sum((precision / whole * theta for theta, precision in states), np.zeros(plan.n))
    noise = A.inverse @ A.inverse / whole
    sampling = A.unbiased - A.inverse @ np.diag(ridge) @ A.inverse
    dominated = bool((np.diag(noise) > np.diag(sampling)).any())
    said = ("the noise of privacy is larger than the sampling error of some coefficients",) * dominated
    return PrivateResult(theta, sampling + noise, noise, plan, plan.privacy.rho, said)


def _check(problem: Problem, plan: PrivatePlan) -> None:
    if problem.loss != "logistic":
        raise ConfigError(f"a private fit is of a logistic model, not {problem.loss}")
    if problem.n != plan.n:
        raise ConfigError(f"the private plan is for {plan.n} coefficients, and the design has {problem.n}")


def private_fit(
    plan: PrivatePlan, ask: Callable[[Sequence[Message]], Sequence[Message]], l2: Vector | None = None
) -> PrivateResult:
    """A private logistic fit over one agent "all": `ask` gives the noised totals of all sites for some parts.

    Parameters
    ----------
    plan : PrivatePlan
        Rows, columns, sites and the promise.
    ask : callable
        From the parts of a request to the answers, each a total over all sites with its noise.
    l2 : array, optional
        Ridge on the mean loss, one number for each coefficient.

    Returns
    -------
    PrivateResult
        The estimate, its covariance with the noise, and the budget spent.
    """
    problem = Problem(np.zeros(plan.n) if l2 is None else l2, {"all": float(plan.rows)}, "logistic")
    flow = PrivateFit(plan=plan).flow(problem)
    asked = next(flow)
    while True:
        try:
            asked = flow.send({"all": ask(asked.parts)})
        except StopIteration as ended:
            result: PrivateResult = ended.value
            return result
