"""PEN, predictive entropy-coded Newton: agents code what the Master could not predict, in whitened units.

Master and agent hold the same copy of the agent's gradient and Hessian, in the coordinates of a common frame
G with G S G' near the identity for the global Hessian S.  An agent codes only the innovation, gradient minus
its prediction and Hessian minus a multiple of the copy, with a uniform step and an entropy coder: reverse
water-filling in the metric that matters; the next innovation contains the errors of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms import pen_coding as coding
from fedshed.algorithms.base import (
    Algorithm,
    Info,
    SiteModel,
    State,
    advance,
    cost,
    gradient,
)
from fedshed.algorithms.channels import Channel
from fedshed.algorithms.lbfgs import remembered, two_loop
from fedshed.algorithms.linesearch import SMALLEST_STEP
from fedshed.algorithms.pen_coding import Copy, First, Forgot, Frame, Innovation, Mine, Move, Start, Whole
from fedshed.linalg.arrays import Matrix, Vector, pack, unpack
from fedshed.linalg.rows import gram
from fedshed.objectives import family_of
from fedshed.protocol.conversation import (
    Agent,
    AgentId,
    Ask,
    Flow,
    Problem,
    Replies,
    unlike,
)
from fedshed.protocol.messages import Local, Message, Update


class Cache(Struct, frozen=True):
    """What an agent holds: frame and copy, now and before its last answer, which may not have arrived."""

    frame: Frame
    copy: Copy
    previous: tuple[Frame, Copy] | None = None


class PenState(State[Copy], frozen=True):
    """The Master's state: the frame, and in its coordinates the last Hessian, step, gradient and secants."""

    frame: Frame | None = None
    noise: float = 0.0  # radius of the quantisation error of the mean Hessian
    A: Matrix | None = None  # the last round's Hessian
    s: Matrix | None = None
    y: Matrix | None = None
    last: tuple[Vector, Vector] | None = None  # the last point (0 in its own coordinates) and gradient
    decrement: float = 0.0  # Newton's, at the last step
    settled: bool = False  # the Hessian has nearly stopped changing
    pending: bytes = b""  # a change of frame that goes with the next move
    lost: tuple[AgentId, ...] = ()


