"""The engine: plays rounds over a transport, counts every byte, and keeps the trace."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fedshed import codec
from fedshed.algorithm import Algorithm, Ask, Flow, Info, Problem, Replies, State, cost, gradient
from fedshed.arrays import Vector
from fedshed.codec import Reply
from fedshed.errors import CodecError, ProtocolError
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
    rows: tuple[Row, ...] = ()
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


class Wire:
    """Plays flows over a transport: encodes, counts, decodes, drops what is late or repeated."""

    def __init__(
        self, algorithm: Algorithm[Any], problem: Problem, transport: Transport, traffic: Traffic
    ) -> None:
        self._codec = codec_of(algorithm, problem.n)
        self._n, self._transport = problem.n, transport
        self.traffic = traffic

    def play(self, flow: Flow[R]) -> R:
        """Run a flow to its end: each Ask it yields is one exchange."""
        try:
            ask = next(flow)
            while True:
                ask = flow.send(self._exchange(ask))
        except StopIteration as done:
            result: R = done.value
            return result

    def _exchange(self, ask: Ask) -> Replies:
        number = self.traffic.exchanges + 1
        common = self._codec.encode_common(number, ask.parts)
        payloads = {i: self._codec.encode_request(common, mine) for i, mine in sorted(ask.each.items())}
        arrived = [(i, data, self._decode(i, data)) for i, data in self._transport.exchange(payloads)]
        current = {i: reply for i, _, reply in arrived if reply.number == number and i in payloads}
        for i, reply in current.items():
            if len(reply.parts) != len(ask.parts):
                raise ProtocolError(f"agent {i!r} answered {len(reply.parts)} of {len(ask.parts)} parts")
        self.traffic = Traffic(
            exchanges=number,
            uplink_bytes=self.traffic.uplink_bytes + sum(len(data) for _, data, _ in arrived),
            downlink_bytes=self.traffic.downlink_bytes + sum(map(len, payloads.values())),
            uplink_vectors=self.traffic.uplink_vectors
            + sum(codec.vectors(part, self._n) for _, _, reply in arrived for part in reply.parts),
            hessians=self.traffic.hessians + sum(reply.hessians for reply in current.values()),
        )
        return {i: current[i].parts for i in sorted(current)}

    def _decode(self, i: str, data: bytes) -> Reply:
        try:
            return self._codec.decode_reply(data)
        except CodecError as error:
            raise ProtocolError(f"agent {i!r}: {error}") from error


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
        g = gradient(problem, state)
        row = _row(problem, state, progress, g, f_star)
        reason = _reason(problem, state, row, tol, max_iterations, gap_tol)
        if reason is None:
            after, info = wire.play(algorithm.step(problem, state))
            reason = info.stopped
        seconds = time.perf_counter() - clock
        if reason is not None:  # what was asked for this decision belongs to the last row
            row = replace(row, seconds=seconds, **_counts(wire.traffic, problem))
            return Outcome(state, (*progress.rows, row), g, reason in (CONVERGED, CLOSE_ENOUGH), reason)
        rounds = progress.rounds + info.rounds
        progress = Progress(after, wire.traffic, (*progress.rows, row), info, rounds, seconds)
        yield progress


CONVERGED = "the gradient norm is at most tol"
CLOSE_ENOUGH = "f - f_star is at most gap_tol"


def _reason(
    problem: Problem, state: State[Any], row: Row, tol: float, max_iterations: int, gap_tol: float | None
) -> str | None:
    """Why the run ends here, if it does."""
    if row.grad_norm <= tol and not state.silent(problem):
        return CONVERGED
    if gap_tol is not None and row.gap is not None and row.gap <= gap_tol and not state.silent(problem):
        return CLOSE_ENOUGH
    if row.iteration >= max_iterations:
        return f"max_iterations = {max_iterations} reached"
    return None


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
