"""Algorithms with coded links: theta is never sent, and gradients may be sent as differences.

A direction is rounded *before* it is used, so no error has to be corrected later: both ends add the decoded
direction.  The Master's copy of an agent's gradient is the one in `state.known`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import CodecError, ProtocolError
from fedshed.algorithms.base import SiteModel, State, gradient
from fedshed.algorithms.linesearch import LineSearch, Step
from fedshed.algorithms.linked_agents import LinkedAgents
from fedshed.linalg.arrays import Vector
from fedshed.protocol import links
from fedshed.protocol.conversation import AgentId, Ask, Flow, Problem, Replies, wrong_type_reason
from fedshed.protocol.links import (
    AgentLink,
    AlongDirection,
    AtCurrentPoint,
    FirstExchange,
    FirstReply,
    Forgot,
    FullState,
)
from fedshed.protocol.messages import Message, Undefined, Update, at_trial_point
from fedshed.protocol.precision import Differences

LINK_MESSAGES: tuple[type[Message], ...] = (
    FirstExchange,
    AtCurrentPoint,
    AlongDirection,
    FullState,
    AgentLink,
    FirstReply,
    Forgot,
)
LINK_FIELDS = {"accuracy_factor": "care", "agents_without_cache": "lost"}  # names in checkpoints of 0.2
LEAST_ACCURACY_FACTOR = 1e-12  # of the usual step of gradients
FINER = 2**-0.25  # between two steps that are tried for a direction
MOST = 1e75  # of units: their fourth powers are numbers
TOO_LARGE = "its gradient is too large to compute with"


S = TypeVar("S", bound=State[Any])


class Linked(LinkedAgents[S], Generic[S], frozen=True):
    """Speaks over coded links where `linked` says so; else as its messages are.

    Its state has the units as `frame`, the coded direction of this step as `move`, the factor of the
    gradients' accuracy as `accuracy_factor`, and as `agents_without_cache` those that are sent everything
    with the next request; `last` is theta and g of the last step.
    """

    @property
    def linked(self) -> bool:
        """Whether requests name points that agents remember."""
        return isinstance(self.precision, Differences)

    def observe(self, problem: Problem, state: S) -> Flow[S]:
        """Before everything else the units: each agent's diagonal comes with its first gradient."""
        if self.linked and not state.known:
            state = yield from self._exchange_first(problem, state)
        state = yield from super().observe(problem, state)
        return state

    def _exchange_first(self, problem: Problem, state: Any) -> Flow[S]:
        start = state.theta if state.theta.any() else None
        begin = FirstExchange(start, self.precision.accuracy((), problem.n))
        replies = yield Ask((begin,), dict.fromkeys(problem.agents), frozenset(problem.agents))
        known, total = {}, problem.l2
        for i in problem.agents:
            (first,) = replies[i]
            roots = links.roots_of(first.diagonal, problem.n)
            g = links.copied(None, self._units(first.diagonal, problem.n), first.gradient)
            known[i] = SiteModel(state.theta, first.loss, g, None)
            total = total + problem.p[i] * np.square(roots)
        state = replace(state, known=known, frame=links.encode_diagonal(total))
        return self.state_after_first_replies(replace(state, last=(state.theta, gradient(problem, state))))

    def state_after_first_replies(self, state: S) -> S:
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
        return Update(state.t, state.theta, self.precision.accuracy((size * state.accuracy_factor,), n))

    def round_direction(
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

    def search_step_size(
        self, search: LineSearch, problem: Problem, state: Any, g: Vector, direction: Vector
    ) -> Flow[Step]:
        """The line search; gradients come four times as accurately where a step of 1/16 was taken, and so on.

        At the trial point as after the full step: both exchange patterns ask for the same.
        """
        trial = replace(state, accuracy_factor=next_accuracy_factor(state.accuracy_factor, 1.0))
        step: Step = yield from search(self, problem, trial, g, direction)
        return replace(
            step,
            state=replace(step.state, accuracy_factor=next_accuracy_factor(state.accuracy_factor, step.eta)),
        )

    def collect(self, ask: Ask, problem: Problem, state: S) -> Flow[Replies[Any]]:
        """The replies of all agents but those that their model can stand for, gradients put together."""
        if not self.linked:
            return (yield from super().collect(ask, problem, state))
        known = (i for i in ask.each if self.partial and self._has_model(state, i))
        return (
            yield from self._collect_over_links(ask, problem, state, frozenset(ask.each) - frozenset(known))
        )

    def _has_model(self, state: S, i: AgentId) -> bool:
        return i in state.known

    def _collect_over_links(
        self, ask: Ask, problem: Problem, state: Any, needed: frozenset[AgentId]
    ) -> Flow[Replies[Any]]:
        """The request as it travels; an agent that forgot is sent what it lost, in one more exchange."""
        parts = links.coded_parts(ask.parts, state.move, state.frame, new=state.t == 1)
        whole = problem.agents if problem.stateless else state.agents_without_cache
        asked, replies = ask.each, dict[AgentId, Sequence[Any]]()
        while asked:
            point = links.digest_of_point(state.theta, state.frame)
            each = {i: self._agent_link(state, i, point, asked[i], i in whole) for i in asked}
            answers = yield Ask(parts, each, needed & each.keys())
            forgot = tuple(i for i, said in answers.items() if any(isinstance(a, Forgot) for a in said))
            with np.errstate(over="ignore"):
                for i in answers.keys() - set(forgot):
                    pairs = zip(ask.parts, answers[i], strict=True)
                    replies[i] = [self._restore_gradient(problem, state, i, *pair) for pair in pairs]
            asked, whole = {i: asked[i] for i in forgot}, forgot
        return {i: replies[i] for i in sorted(replies)}

    def _agent_link(self, state: Any, i: AgentId, point: int, part: Any, whole: bool) -> AgentLink:
        copy = state.known[i].g if isinstance(self.precision, Differences) else None
        return AgentLink(
            point,
            None if copy is None else links.digest(copy.tobytes()),
            FullState(state.theta, copy, state.frame) if whole else None,
            part,
        )

    def _restore_gradient(self, problem: Problem, state: Any, i: AgentId, part: Any, answer: Any) -> Any:
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
            confirmed: S = yield from super().confirm(problem, state)
            return confirmed
        ask = self.ask(problem, state)
        exact = replace(ask, parts=tuple(replace(part, accuracy=0.0) for part in ask.parts))
        replies = yield from self._collect_over_links(exact, problem, state, frozenset(ask.each))
        return self.absorb(problem, state, replies)

    def clear_answered(self, state: Any, replies: Replies[Any]) -> S:
        """The state in which the agents that answered hold what they need."""
        lost = tuple(i for i in state.agents_without_cache if i not in replies)
        healed: S = replace(state, agents_without_cache=lost)
        return healed

    def assume_forgotten(self, state: S) -> S:
        """Send every agent what it may have lost with the next request."""
        state = super().assume_forgotten(state)
        return replace(state, agents_without_cache=tuple(sorted(state.known))) if self.linked else state

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """An agent that was sent everything cannot have forgotten; the first answer has a diagonal."""
        if not self.linked:
            return super().refusal(problem, part, own_part, answer)
        if isinstance(answer, Forgot):
            whole = not isinstance(own_part, AgentLink) or own_part.whole is not None
            return "it has lost what was sent with the request" if whole else None
        if isinstance(part, FirstExchange):
            return wrong_type_reason(answer, FirstReply) or self._first_reply_refusal(answer, problem.n)
        if isinstance(answer, LINK_MESSAGES):
            return f"it answered {type(part).__name__} with an unfit {type(answer).__name__}"
        own_part = own_part.part if isinstance(own_part, AgentLink) else own_part
        return super().refusal(problem, part, own_part, answer)

    def _first_reply_refusal(self, first: FirstReply, n: int) -> str | None:
        """Why a first answer cannot be used: no diagonal, or numbers that cannot be computed with."""
        try:
            largest = float(links.roots_of(first.diagonal, n).max(initial=0.0))
        except CodecError as error:
            return str(error)
        if largest > MOST:
            return "its diagonal is too large to compute with"
        g = links.copied(None, self._units(first.diagonal, n), first.gradient)
        return None if np.isfinite(np.vdot(g, g)) else TOO_LARGE


def next_accuracy_factor(accuracy_factor: float, eta: float) -> float:
    """The factor of the gradients' accuracy after a step: a full step regains 4, one of 1/4 leaves it."""
    return max(LEAST_ACCURACY_FACTOR, min(1.0, 4 * accuracy_factor * eta))


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