class Pen(Algorithm[PenState], frozen=True, tag=True):
    """Newton's rounds at a fraction of Newton's bytes, for n up to about 1,000: n^2 numbers an agent."""

    step_size: float = 0.12  # of the Hessian's innovation, in whitened coordinates
    shift: float = 0.15  # added to the eigenvalues, in units of the noise radius
    first_step: float = 2.0  # of the logistic loss, whose curvature is largest at 0
    memory: int = 10
    tensor: bool = True
    skip: bool = True  # no Hessian while the decrement halves and the frame stays
    channel: Channel | None = None

    messages: ClassVar[tuple[type[Message], ...]] = (
        Start,
        Move,
        Mine,
        First,
        Innovation,
        Forgot,
        Update,
        Local,
    )
    state = PenState
    cache = Cache

    # --- at the Master ---------------------------------------------------------------------------

    def ask(self, problem: Problem, state: PenState) -> Ask:
        """The first exchange: everything in the agent's own units."""
        return Ask((Start(state.theta),), dict.fromkeys(problem.agents))

    def absorb(self, problem: Problem, state: PenState, replies: Replies) -> PenState:
        """Copies from the first answers; the first move will go to the coordinates of the mean diagonal."""
        copies = {i: coding.decoded_first(replies[i][0], problem.n) for i in problem.agents}
        known = {
            i: SiteModel(state.theta, replies[i][0].loss, copies[i].g, copies[i]) for i in problem.agents
        }
        diagonal = problem.l2.copy()
        for i in problem.agents:
            diagonal = diagonal + problem.p[i] * np.diag(copies[i].W)
        noise = self._noise(problem, [coding.first_error(self.step_size, problem.n)] * len(copies))
        frame, pending = coding.identity(state.theta), coding.diagonal_change(diagonal)
        return replace(state, known=known, frame=frame, noise=noise, pending=pending)

    def step(self, problem: Problem, state: PenState) -> Flow[tuple[PenState, Info]]:
        """Refresh the frame, take a tensor-corrected quasi-Newton step, shorten it until the cost falls."""
        g = gradient(problem, state)
        state, frame, A, change = self._refreshed(problem, state)
        gw = frame.G @ g
        newest = state.last if state.settled else None
        s, y = remembered(state.s, state.y, newest, np.zeros(problem.n), gw, self.memory)
        u = -_direction(gw, A, state if self.tensor else None, s, y)
        eta = self.first_step if state.t == 1 and family_of(problem.loss).classes == "two" else 1.0
        after, eta, taken, trials = yield from self._search(problem, state, gw, u, eta, change)
        if eta == 0:
            return state, Info(
                0.0, 1, stopped="the line search found no step above 2^-40 that lowers the cost"
            )
        after = advance(after, after.theta, g)
        after = replace(after, A=A, s=s, y=y, last=(-taken, gw), updated=after.t)
        return after, Info(eta, trials, renewed=len(problem.agents), q_max=problem.n)

    def _refreshed(self, problem: Problem, state: PenState) -> tuple[PenState, Frame, Matrix, bytes]:
        """The state in a frame in which the curvature is near 1, that curvature, and the change to send."""
        assert state.frame is not None
        frame = coding.changed(state.frame, state.pending)
        A = self._curvature(problem, state, frame)
        change = coding.frame_change(A)
        B = coding.change_matrix(change, problem.n)
        settled = bool(np.abs(np.log(np.linalg.eigvalsh(A))).max() <= coding.SETTLED)
        if not settled:  # the Hessian still moves: secants would mislead
            state = replace(state, s=None, y=None)
        state = replace(state, settled=settled)
        return _turned(state, B), coding.changed(frame, change), B @ A @ B.T, state.pending + change

    def _search(
        self, problem: Problem, state: PenState, g: Vector, u: Vector, eta: float, change: bytes
    ) -> Flow[tuple[PenState, float, Vector, int]]:
        """Armijo along u from eta on: every trial is a move whose update is kept, accepted or not."""
        f0, slope = cost(problem, state), float(g @ u)
        slack = 4 * np.finfo(float).eps * max(1.0, abs(f0))
        decrement = float(np.sqrt(max(-slope, np.finfo(float).tiny)))
        curvature = not (self.skip and state.settled and not change and decrement < state.decrement / 4)
        state = replace(state, decrement=decrement)
        taken, trials, t = np.zeros(problem.n), 0, state.t + 1
        while eta >= SMALLEST_STEP:
            move = coding.coded_move(t, change, eta * u - taken, decrement, curvature)
            state = yield from self._moved(problem, state, move)
            taken, trials, change = taken + coding.decoded_step(move, problem.n), trials + 1, b""
            if cost(problem, state) <= f0 + 0.1 * eta * slope + slack:
                return state, eta, taken, trials
            eta, curvature = 0.35 * eta, True
        return state, 0.0, taken, trials

    def _moved(self, problem: Problem, state: PenState, move: Move) -> Flow[PenState]:
        """The state at the point of a move: frame, copies, costs and gradients there."""
        assert state.frame is not None
        frame = coding.moved(coding.changed(state.frame, move.change), move)
        replies: dict[AgentId, Sequence[Any]] = {}
        forgot = set(problem.agents) if problem.stateless else set(state.lost)
        while rest := [i for i in problem.agents if i not in replies]:
            # an agent that forgot its copy is sent the Master's
            each = {i: self._mine(state, i, whole=i in forgot) for i in rest}
            answers = yield from self.collect(Ask((move,), each), problem, state)
            forgot |= {i for i, (answer,) in answers.items() if isinstance(answer, Forgot)}
            replies |= {i: parts for i, parts in answers.items() if not isinstance(parts[0], Forgot)}
        return self._learnt(problem, state, frame, move, replies)

    def _learnt(
        self, problem: Problem, state: PenState, frame: Frame, move: Move, replies: Replies
    ) -> PenState:
        inverse = np.linalg.inv(frame.G)
        known = {}
        for i in problem.agents:
            (answer,) = replies[i]
            predicted = coding.predicted(state.known[i].curvature, move)
            copy = coding.corrected_copy(predicted, move, answer)
            known[i] = SiteModel(frame.theta, answer.loss, inverse @ copy.g, copy)
        noise = state.noise
        if move.curvature:
            noise = self._noise(problem, [replies[i][0].error for i in problem.agents])
        return replace(state, theta=frame.theta, frame=frame, known=known, noise=noise, pending=b"", lost=())

    def _mine(self, state: PenState, i: AgentId, whole: bool) -> Mine:
        copy, frame = state.known[i].curvature, state.frame
        assert frame is not None
        return Mine(copy.digest, Whole(frame.G, frame.theta, pack(copy.W), copy.g) if whole else None)

    def _curvature(self, problem: Problem, state: PenState, frame: Frame) -> Matrix:
        """G (sum_i p_i H_hat_i + diag(l2)) G', its eigenvalues kept away from 0 by the noise radius."""
        W = np.zeros((problem.n, problem.n))
        for i in problem.agents:
            W += problem.p[i] * state.known[i].curvature.W
        T = coding.change_matrix(state.pending, problem.n)
        A = (frame.G * problem.l2) @ frame.G.T + T @ W @ T.T
        w, V = np.linalg.eigh((A + A.T) / 2)
        w = np.maximum(np.maximum(w + self.shift * state.noise, 0.02), state.noise / 2)
        clipped: Matrix = (V * w) @ V.T
        return clipped

    def _noise(self, problem: Problem, errors: Sequence[float]) -> float:
        """2 (sum_i p_i^2 e_i / n)^(1/2): the spectral radius of a random symmetric matrix of that energy."""
        energy = sum(problem.p[i] ** 2 * e for i, e in zip(problem.agents, errors, strict=True))
        return 2 * float(np.sqrt(energy / problem.n))

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """Each part has its own kind of answer, which can be decoded."""
        if isinstance(part, Update):
            return unlike(answer, Local)
        if isinstance(answer, Forgot) and isinstance(part, Move):
            return None if own_part.whole is None else "it forgot the copy that was sent with the request"
        why = unlike(answer, First if isinstance(part, Start) else Innovation)
        return why or coding.undecodable(part, answer, problem.n)

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
        return replace(state, lost=tuple(sorted(state.known)))

    # --- at an agent -----------------------------------------------------------------------------

    def respond(
        self, agent: Agent, cache: Cache | None, part: Any, own_part: Mine | None
    ) -> tuple[Any, Message]:
        """The first answer, an exact gradient, or the innovation at the point of a move."""
        if isinstance(part, Move):
            assert own_part is not None
            return self._innovation(agent, cache, part, own_part)
        point = agent.objective.at(part.theta)
        if isinstance(part, Update):
            return cache, Local(point.value, point.gradient, None)
        first = coding.first_answer(point.value, point.gradient, gram(point.factor), self.step_size)
        copy = coding.decoded_first(first, agent.objective.dim)
        return Cache(coding.identity(part.theta), copy), first

    def _innovation(
        self, agent: Agent, cache: Cache | None, move: Move, own_part: Mine
    ) -> tuple[Cache | None, Message]:
        held = _recalled(cache, own_part)
        if held is None:
            return cache, Forgot()
        frame = coding.moved(coding.changed(held[0], move.change), move)
        predicted = coding.predicted(held[1], move)
        point = agent.objective.at(frame.theta)
        Wn = frame.G @ gram(point.factor) @ frame.G.T if move.curvature else None
        answer = coding.innovation(
            point.value,
            frame.G @ point.gradient,
            Wn,
            predicted,
            move,
            self.step_size,
            self._bytes(agent, move),
        )
        return Cache(frame, coding.corrected_copy(predicted, move, answer), held), answer

    def _bytes(self, agent: Agent, move: Move) -> float:
        """What the link carries this time; a coarser step makes the message fit."""
        if self.channel is None:
            return float("inf")
        pair = 8 * (agent.objective.dim + 1)
        return float(self.channel.eigenpairs(move.t, agent.name, pair) * pair)


