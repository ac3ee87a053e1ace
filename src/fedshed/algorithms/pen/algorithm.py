"""PEN, predictive entropy-coded Newton: agents code what the Master could not predict, in whitened units.

Master and agent hold the same copy of the agent's gradient and Hessian, in the coordinates of a common frame
G with G S G' near the identity for the global Hessian S.  An agent codes only the innovation, gradient minus
its prediction and Hessian minus a multiple of the copy, with a uniform step and an entropy coder: reverse
water-filling in the metric that matters; the next innovation contains the errors of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from scipy.linalg.blas import daxpy

from fedshed._utils.errors import ProtocolError, SingularError
from fedshed.algorithms.base import Algorithm, Info, SiteModel, advance, cost, gradient
from fedshed.algorithms.channels import Channel
from fedshed.algorithms.lbfgs import update_secants
from fedshed.algorithms.linesearch import NO_STEP, SMALLEST_STEP
from fedshed.algorithms.pen.agent import Cache, answer_first, answer_move
from fedshed.algorithms.pen.direction import BLIND, direction, minimize_cubic
from fedshed.algorithms.pen.dither import COHERENT, coherence
from fedshed.algorithms.pen.frame import (
    Frame,
    change_frame,
    change_of,
    decode_step,
    diagonal_change,
    encode_move,
    frame_change,
    identity,
    move_frame,
)
from fedshed.algorithms.pen.innovation import (
    TOO_LARGE,
    Steps,
    correct_copy,
    decode_first,
    first_error,
    predict_copy,
    undecodable,
)
from fedshed.algorithms.pen.messages import Beyond, First, Innovation, Mine, Move, Start, Whole
from fedshed.algorithms.pen.state import PenState, change_coordinates
from fedshed.linalg.arrays import Matrix, Vector, pack
from fedshed.objectives import family_of
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.links import Forgot
from fedshed.protocol.messages import Local, Message, Update

SETTLED = 1.3  # |log w| below which secants help
SENDABLE = 1e-70, 1e70  # squares of decrements that float32 has room for
UNSENDABLE = (
    "the Newton decrement is too small or too large to be coded; rescale the target, or use an algorithm "
    "that sends plain numbers, such as newton"
)
FAST = 4.0  # by what the decrement must fall for the Hessian to be good enough


class Pen(Algorithm[PenState, Start | Move | Update, Mine | None, First, Cache], frozen=True, tag=True):
    """PEN, predictive entropy-coded Newton: the rounds of Newton's method with a fraction of its bytes.

    Master and agent keep the same copy of the agent's gradient and Hessian, and an agent sends only what the
    copy did not predict, entropy coded (docs/beyond.md). The copies are n x n matrices, so PEN is for n up to
    about 1,000. The default steps were chosen on the problems F5, F6, F8 and W5 of docs/beyond.md.

    Parameters
    ----------
    step_size : float, default 0.2
        The quantisation step of the Hessian's innovation, in whitened coordinates.
    dithered_step : float, default 0.12
        The quantisation step of changes that are rounded at random.
    first_hessian : float, default 0.25
        The quantisation step of the first Hessian, in units of its own diagonal.
    pair_step : float, default 0.7
        The quantisation step of spectral innovations, in units of their weakest row; 0 turns them off.
    shift : float, default 0.15
        The amount that is added to the eigenvalues, in units of the noise radius.
    first_step : float, default 2.0
        The first step size for models of two classes, whose curvature is largest at 0.
    memory : int, default 10
        The number of secants.
    tensor : bool, default True
        Whether a step is corrected by the change of the Hessian.
    skip : bool, default True
        Whether no Hessian is asked for while the decrement halves and the frame stays.
    every : int, default 1
        The number of exchanges per Hessian while rounding errors are independent, from 1 to 16.
    coherent : float
        The coherence of rounding errors above which changes are rounded at random.
    channel : Channel, optional
        The largest message per round, in eigenpairs. Default: no limit.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> algorithm = fedshed.algorithms.Pen(memory=5)
    >>> fedshed.optimize(federation, l2=1e-2, algorithm=algorithm).converged
    True
    """

    step_size: float = 0.2  # of the Hessian's innovation, in whitened coordinates
    dithered_step: float = 0.12  # of dithered changes
    first_hessian: float = 0.25  # of the first Hessian, in units of its own diagonal
    pair_step: float = 0.7  # of spectral innovations, in units of their weakest row; 0: there are none
    shift: float = 0.15  # added to the eigenvalues, in units of the noise radius
    first_step: float = 2.0  # of the logistic loss, whose curvature is largest at 0
    memory: int = 10  # secants that are kept
    tensor: bool = True  # correct the direction by the change of the Hessian
    skip: bool = True  # no Hessian where the decrement falls below a quarter and the frame stays
    every: Annotated[int, Meta(ge=1, le=16)] = 1  # exchanges per Hessian, while errors are independent
    coherent: float = COHERENT  # rho above which errors do not average out and changes are dithered
    channel: Channel | None = None  # what links carry; None: no limit

    messages: ClassVar[tuple[type[Message], ...]] = (
        Start,
        Move,
        Mine,
        First,
        Innovation,
        Forgot,
        Beyond,
        Update,
        Local,
    )
    requests = ((Start, Mine), (Move, Mine), (Update, None))
    state = PenState
    cache = Cache

    # --- at the Master ---------------------------------------------------------------------------

    def ask(self, problem: Problem, state: PenState) -> Ask:
        """The first exchange: everything in the agent's own units."""
        return Ask((Start(state.theta),), {i: Mine(0, None, k) for k, i in enumerate(problem.agents)})

    def absorb(self, problem: Problem, state: PenState, replies: Replies[First]) -> PenState:
        """Copies from the first answers; the first move will go to the coordinates of the mean diagonal."""
        copies = {i: decode_first(replies[i][0], problem.n) for i in problem.agents}
        known = {
            i: SiteModel(state.theta, replies[i][0].loss, copies[i].g, copies[i]) for i in problem.agents
        }
        diagonal = problem.l2.copy()
        for i in problem.agents:
            diagonal = diagonal + problem.p[i] * np.diag(copies[i].W)
        noise = self._noise(problem, [first_error(replies[i][0], problem.n) for i in problem.agents])
        frame, pending = identity(state.theta), diagonal_change(diagonal)
        return replace(state, known=known, frame=frame, noise=noise, pending=pending)

    def step(self, problem: Problem, state: PenState) -> Flow[tuple[PenState, Info]]:
        """Refresh the frame, take a tensor-corrected quasi-Newton step, shorten it until the cost falls."""
        g = gradient(problem, state)
        state, frame, A, change = self._refresh_frame(problem, state, g)
        gw = frame.G @ g
        newest = state.last if state.settled else None
        s, y = update_secants(state.s, state.y, newest, np.zeros(problem.n), gw, self.memory)
        u = -direction(gw, A, state.before if self.tensor and self.every == 1 else None, s, y)
        eta = self.first_step if state.t == 1 and family_of(problem.loss).classes == "two" else 1.0
        if not SENDABLE[0] < abs(float(gw @ u)) < SENDABLE[1]:
            return state, Info(0.0, 1, stopped=UNSENDABLE)
        after, eta, taken, trials = yield from self._search(problem, state, gw, u, eta, change)
        if eta == 0:
            return state, Info(0.0, 1, stopped=NO_STEP)
        after = advance(after, after.theta, g)
        after = replace(after, A=A, s=s, y=y, last=(-taken, gw), updated=after.t)
        return after, Info(eta, trials, renewed=len(problem.agents), q_max=problem.n)

    def _refresh_frame(
        self, problem: Problem, state: PenState, g: Vector
    ) -> tuple[PenState, Frame, Matrix, bytes]:
        """The state in a frame in which the curvature is near 1, that curvature, and the change to send."""
        assert state.frame is not None
        frame = change_frame(state.frame, state.pending)
        w, V = self._curvature(problem, state, frame)
        settled = bool(np.abs(np.log(w)).max() <= SETTLED)
        decrement = float(np.linalg.norm((frame.G @ g) @ V / np.sqrt(w)))
        fast = self.skip and settled and not state.pending and decrement < state.decrement / FAST
        between = state.since + 1 < self.every and state.rho <= self.coherent and not state.pending
        change = b"" if fast or between else frame_change(w, V)
        B = change_of(change, problem.n)
        if not settled:  # the Hessian still moves: secants would mislead
            state = replace(state, s=None, y=None)
        state = replace(state, settled=settled, fast=fast, between=between)
        roots = V * np.sqrt(w)
        A = B.congruence(roots @ roots.T)
        return change_coordinates(state, B), change_frame(frame, change), A, state.pending + change

    def _search(
        self, problem: Problem, state: PenState, g: Vector, u: Vector, eta: float, change: bytes
    ) -> Flow[tuple[PenState, float, Vector, int]]:
        """Armijo along u from eta on: every trial is a move whose update is kept, accepted or not."""
        f0, slope = cost(problem, state), float(g @ u)
        slack = 4 * np.finfo(float).eps * max(1.0, abs(f0))
        decrement = float(np.sqrt(max(-slope, np.finfo(float).tiny)))
        curvature, state = not (state.fast or state.between), replace(state, decrement=decrement)
        taken, trials, t = np.zeros(problem.n), 0, state.t + 1
        while eta >= SMALLEST_STEP:
            move = encode_move(t, change, eta * u - taken, decrement, curvature, state.dither, self.every > 1)
            there = yield from self._move(problem, state, move)
            trials += 1
            if there is None:  # so far away that no agent has moved
                eta *= BLIND
                continue
            state, taken, change = there, taken + decode_step(move, problem.n), b""
            f1 = cost(problem, state)
            if f1 <= f0 + 0.1 * eta * slope + slack:
                state = replace(state, dither=state.dither or state.rho > self.coherent)
                return state, eta, taken, trials
            rise = float(state.whiten_gradient(gradient(problem, state)) @ u)
            eta, curvature = eta * minimize_cubic(f0, eta * slope, f1, eta * rise), True
        return state, 0.0, taken, trials

    def _move(self, problem: Problem, state: PenState, move: Move) -> Flow[PenState | None]:
        """The state at the point of a move: frame, copies, costs and gradients there; None: it is too far."""
        assert state.frame is not None
        frame = move_frame(change_frame(state.frame, move.change), move)
        replies: dict[AgentId, Sequence[Any]] = {}
        forgot = set(problem.agents) if problem.stateless else set(state.agents_without_cache)
        while rest := [i for i in problem.agents if i not in replies]:
            # an agent that forgot its copy is sent the Master's
            each = {i: self._mine(problem, state, i, whole=i in forgot) for i in rest}
            answers = yield from self.collect(Ask((move,), each), problem, state)
            forgot |= {i for i, (answer,) in answers.items() if isinstance(answer, Forgot)}
            replies |= {i: parts for i, parts in answers.items() if not isinstance(parts[0], Forgot)}
        if any(isinstance(answer, Beyond) for (answer,) in replies.values()):
            return None  # agents that did answer recall the copy before
        return self._learnt(problem, state, frame, move, replies)

    def _learnt(
        self, problem: Problem, state: PenState, frame: Frame, move: Move, replies: Replies[Any]
    ) -> PenState:
        u, missed, copies = decode_step(move, problem.n), np.zeros(problem.n), {}
        for i in problem.agents:
            (answer,) = replies[i]
            prediction = predict_copy(state.known[i].curvature, move)
            copies[i] = copy = correct_copy(prediction, move, answer)
            if not np.isfinite(np.vdot(copy.W, copy.W) + copy.g @ copy.g):
                raise ProtocolError(f"agent {i!r} cannot be used: {TOO_LARGE}")
            change = copy.W @ u - prediction.W @ u if copy.W is not prediction.W else 0.0
            missed += problem.p[i] * (copy.g - prediction.g - change / 2)
        gradients = _unwhiten(frame.G, np.transpose([copy.g for copy in copies.values()])).T
        known = {
            i: SiteModel(frame.theta, replies[i][0].loss, g, copies[i])
            for i, g in zip(copies, gradients, strict=True)
        }
        if move.curvature:
            noise = self._noise(problem, [replies[i][0].error for i in problem.agents])
            state = replace(state, noise=noise, anchor=frame.theta)
        rho, anchor = coherence(missed, state.noise, u), state.anchor if move.dither else None
        state = replace(state, rho=rho, anchor=anchor, since=0 if move.curvature else state.since + 1)
        return replace(
            state, theta=frame.theta, frame=frame, known=known, pending=b"", agents_without_cache=()
        )

    def _mine(self, problem: Problem, state: PenState, i: AgentId, whole: bool) -> Mine:
        """Which copy an agent is to go on from, in full if it lost its own."""
        copy, frame = state.known[i].curvature, state.frame
        assert frame is not None
        full = Whole(frame.G, frame.theta, pack(copy.W), copy.g, state.anchor) if whole else None
        return Mine(copy.digest, full, problem.agents.index(i))

    def _curvature(self, problem: Problem, state: PenState, frame: Frame) -> tuple[Vector, Matrix]:
        """Eigenpairs of G (sum_i p_i H_hat_i + diag(l2)) G', kept away from 0 by the noise radius."""
        W = np.zeros((problem.n, problem.n))
        for i in problem.agents:
            daxpy(state.known[i].curvature.W.ravel(), W.ravel(), a=problem.p[i])  # W += p_i W_i
        roots = frame.G * np.sqrt(problem.l2)
        A = roots @ roots.T + change_of(state.pending, problem.n).congruence(W)
        w, V = np.linalg.eigh(A)
        return np.maximum(np.maximum(w + self.shift * state.noise, 0.02), state.noise / 2), V

    def _noise(self, problem: Problem, errors: Sequence[float]) -> float:
        """2 (sum_i p_i^2 e_i / n)^(1/2): the spectral radius of a random symmetric matrix of that energy."""
        energy = sum(problem.p[i] ** 2 * e for i, e in zip(problem.agents, errors, strict=True))
        return 2 * float(np.sqrt(energy / problem.n))

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """Each part has its own kind of answer, which can be decoded."""
        if isinstance(part, Update):
            return wrong_type_reason(answer, Local)
        if isinstance(answer, Forgot) and isinstance(part, Move):
            return None if own_part.whole is None else "it has lost the copy that was sent with the request"
        if isinstance(answer, Beyond) and isinstance(part, Move):
            return None
        why = wrong_type_reason(answer, First if isinstance(part, Start) else Innovation)
        return why or undecodable(part, answer, problem.n)

    @property
    def lossy(self) -> bool:
        """Gradients are rounded."""
        return True

    def confirm(self, problem: Problem, state: PenState) -> Flow[PenState]:
        """Gradients in full, before convergence is declared on them; the copies stay as they are."""
        ask = Ask((Update(state.t, state.theta),), dict.fromkeys(problem.agents))
        replies = yield from self.collect(ask, problem, state)
        known = {i: replace(state.known[i], g=replies[i][0].gradient) for i in problem.agents}
        return replace(state, known=known)

    def assume_forgotten(self, state: PenState) -> PenState:
        """Send every agent its copy with the next request."""
        return replace(state, agents_without_cache=tuple(sorted(state.known)))

    # --- at an agent -----------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: Cache | None, part: Start | Move | Update, own_part: Mine | None
    ) -> tuple[Cache | None, Message]:
        """The first answer, an exact gradient, or the innovation at the point of a move."""
        if isinstance(part, Update):
            assert part.theta is not None
            point = agent.objective.at(part.theta)
            return cache, Local(point.value, point.gradient, None)
        assert own_part is not None
        if isinstance(part, Move):
            return answer_move(agent, cache, part, own_part, self._steps, self._bytes(agent, part))
        return answer_first(agent, part.theta, self._steps, own_part.index)

    @property
    def _steps(self) -> Steps:
        """All steps were chosen on F5, F6, F8 and W5 (docs/beyond.md)."""
        first = self.first_hessian, 1.5 * self.dithered_step
        return Steps(self.step_size, self.dithered_step, *first, self.pair_step)

    def _bytes(self, agent: Agent, move: Move) -> float:
        """What the link carries this time; a coarser step makes the message fit."""
        if self.channel is None:
            return float("inf")
        pair = 8 * (agent.objective.dim + 1)
        return float(self.channel.eigenpairs(move.t, agent.name, pair) * pair)


def _unwhiten(G: Matrix, gradients: Matrix) -> Matrix:
    """G^-1 g; an error where G is singular: along some direction the cost has no curvature."""
    try:
        return np.asarray(np.linalg.solve(G, gradients), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise SingularError(
            "the curvature along some direction has vanished, as it does where columns are collinear or "
            "classes are separated; look at the table, standardise it, give l2 > 0, or use newton, which "
            "names the columns"
        ) from None
