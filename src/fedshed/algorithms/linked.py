"""Algorithms over coded links: theta never travels, and gradients may travel as differences.

A step rounds its direction *before* it is used, so that no error has to be fed back: both ends add the
decoded one.  The Master's copy of an agent's gradient is the one in `state.known`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed.algorithms.base import Algorithm, SiteModel, State, gradient
from fedshed.algorithms.linesearch import LineSearch, Step
from fedshed.algorithms.shed import Spectrum
from fedshed.linalg.arrays import Scalars, Vector
from fedshed.linalg.rows import diagonal
from fedshed.protocol import links
from fedshed.protocol.conversation import Agent, AgentId, Ask, Flow, Problem, Replies, unlike
from fedshed.protocol.links import Along, Begin, First, Forgot, Here, Own, Started, Whole
from fedshed.protocol.messages import Message, Undefined, Update, at_trial_point
from fedshed.protocol.precision import Differences

LINK_MESSAGES: tuple[type[Message], ...] = (Begin, Here, Along, Whole, Own, First, Forgot)
LEAST_CARE = 1e-12  # of the usual step of gradients
FINER = 2**-0.25  # between two steps that are tried for a direction
MOST = 1e75  # of units: their fourth powers are numbers
TOO_LARGE = "its gradient is too large to compute with"


class Held(Struct, frozen=True, gc=False):
    """What an agent holds: the point with its last search, and its gradient as the Master knows it.

    `before` is the gradient before its last answer, which may not have arrived.
    """

    theta: Vector
    frame: bytes = b""
    direction: Vector | None = None
    etas: Scalars | None = None
    g: Vector | None = None
    before: Vector | None = None
    units: Vector | None = None  # of the gradient that is being sent; None: it is exact
    inner: Spectrum | None = None


S = TypeVar("S", bound=State[Any])


class Linked(Algorithm[S], Generic[S], frozen=True):
    """Speaks over coded links where `linked` says so; else as its messages are.

    Its state has the units as `frame`, the coded direction of this step as `move`, the factor of the
    gradients' accuracy as `care`, and as `lost` the agents that are sent everything with the next request;
    `last` is theta and g of the last step.
    """

    cache: ClassVar[Any] = Held
    hears: ClassVar[tuple[str, ...] | None] = ("gradient",)

    @property
    def linked(self) -> bool:
        """Whether requests name points that agents remember."""
        return isinstance(self.precision, Differences)

    # --- at the Master ---------------------------------------------------------------------------

    def observe(self, problem: Problem, state: S) -> Flow[S]:
        """Before everything else the units: each agent's diagonal comes with its first gradient."""
        if self.linked and not state.known:
            state = yield from self._begun(problem, state)
        state = yield from super().observe(problem, state)
        return state

    def _begun(self, problem: Problem, state: Any) -> Flow[S]:
        start = state.theta if state.theta.any() else None
        begin = Begin(start, self.precision.accuracy((), problem.n))
        replies = yield Ask((begin,), dict.fromkeys(problem.agents), frozenset(problem.agents))
        known, total = {}, problem.l2
        for i in problem.agents:
            (first,) = replies[i]
            roots = links.roots_of(first.diagonal, problem.n)
            g = links.copied(None, self._units(first.diagonal, problem.n), first.gradient)
            known[i] = SiteModel(state.theta, first.loss, g, None)
            total = total + problem.p[i] * np.square(roots)
        state = replace(state, known=known, frame=links.encode_diagonal(total))
        return self.begun(replace(state, last=(state.theta, gradient(problem, state))))

    def begun(self, state: S) -> S:
        """The state after the first answers: all that is needed, unless curvature is to come."""
        return replace(state, updated=state.t)

    def update(self, state: Any) -> Update:
        """As accurate as the last step makes it worth, in the units of the diagonal.

        After short steps more so: a gradient that was too coarse may have been the reason.
        """
        if not self.linked:
            return super().update(state)
        n = len(state.theta)
        size = float(np.linalg.norm(state.last[1] / links.units_of(state.frame, n)))
        return Update(state.t, state.theta, self.precision.accuracy((size * state.care,), n))

    def rounded(
        self, problem: Problem, state: Any, g: Vector, d: Vector, product: Callable[[Vector], Vector] | None
    ) -> tuple[S, Vector]:
        """The direction in the coarsest steps with e'He <= tau^2 |g'd|, H its product; and the state with it.

        From d = -H^-1 g follows |g'e| <= tau |g'd|: descent is kept to 1 - tau.  Exactly where H is unknown.
        """
        frame, n = state.frame, problem.n
        units, tau = links.units_of(frame, n), getattr(self.precision, "direction", 0.0)
        most = tau**2 * abs(float(g @ d))
        step = 0.0
        if product is not None:
            step = coarsest_step(units * d, lambda e: float(e / units @ product(e / units)) <= most)
        move = links.encode_direction(d, units, step)
        return replace(state, move=move), links.decode_direction(move, frame, n)

    def searched(
        self, search: LineSearch, problem: Problem, state: Any, g: Vector, direction: Vector
    ) -> Flow[Step]:
        """The line search; gradients come four times as accurately where a step of 1/16 was taken, and so on.

        At the trial point as after the full step: both exchange patterns ask for the same.
        """
        trial = replace(state, care=care_after(state.care, 1.0))
        step: Step = yield from search(self, problem, trial, g, direction)
        return replace(step, state=replace(step.state, care=care_after(state.care, step.eta)))

    def collect(self, ask: Ask, problem: Problem, state: S) -> Flow[Replies]:
        """The replies of all agents but those that their model can stand for, gradients put together."""
        if not self.linked:
            return (yield from super().collect(ask, problem, state))
        known = (i for i in ask.each if self.partial and self._modelled(state, i))
        return (yield from self._linked(ask, problem, state, frozenset(ask.each) - frozenset(known)))

    def _modelled(self, state: S, i: AgentId) -> bool:
        return i in state.known

    def _linked(self, ask: Ask, problem: Problem, state: Any, needed: frozenset[AgentId]) -> Flow[Replies]:
        """The request as it travels; an agent that forgot is sent what it lost, in one more exchange."""
        parts = links.coded_parts(ask.parts, state.move, state.frame, new=state.t == 1)
        whole = problem.agents if problem.stateless else state.lost
        asked, replies = ask.each, dict[AgentId, Sequence[Any]]()
        while asked:
            each = {i: self._own(state, i, asked[i], i in whole) for i in asked}
            answers = yield Ask(parts, each, needed & each.keys())
            forgot = tuple(i for i, said in answers.items() if any(isinstance(a, Forgot) for a in said))
            with np.errstate(over="ignore"):
                for i in answers.keys() - set(forgot):
                    pairs = zip(ask.parts, answers[i], strict=True)
                    replies[i] = [self._put_together(problem, state, i, *pair) for pair in pairs]
            asked, whole = {i: asked[i] for i in forgot}, forgot
        return {i: replies[i] for i in sorted(replies)}

    def _own(self, state: Any, i: AgentId, part: Any, whole: bool) -> Own:
        copy = state.known[i].g if isinstance(self.precision, Differences) else None
        return Own(
            links.digest_of_point(state.theta, state.frame),
            None if copy is None else links.digest(copy.tobytes()),
            Whole(state.theta, copy, state.frame) if whole else None,
            part,
        )

    def _put_together(self, problem: Problem, state: Any, i: AgentId, part: Any, answer: Any) -> Any:
        """An answer with the gradient itself in place of what was sent of it."""
        if not isinstance(part, Update) or not hasattr(answer, "gradient"):
            return answer
        reference, units = None, None
        if part.accuracy:
            reference = state.known[i].g if isinstance(self.precision, Differences) else None
            units = self._units(state.frame, problem.n)
        g = links.copied(reference, units, answer.gradient)
        large = not isfinite(np.vdot(g, g))
        if large and not at_trial_point(part):
            raise ProtocolError(f"agent {i!r} cannot be used: {TOO_LARGE}")
        return Undefined() if large else replace(answer, gradient=g)

    def confirm(self, problem: Problem, state: S) -> Flow[S]:
        """The state with exact answers of all agents at theta^t: gradients come whole."""
        if not self.linked or (not self.lossy and not state.silent(problem)):
            return (yield from super().confirm(problem, state))
        ask = self.ask(problem, state)
        exact = replace(ask, parts=tuple(replace(part, accuracy=0.0) for part in ask.parts))
        replies = yield from self._linked(exact, problem, state, frozenset(ask.each))
        return self.absorb(problem, state, replies)

    def healed(self, state: Any, replies: Replies) -> S:
        """The state in which those who answered hold what they need."""
        lost = tuple(i for i in state.lost if i not in replies)
        healed: S = replace(state, lost=lost)
        return healed

    def assume_forgotten(self, state: S) -> S:
        """Send every agent what it may have lost with the next request."""
        state = super().assume_forgotten(state)
        return replace(state, lost=tuple(sorted(state.known))) if self.linked else state

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """An agent that was sent everything cannot have forgotten; the first answer has a diagonal."""
        if isinstance(answer, Forgot):
            whole = not isinstance(own_part, Own) or own_part.whole is not None
            return "it forgot what was sent with the request" if whole else None
        if isinstance(part, Begin):
            return unlike(answer, First) or self._undecodable(answer, problem.n)
        if isinstance(answer, LINK_MESSAGES):
            return f"it answered {type(part).__name__} with an unfit {type(answer).__name__}"
        own_part = own_part.part if isinstance(own_part, Own) else own_part
        return super().refusal(problem, part, own_part, answer)

    def _undecodable(self, first: First, n: int) -> str | None:
        """Why a first answer cannot be used: no diagonal, or numbers that cannot be computed with."""
        try:
            largest = float(links.roots_of(first.diagonal, n).max(initial=0.0))
        except CodecError as error:
            return str(error)
        if largest > MOST:
            return "its diagonal is too large to compute with"
        g = links.copied(None, self._units(first.diagonal, n), first.gradient)
        return None if np.isfinite(np.vdot(g, g)) else TOO_LARGE

    # --- at an agent -----------------------------------------------------------------------------

    def located(
        self, cache: Held | None, parts: Sequence[Any], own_part: Any, n: int
    ) -> tuple[Any, Sequence[Any], Any] | None:
        """The request in full, from what the agent holds; None where it holds something else."""
        first = parts[0] if parts else None
        if isinstance(first, Begin):
            theta = np.zeros(n) if first.start is None else first.start
            return Held(theta), [Started(theta, first.accuracy), *parts[1:]], None
        if not isinstance(first, Here | Along) or not isinstance(own_part, Own):
            return cache, parts, own_part
        held = _recalled(cache or Held(np.zeros(n)), first.frame, own_part)
        if held is None:
            return None
        if isinstance(first, Here):
            return held, [Update(first.t, held.theta, first.accuracy), *parts[1:]], own_part.part
        search = links.search_from(held.theta, first, held.frame)
        held = replace(held, direction=search.direction, etas=search.etas)
        trial = links.moved(search.theta, 1.0, search.direction)
        rest = [replace(part, theta=trial) if at_trial_point(part) else part for part in parts[1:]]
        return held, [search, *rest], own_part.part

    def respond(self, agent: Agent, cache: Any, part: Any, own_part: Any) -> tuple[Any, Message]:
        """The plain answer, with what is new of its gradient; at the start the diagonal too."""
        if isinstance(part, Started):
            return self._started(agent, cache, part)
        if not isinstance(cache, Held):
            return super().respond(agent, cache, part, own_part)
        cache, answer = self.answered(agent, cache, part, own_part)
        if not part.accuracy:
            return replace(cache, units=None), answer
        units = self._units(cache.frame, agent.objective.dim)
        change = answer.gradient if cache.before is None else answer.gradient - cache.before
        answer = replace(answer, gradient=change if units is None else change / units)
        return replace(cache, units=units), answer

    def answered(self, agent: Agent, held: Held, part: Any, own_part: Any) -> tuple[Held, Any]:
        """The plain answer of an agent that knows the units."""
        inner, answer = super().respond(agent, held.inner, part, own_part)
        return replace(held, inner=inner), answer

    def _started(self, agent: Agent, held: Held, part: Started) -> tuple[Held, First]:
        point = agent.objective.at(part.theta)
        coded = links.encode_diagonal(diagonal(point.factor))
        units = self._units(coded, agent.objective.dim)
        g = point.gradient if units is None else point.gradient / units
        return replace(held, units=units), First(point.value, g, coded)

    def sent(self, cache: Any, answer: Any) -> Any:
        """The agent's gradient becomes what the Master makes of its answer."""
        if not isinstance(cache, Held) or not hasattr(answer, "gradient"):
            return cache
        reference = None if cache.units is None else cache.before
        return replace(cache, g=links.copied(reference, cache.units, answer.gradient), units=None)

    def _units(self, coded: bytes, n: int) -> Vector | None:
        """The units of gradients, where they are rounded."""
        return links.units_of(coded, n) if self.lossy else None


