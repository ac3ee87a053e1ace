"""The engine: plays rounds over a transport, counts every byte, and keeps the trace."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed._utils.errors import ProtocolError
from fedshed.algorithms.base import DIVERGED, TOGETHER, AnyAlgorithm, Info, State, cost, gradient
from fedshed.algorithms.composite import steepest
from fedshed.algorithms.linesearch import NO_STEP
from fedshed.exchange import Transport
from fedshed.exchange.contacts import Contact
from fedshed.exchange.sums import ALL, column_sizes
from fedshed.exchange.wire import Refusal, SilenceError, Traffic, Wire
from fedshed.linalg.arrays import Vector
from fedshed.objectives import family_of
from fedshed.protocol.conversation import AgentId, Problem
from fedshed.protocol.messages import TOO_LARGE
from fedshed.solve.goal import Goal
from fedshed.solve.trace import Row


class Progress(Struct, frozen=True):
    """A run between two rounds: everything needed to continue, and the complete rows of the trace."""

    state: Any
    traffic: Traffic = Traffic()
    rows: list[Row] = []  # append-only, shared by the progress of one run
    info: Info | None = None  # of the last step
    rounds: int = 0
    seconds: float = 0.0
    sites: dict[AgentId, Contact] = {}  # who answered when, and with how many bytes
    refusals: tuple[Refusal, ...] = ()  # since this run was started or resumed
    exact: bool = False  # the last row is exact: every agent answered there, and no gradient was rounded


class Outcome(Struct, frozen=True):
    """How a run ended, and what the Master knew at the end."""

    state: Any
    rows: tuple[Row, ...]
    gradient: Vector
    converged: bool
    reason: str
    exact: bool = True  # whether the gradient is exact
    traffic: Traffic = Traffic()
    sites: dict[AgentId, Contact] = {}
    refusals: tuple[Refusal, ...] = ()


class Seen(Struct, frozen=True):
    """What the Master sees at theta^t, and why the run ends there, if it does."""

    state: Any
    g: Vector
    exact: bool  # no gradient is rounded, and none comes from a model
    row: Row
    reason: str | None


def iterate(
    algorithm: AnyAlgorithm, problem: Problem, transport: Transport, progress: Progress, goal: Goal
) -> Generator[Progress, None, Outcome]:
    """Play rounds until the goal is reached, or cannot be.

    Convergence is declared only where every agent answered at theta^t; one that stays silent ends the run.
    """
    scale = max((abs(row.f) for row in progress.rows), default=0.0)
    wire = Wire(
        algorithm, problem, transport, progress.traffic,
        quorum=goal.quorum, patience=goal.patience, sites=progress.sites, scale=scale,
    )  # fmt: skip
    run = _Run(algorithm, problem, wire, goal)
    clock = time.perf_counter() - progress.seconds
    try:
        while (seen := run.observed(progress)).reason is None:
            seen, after, info = run.stepped(seen, progress)
            if seen.reason is not None:
                break
            progress.rows.append(seen.row)
            progress = Progress(
                after, wire.traffic, progress.rows, info, progress.rounds + info.rounds,
                time.perf_counter() - clock, dict(wire.sites), tuple(wire.refusals), not run.doubtful(seen),
            )  # fmt: skip
            yield progress
    except SilenceError as silence:
        seen = run.abandoned(progress, silence)
    # what was asked for this decision belongs to the last row
    row = replace(seen.row, seconds=time.perf_counter() - clock, **_counts(wire.traffic, problem))
    return Outcome(
        seen.state, (*progress.rows, row), seen.g, reached_optimum(seen.reason),
        seen.reason or "", seen.exact, wire.traffic, dict(wire.sites), tuple(wire.refusals),
    )  # fmt: skip


class _Run:
    """The two halves of a round, and how a run ends that cannot continue."""

    def __init__(self, algorithm: AnyAlgorithm, problem: Problem, wire: Wire, goal: Goal) -> None:
        self._algorithm, self._problem, self._wire, self._goal = algorithm, problem, wire, goal
        self._last: Seen | None = None

    def observed(self, progress: Progress) -> Seen:
        """theta^t as those see it who answered; as all see it before convergence is declared."""
        self._last = None
        flow = self._algorithm.observe(self._problem, progress.state)
        state = self._wire.run_conversation(flow, progress.state.known)
        seen = self._seen(state, progress, exact=not self._algorithm.lossy)
        if self.doubtful(seen):
            least = max(self._goal.tol, _rounding(self._problem, seen.state))
            seen = self._confirmed(seen, progress) if seen.row.grad_norm <= least else seen
        if why := _divergence(progress.rows, seen.row):
            return replace(seen, reason=why)
        stalled = not self.doubtful(seen) and _stalled(progress.rows, seen.row)
        return replace(seen, reason=seen.reason or (self._rounded(seen) if stalled else None))

    def stepped(self, seen: Seen, progress: Progress) -> tuple[Seen, Any, Info]:
        """The state at theta^{t+1}; if no step was found, the cause may be rounding or a model."""
        after, info = self._stepped(seen)
        if info.stopped and self.doubtful(seen):
            seen = self._confirmed(seen, progress)
            after, info = (after, info) if seen.reason else self._stepped(seen)
        stopped = info.stopped
        if not np.isfinite(np.vdot(after.theta, after.theta)):
            stopped = _cannot_compute(seen.state, "to parameters that are not finite")
        if stopped is None and np.array_equal(after.theta, seen.state.theta):
            stopped = None if seen.state.silent(self._problem) else NO_MOVE
        hidden = stopped in (NO_STEP, NO_MOVE) and not self.doubtful(seen)
        if hidden and self._is_small(progress.rows, seen):
            stopped = self._rounded(seen)
        return replace(seen, reason=seen.reason or stopped), after, info

    def _rounded(self, seen: Seen) -> str:
        return rounding_reached(seen.row.grad_norm, self._goal.tol)

    def _is_small(self, rows: Sequence[Row], seen: Seen) -> bool:
        """Whether ||g|| is tiny beside the start, or beside the gradients of the agents, which cancel."""
        start = rows[0].grad_norm if rows else 0.0
        return seen.row.grad_norm <= SMALL * max(start, _cancelled(self._problem, seen.state))

    def abandoned(self, progress: Progress, silence: SilenceError) -> Seen:
        """What was seen last, with models for silent agents; nothing if one of them never answered."""
        if len(progress.state.known) < len(self._problem.agents) and self._last is None:
            raise silence
        seen = self._last or self._seen(progress.state, progress, exact=False)
        said = _cannot_compute(progress.state, f"to a cost {TOO_LARGE}") if silence.overflow else str(silence)
        return replace(seen, exact=False, reason=said)

    def _seen(self, state: Any, progress: Progress, exact: bool) -> Seen:
        g = steepest(self._problem, state.theta, gradient(self._problem, state))
        row = _row(self._problem, state, progress, g, self._goal.f_star)
        self._last = Seen(state, g, exact, row, _reason(self._problem, state, g, row, self._goal, exact))
        return self._last

    def _stepped(self, seen: Seen) -> tuple[Any, Info]:
        name = type(self._algorithm).__name__
        seen.state.theta.flags.writeable = False  # what is known of the agents belongs to this very array
        try:
            flow = self._algorithm.step(self._problem, seen.state)
            if isinstance(flow, Generator):  # a step that asks for nothing may simply return its result
                flow = self._wire.run_conversation(flow, seen.state.known)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise ProtocolError(
                f"{name}.step failed ({error}); it must not change theta in place and must return "
                "`advance(state, theta, g), Info(...)` with a new one (docs/extend.md)"
            ) from error
        if not (isinstance(flow, tuple) and len(flow) == 2):
            raise ProtocolError(
                f"{name}.step failed (it returned a {type(flow).__name__}); it must return "
                "`advance(state, theta, g), Info(...)` (docs/extend.md)"
            )
        after, info = flow
        if info.stopped is None and after.t != seen.state.t + 1:
            raise ProtocolError(
                f"{name}.step went from iteration {seen.state.t} to {after.t}, not "
                f"to {seen.state.t + 1}; return `advance(state, theta, g), Info(...)` (docs/extend.md)"
            )
        return after, info

    def doubtful(self, seen: Seen) -> bool:
        """Whether a gradient was rounded or comes from a model."""
        return not seen.exact or bool(seen.state.silent(self._problem))

    def _confirmed(self, seen: Seen, progress: Progress) -> Seen:
        """With exact answers of all agents."""
        flow = self._algorithm.confirm(self._problem, seen.state)
        return self._seen(self._wire.run_conversation(flow, seen.state.known), progress, exact=True)


SHORTER = "shorten its steps, or use a line search"
CONVERGED = "the gradient norm is at most tol"
CLOSE_ENOUGH = "f - f_star is at most gap_tol"
NO_MOVE = "the step no longer changes the parameters"
ROUNDING = "converged to rounding"  # how the reason of a run begins that rounding keeps above tol


def rounding_reached(grad_norm: float, tol: float) -> str:
    """The reason of a run that has converged as far as rounding lets any algorithm."""
    return f"{ROUNDING}: no algorithm can make the gradient norm, {grad_norm:.1e}, smaller; tol is {tol:g}"


def reached_optimum(reason: str | None) -> bool:
    """Whether a run has ended at the optimum: to tol, to gap_tol, or as near as rounding lets it."""
    return reason is not None and (reason in (CONVERGED, CLOSE_ENOUGH) or reason.startswith(ROUNDING))


def _reason(problem: Problem, state: State[Any], g: Vector, row: Row, goal: Goal, exact: bool) -> str | None:
    """Why the run ends here, if it does."""
    everyone = not state.silent(problem)
    if row.grad_norm <= goal.tol and exact and everyone:
        return CONVERGED
    rounded = row.grad_norm <= _rounding(problem, state) or _rounded(problem, state.theta, g, row.f)
    if rounded and exact and everyone:
        return rounding_reached(row.grad_norm, goal.tol)
    if goal.gap_tol is not None and row.gap is not None and row.gap <= goal.gap_tol and everyone:
        return CLOSE_ENOUGH
    if row.iteration >= goal.max_iterations:
        return f"max_iterations = {goal.max_iterations} reached"
    return None


FAR = 1e10  # times the cost at the start, or 1
FLOOR = 8  # times eps: what rounding makes of a mean that is 0
STALL = 100  # iterations without progress, of a gradient that has long become small
SMALL = 1e-10  # of the gradient norm at the start


def _cannot_compute(state: State[Any], where: str) -> str:
    """The reason of a run whose step from a state leads to where nothing can be computed."""
    return f"{DIVERGED}: iteration {state.t} leads {where}; {SHORTER}"


def _divergence(rows: Sequence[Row], row: Row) -> str | None:
    """Why a run ends whose cost has grown out of all proportion; the Master says it once for all agents."""
    first = (rows[0] if rows else row).f
    if row.f <= FAR * max(1.0, abs(first)):  # false where it is not a number
        return None
    grown = f"the cost is {row.f:.2g} at iteration {row.iteration} and was {first:.2g} at the start"
    return f"{DIVERGED}: {grown}; {SHORTER}"


def _stalled(rows: Sequence[Row], row: Row) -> bool:
    """Whether neither f nor ||g|| has got lower for STALL iterations, and ||g|| is small.

    It is what rounding inside the sites' sums looks like, which the Master cannot see.
    """
    if len(rows) <= STALL or row.grad_norm > SMALL * rows[0].grad_norm:
        return False
    before, since = rows[:-STALL], [*rows[-STALL:], row]
    return all(
        min(getattr(r, what) for r in since) >= min(getattr(r, what) for r in before)
        for what in ("f", "grad_norm")
    )


def _rounding(problem: Problem, state: State[Any]) -> float:
    """The rounding error of the global gradient, of which each agent's part is rounded."""
    return 32 * float(np.finfo(float).eps) * _cancelled(problem, state)