def _recalled(cache: Cache | None, own_part: Mine) -> tuple[Frame, Copy] | None:
    """The frame and copy the Master means: sent along, or the newest, or the one before the last answer."""
    if own_part.whole is not None:
        whole = own_part.whole
        return Frame(whole.G, whole.theta), Copy(own_part.digest, unpack(whole.W, len(whole.g)), whole.g)
    if cache is not None and cache.copy.digest == own_part.digest:
        return cache.frame, cache.copy
    if cache is not None and cache.previous is not None and cache.previous[1].digest == own_part.digest:
        return cache.previous
    return None


def _turned(state: PenState, B: Matrix) -> PenState:
    """What the Master remembers, in changed coordinates; the copies follow with the move."""
    back = np.linalg.inv(B)
    return replace(
        state,
        A=None if state.A is None else B @ state.A @ B.T,
        s=None if state.s is None else state.s @ back,
        y=None if state.y is None else state.y @ B.T,
        last=None if state.last is None else (state.last[0] @ back, B @ state.last[1]),
    )


def _direction(g: Vector, A: Matrix, state: PenState | None, s: Matrix, y: Matrix) -> Vector:
    """B g, corrected by the tensor step: model g + A d + a (s'd)^2 / 2 = 0, a = (A - A_last) s / (s's)^2.

    Schnabel and Chow, SIAM J. Optim. 1 (1991); used where it points downhill and is not longer than twice.
    """

    def solve(v: Vector) -> Vector:
        return np.asarray(np.linalg.solve(A, v), dtype=np.float64)

    p = two_loop(g, s, y, solve, scaled=False)
    if state is None or state.A is None or state.last is None:
        return p
    last = -state.last[0]
    size = float(last @ last) ** 2
    if size == 0:  # a step that was rounded to 0 shows no change of the Hessian
        return p
    q = two_loop((A - state.A) @ last / size, s, y, solve, scaled=False)
    bend, along = float(last @ q), float(last @ p)
    if bend == 0 or 1 - 2 * bend * along <= 0:
        return p
    b = (np.sqrt(1 - 2 * bend * along) - 1) / bend
    d: Vector = p + q * float(b) * float(b) / 2
    return d if d @ g > 0 and d @ A @ d < 4 * (p @ A @ p) else p
