"""The engine: plays rounds over a transport, counts every byte, and keeps the trace."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from secrets import token_bytes
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed import codec
from fedshed.algorithm import Algorithm, Ask, Flow, Info, Problem, Replies, State, cost, gradient
from fedshed.arrays import Vector
from fedshed.codec import Reply
from fedshed.errors import CodecError, ProtocolError
from fedshed.messages import Costs, Search, Share, Update
from fedshed.site import codec_of
from fedshed.trace import Row
from fedshed.transports import Transport

R = TypeVar("R")


class Traffic(Struct, frozen=True):
    """What has crossed the wire so far, all agents together, line search and rejected steps included."""

    exchanges: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_vectors: float = 0.0
    hessians: int = 0


class Progress(Struct, frozen=True):
    """A run between two rounds: all that is needed to go on, and the rows that are complete."""

    state: Any
    traffic: Traffic = Traffic()
    rows: list[Row] = []  # append-only, shared by the progress of one run
    info: Info | None = None  # of the last step
    rounds: int = 0
    seconds: float = 0.0


class Outcome(Struct, frozen=True):
    """How a run ended, and what the Master knew then."""

    state: Any
    rows: tuple[Row, ...]
    gradient: Vector
    converged: bool
    reason: str
    exact: bool = True  # whether the gradient is exact


class Wire:
    """Plays flows over a transport: encodes, counts, decodes, drops what is late or repeated.

    A reply belongs to an exchange by its number and by the run's own name, so one of another run is late too.
    """

    def __init__(
        self, algorithm: Algorithm[Any], problem: Problem, transport: Transport, traffic: Traffic
    ) -> None:
        self._codec = codec_of(algorithm, problem.n)
        self._n, self._transport, self._run = problem.n, transport, token_bytes(4)
        self._heard: set[tuple[str, int]] = set()
        self.traffic = traffic

    def play(self, flow: Flow[R]) -> R:
        """Run a flow to its end: each Ask it yields is one exchange."""
        replies: Replies | None = None
        while True:
            try:
                ask = flow.send(replies)  # type: ignore[arg-type]
            except StopIteration as done:
                result: R = done.value
                return result
            replies = self._exchange(ask)

    def _exchange(self, ask: Ask) -> Replies:
        number = self.traffic.exchanges + 1
        common = self._codec.encode_common(self._run, number, ask.parts)
        payloads = {i: self._codec.encode_request(common, mine) for i, mine in sorted(ask.each.items())}
        arrived = [(i, data) for i, data in self._transport.exchange(payloads) if i in payloads]
        replies = [(i, self._decode(i, data)) for i, data in arrived]
        current = {i: r.parts for i, r in replies if (r.run, r.number) == (self._run, number)}
        for i, parts in current.items():
            _check_answers(i, ask.parts, parts)
        self._count(number, sum(map(len, payloads.values())), sum(len(data) for _, data in arrived), replies)
        return {i: current[i] for i in sorted(current)}

    def _count(self, number: int, down: int, up: int, replies: list[tuple[str, Reply]]) -> None:
        """Everything that crossed the wire; the Hessians of a reply once, however often it came."""
        hessians = 0
        for i, reply in replies:
            if reply.run == self._run and (i, reply.number) not in self._heard:
                self._heard.add((i, reply.number))
                hessians += reply.hessians
        sent = sum(codec.vectors(part, self._n) for _, reply in replies for part in reply.parts)
        self.traffic = Traffic(
            exchanges=number,
            uplink_bytes=self.traffic.uplink_bytes + up,
            downlink_bytes=self.traffic.downlink_bytes + down,
            uplink_vectors=self.traffic.uplink_vectors + sent,
            hessians=self.traffic.hessians + hessians,
        )

    def _decode(self, i: str, data: bytes) -> Reply:
        try:
            reply = self._codec.decode_reply(data)
        except CodecError as error:
            raise ProtocolError(f"agent {i!r}: {error}") from error
        if not 0 <= reply.hessians <= MOST_HESSIANS:
            raise ProtocolError(f"agent {i!r} says it computed {reply.hessians} Hessians for one request")
        return reply


MOST_HESSIANS = 1000


def _check_answers(i: str, parts: Sequence[Any], answers: Sequence[Any]) -> None:
    """Each part has an answer of its kind: costs to a search, one for each step size."""
    if len(answers) != len(parts):
        raise ProtocolError(f"agent {i!r} answered {len(answers)} of {len(parts)} parts")
    for part, answer in zip(parts, answers, strict=True):
        search, costs = isinstance(part, Search), isinstance(answer, Costs)
        fits = costs and _fits(part, answer) if search else not costs
        if not fits or isinstance(answer, Search | Update | Share):
            raise ProtocolError(
                f"agent {i!r} answered {type(part).__name__} with an unfit {type(answer).__name__}"
            )


def _fits(search: Search, costs: Costs) -> bool:
    count = len(search.etas)
    return (
        len(costs.values) == count
        and (0 if costs.slopes is None else len(costs.slopes)) == count * search.slopes
    )


def iterate(
    algorithm: Algorithm[Any],
    problem: Problem,
    transport: Transport,
    progress: Progress,
    *,
    tol: float,
    max_iterations: int,
    f_star: float | None = None,
    gap_tol: float | None = None,
) -> Generator[Progress, None, Outcome]:
    """Play rounds until the gradient norm is at most `tol` (or f - f_star at most `gap_tol`).

    Convergence is declared only where every agent answered at theta^t.
    """
    wire = Wire(algorithm, problem, transport, progress.traffic)
    clock = time.perf_counter() - progress.seconds
    while True:
        state = wire.play(algorithm.observe(problem, progress.state))
        g, exact = gradient(problem, state), not algorithm.lossy
        if np.linalg.norm(g) <= tol and not exact and not state.silent(problem):
            state, g, exact = _confirmed(wire, algorithm, problem, state)
        row = _row(problem, state, progress, g, f_star)
        reason = _reason(problem, state, row, tol, max_iterations, gap_tol, exact)
        if reason is None and exact and _stalled(progress.rows, row):
            reason = ROUNDING
        if reason is None:
            after, info = wire.play(algorithm.step(problem, state))
            if info.stopped and not exact:  # perhaps only the rounded gradient is to blame
                state, g, exact = _confirmed(wire, algorithm, problem, state)
                row = _row(problem, state, progress, g, f_star)
                reason = _reason(problem, state, row, tol, max_iterations, gap_tol, exact)
                after, info = (after, info) if reason else wire.play(algorithm.step(problem, state))
            stuck = np.array_equal(after.theta, state.theta) and not state.silent(problem)
            reason = reason or info.stopped or (ROUNDING if stuck else None)
        seconds = time.perf_counter() - clock
        if reason is not None:  # what was asked for this decision belongs to the last row
            row = replace(row, seconds=seconds, **_counts(wire.traffic, problem))
            return Outcome(
                state, (*progress.rows, row), g, reason in (CONVERGED, CLOSE_ENOUGH), reason, exact
            )
        progress.rows.append(row)
        rounds = progress.rounds + info.rounds
        progress = Progress(after, wire.traffic, progress.rows, info, rounds, seconds)
        yield progress


def _confirmed(
    wire: Wire, algorithm: Algorithm[Any], problem: Problem, state: State[Any]
) -> tuple[Any, Vector, bool]:
    """The state with exact gradients, where all agents sent them."""
    exact = wire.play(algorithm.confirm(problem, state))
    state = state if exact is None else exact
    return state, gradient(problem, state), exact is not None


CONVERGED = "the gradient norm is at most tol"
ROUNDING = "the gradient is at rounding level, above tol: no algorithm can do better"
CLOSE_ENOUGH = "f - f_star is at most gap_tol"


def _reason(
    problem: Problem, state: State[Any], row: Row, tol: float, max_iterations: int, gap_tol: float | None,
    exact: bool,
) -> str | None:  # fmt: skip
    """Why the run ends here, if it does."""
    if row.grad_norm <= tol and exact and not state.silent(problem):
        return CONVERGED
    rounding = 32 * np.finfo(float).eps * _cancelled(problem, state)
    if row.grad_norm <= rounding and exact and not state.silent(problem):
        return ROUNDING
    if gap_tol is not None and row.gap is not None and row.gap <= gap_tol and not state.silent(problem):
        return CLOSE_ENOUGH
    if row.iteration >= max_iterations:
        return f"max_iterations = {max_iterations} reached"
    return None


STALL = 20  # iterations without progress, of a gradient that has long become small


def _stalled(rows: Sequence[Row], row: Row) -> bool:
    """Whether neither f nor ||g|| has got lower for STALL iterations, and ||g|| is 1e-10 of what it was.

    It is what rounding inside the sites' sums looks like, which the Master cannot see.
    """
    if len(rows) <= STALL or row.grad_norm > 1e-10 * rows[0].grad_norm:
        return False
    before, since = rows[:-STALL], [*rows[-STALL:], row]
    return all(
        min(getattr(r, what) for r in since) >= min(getattr(r, what) for r in before)
        for what in ("f", "grad_norm")
    )


def _cancelled(problem: Problem, state: State[Any]) -> float:
    """Size of what cancels in the global gradient, sum_i p_i ||g_i||: its rounding error is eps times it."""
    return sum(problem.p[i] * float(np.linalg.norm(state.known[i].g)) for i in problem.agents)


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