def care_after(care: float, eta: float) -> float:
    """The factor of the gradients' accuracy after a step: a full step regains 4, one of 1/4 leaves it."""
    return max(LEAST_CARE, min(1.0, 4 * care * eta))


def coarsest_step(x: Vector, within: Callable[[Vector], bool]) -> float:
    """The coarsest step, from twice the root mean square down, whose rounding of x is within; 0 if none."""
    with np.errstate(over="ignore"):
        step = 2 * float(np.sqrt(np.mean(np.square(x))))
    for _ in range(120):
        if not 1e-30 < step < 1e30:
            break
        sent = float(np.float32(step))
        if within(np.rint(x / sent) * sent - x):
            return sent
        step *= FINER
    return 0.0


def _recalled(held: Held, frame: bytes, own: Own) -> Held | None:
    """What the digests name: what was sent along, or the point held, or a step of its last search."""
    if own.whole is not None:
        whole = own.whole
        return replace(held, theta=whole.theta, frame=whole.frame, g=whole.gradient, before=whole.gradient)
    frame = frame or held.frame
    theta = next((p for p in _points(held) if links.digest_of_point(p, frame) == own.point), None)
    copies = [g for g in (held.g, held.before) if g is not None]
    copy = next((g for g in copies if links.digest(g.tobytes()) == own.gradient), None)
    if theta is None or (own.gradient is not None and copy is None):
        return None
    return replace(held, theta=theta, frame=frame, g=copy, before=copy)


def _points(held: Held) -> Iterator[Vector]:
    yield held.theta
    if held.direction is not None and held.etas is not None:
        for eta in held.etas.tolist():
            yield links.moved(held.theta, eta, held.direction)