def _cancelled(problem: Problem, state: State[Any]) -> float:
    """Size of what cancels in the global gradient, sum_i p_i ||g_i||: its rounding error is eps times it."""
    norms: list[float] = []
    for first in range(0, len(problem.agents), TOGETHER):
        some = problem.agents[first : first + TOGETHER]
        g = np.concatenate([state.known[i].g for i in some]).reshape(len(some), 1, -1)
        norms += np.sqrt(g @ np.matrix_transpose(g)).ravel().tolist()
    return sum(problem.p[i] * norm for i, norm in zip(problem.agents, norms, strict=True))


def _rounded(problem: Problem, theta: Vector, g: Vector, f: float) -> bool:
    """Whether the gradient of a group, of which only the sum is known, is that of rounding inside its sums.

    g_j is a mean of l' x_j.  With m_j the root mean square of x_j it is rounded by about eps m_j times |l'|
    and the margins, |x'theta| <= sum_j |theta_j| m_j.  |l'| is of the size of 1, of sqrt(2 f) for squares.
    """
    if problem.agents != (ALL,) or ALL not in problem.sizes:
        return False
    sizes = column_sizes(problem)
    slope = np.sqrt(2 * max(f, 0.0)) if family_of(problem.loss).quadratic else 1.0
    floor = FLOOR * np.finfo(float).eps * sizes * (slope + np.abs(theta) @ sizes)
    return bool((np.abs(g) <= floor).all())


def _row(problem: Problem, state: State[Any], progress: Progress, g: Vector, f_star: float | None) -> Row:
    f, info = cost(problem, state), progress.info
    return Row(
        iteration=len(progress.rows),
        rounds=progress.rounds,
        **_counts(progress.traffic, problem),
        f=f,
        gap=None if f_star is None else f - f_star,
        grad_norm=float(np.linalg.norm(g)),
        eta=info.eta if info else None,
        renewed=info.renewed if info else 0,
        q_max=info.q_max if info else 0,
        seconds=progress.seconds,
    )


def _counts(traffic: Traffic, problem: Problem) -> dict[str, Any]:
    """Traffic as the trace shows it: bytes in all, vectors and Hessians per agent."""
    agents = len(problem.agents)
    means = {"uplink_vectors": traffic.uplink_vectors / agents, "hessians": traffic.hessians / agents}
    return {**asdict(traffic), **means}
