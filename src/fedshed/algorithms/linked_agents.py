"""The agents' half of algorithms over coded links: what they hold, and how they answer, alone or together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed.algorithms.base import Algorithm, State
from fedshed.algorithms.shed import Spectrum
from fedshed.linalg.arrays import Scalars, Vector, in_rows
from fedshed.linalg.rows import diagonal
from fedshed.objectives.plural import at_each
from fedshed.protocol import links
from fedshed.protocol.columns import Columns, Groups, all_alike
from fedshed.protocol.conversation import Agent
from fedshed.protocol.links import Along, Begin, First, Here, Own, Started
from fedshed.protocol.messages import Message, Update, at_trial_point


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


class LinkedAgents(Algorithm[S], Generic[S], frozen=True):
    """Agents that know theta by the directions sent to them, and their gradient as the Master knows it."""

    cache: ClassVar[Any] = Held
    plurals: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Algorithm.plurals, "sent_together": ("sent",), "answered_together": ("answered",),
        "_started_together": ("_started",),
    }  # fmt: skip

    def located(
        self, cache: Held | None, parts: Sequence[Any], own_part: Any, n: int
    ) -> tuple[Any, Sequence[Any], Any] | None:
        """The request in full, from what the agent holds; None where it holds something else."""
        first = parts[0] if parts else None
        if isinstance(first, Begin):
            return *_begun(first, parts, n), None
        if not isinstance(first, Here | Along) or not isinstance(own_part, Own):
            return cache, parts, own_part
        held = _recalled(cache or Held(np.zeros(n)), first.frame, own_part)
        if held is None:
            return None
        if isinstance(first, Here):
            return held, [Update(first.t, held.theta, first.accuracy), *parts[1:]], own_part.part
        search, rest = _searched(held.theta, held.frame, parts)
        return replace(held, direction=search.direction, etas=search.etas), [search, *rest], own_part.part

    def located_together(
        self, caches: Sequence[Any], parts: Sequence[Any], own_parts: Sequence[Any], n: int
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]] | None:
        """The same of agents at one point."""
        first = parts[0] if parts else None
        if isinstance(first, Begin):
            held, parts = _begun(first, parts, n)
            return [held] * len(caches), parts, [None] * len(caches)
        if not isinstance(first, Here | Along):
            return caches, parts, own_parts
        helds = _recalled_together(caches, first.frame, own_parts)
        if helds is None:
            return None
        shares, theta = [own.part for own in own_parts], helds[0].theta
        if isinstance(first, Here):
            return helds, [Update(first.t, theta, first.accuracy), *parts[1:]], shares
        search, rest = _searched(theta, helds[0].frame, parts)
        helds = [replace(held, direction=search.direction, etas=search.etas) for held in helds]
        return helds, [search, *rest], shares

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

    def respond_together(
        self, agents: Sequence[Agent], caches: Sequence[Any], part: Any, own_parts: Sequence[Any]
    ) -> tuple[Sequence[Any], Groups] | None:
        """The same of many agents."""
        if isinstance(part, Started):
            return self._started_together(agents, caches, part)
        if not isinstance(caches[0], Held):
            return super().respond_together(agents, caches, part, own_parts)
        found = self.answered_together(agents, caches, part, own_parts)
        if found is None:
            return None
        helds, groups = found
        units = self._units(helds[0].frame, agents[0].objective.dim) if part.accuracy else None
        if part.accuracy:
            groups = [(rows, _changes(answers, [helds[k] for k in rows], units)) for rows, answers in groups]
        return [replace(held, units=units) for held in helds], groups

    def answered(self, agent: Agent, held: Held, part: Any, own_part: Any) -> tuple[Held, Any]:
        """The plain answer of an agent that knows the units."""
        inner, answer = super().respond(agent, held.inner, part, own_part)
        return replace(held, inner=inner), answer

    def answered_together(
        self, agents: Sequence[Agent], helds: Sequence[Held], part: Any, own_parts: Sequence[Any]
    ) -> tuple[Sequence[Held], Groups] | None:
        """The same of many agents."""
        found = super().respond_together(agents, [held.inner for held in helds], part, own_parts)
        if found is None:
            return None
        inners, groups = found
        return [replace(held, inner=inner) for held, inner in zip(helds, inners, strict=True)], groups

    def _started(self, agent: Agent, held: Held, part: Started) -> tuple[Held, First]:
        point = agent.objective.at(part.theta)
        coded = links.encode_diagonal(diagonal(point.factor))
        units = self._units(coded, agent.objective.dim)
        g = point.gradient if units is None else point.gradient / units
        return replace(held, units=units), First(point.value, g, coded)

    def _started_together(
        self, agents: Sequence[Agent], helds: Sequence[Held], part: Started
    ) -> tuple[Sequence[Held], Groups]:
        points, n = at_each(agents, part.theta), agents[0].objective.dim
        coded = [links.encode_diagonal(values) for values in points.diagonals]
        units = [self._units(data, n) for data in coded]
        g = points.gradients if units[0] is None else points.gradients / in_rows(units)
        helds = [replace(held, units=own) for held, own in zip(helds, units, strict=True)]
        fields = {"loss": points.values, "gradient": g, "diagonal": coded}
        return helds, all_alike(Columns(First, fields, len(points)))

    def sent(self, cache: Any, answer: Any) -> Any:
        """The agent's gradient becomes what the Master makes of its answer."""
        if not isinstance(cache, Held) or not hasattr(answer, "gradient"):
            return cache
        reference = None if cache.units is None else cache.before
        return replace(cache, g=links.copied(reference, cache.units, answer.gradient), units=None)

    def sent_together(self, caches: Sequence[Any], answers: Columns) -> Sequence[Any]:
        """The same of many agents."""
        held, gradients = caches[0], answers.fields.get("gradient")
        if len(set(map(_reference, caches))) > 1:  # a Master may have asked each of them in another way
            return super().sent_together(caches, answers)
        if not isinstance(held, Held) or gradients is None:
            return caches
        alike = all(one.units is held.units for one in caches)
        units = held.units if alike else in_rows([one.units for one in caches])
        known = held.units is not None and held.before is not None
        reference = in_rows([one.before for one in caches]) if known else None
        copies = links.copied(reference, units, gradients)
        return [replace(one, g=copy, units=None) for one, copy in zip(caches, copies, strict=True)]

    def _units(self, coded: bytes, n: int) -> Vector | None:
        """The units of gradients, where they are rounded."""
        return links.units_of(coded, n) if self.lossy else None


def _begun(begin: Begin, parts: Sequence[Any], n: int) -> tuple[Held, list[Any]]:
    """What an agent holds at the start, and the first request in full."""
    theta = np.zeros(n) if begin.start is None else begin.start
    return Held(theta), [Started(theta, begin.accuracy), *parts[1:]]


def _changes(answers: Columns, helds: Sequence[Held], units: Vector | None) -> Columns:
    """Answers with what is new of the gradients of agents that all hold one, or none of which does."""
    gradients = answers.fields["gradient"]
    change = gradients if helds[0].before is None else gradients - in_rows([held.before for held in helds])
    return answers.having(gradient=change if units is None else change / units)


def _reference(cache: Any) -> tuple[bool, bool] | None:
    """Whether an agent has a gradient that its answer refers to, and units; None where it holds no point."""
    return (cache.before is None, cache.units is None) if isinstance(cache, Held) else None


def _searched(theta: Vector, frame: bytes, parts: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A search in full and the parts that follow it; of agents that read one request at one point, once."""
    key, (known, kept) = (theta, frame, parts), _LAST[0]
    found: tuple[Any, list[Any]] = kept
    if not all(map(is_, known, key)):
        search = links.search_from(theta, parts[0], frame)
        trial = links.moved(theta, 1.0, search.direction)
        rest = [replace(part, theta=trial) if at_trial_point(part) else part for part in parts[1:]]
        found = search, rest
        _LAST[0] = key, found
    return found


_LAST: list[tuple[tuple[Any, ...], Any]] = [((None, None, None), None)]  # found by identity only


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


def _recalled_together(caches: Sequence[Any], frame: bytes, owns: Sequence[Any]) -> list[Held] | None:
    """`_recalled` of agents at one point, each of which holds the gradient that is named; None otherwise."""
    if not _at_one_point(caches, owns) or (one := _recalled(caches[0], frame, owns[0])) is None:
        return None
    copies = [None if own.gradient is None else held.g for held, own in zip(caches, owns, strict=True)]
    for copy, own in zip(copies, owns, strict=True):
        if (None if copy is None else links.digest(copy.tobytes())) != own.gradient:
            return None
    theta, frame = one.theta, one.frame
    return [
        replace(held, theta=theta, frame=frame, g=copy, before=copy)
        for held, copy in zip(caches, copies, strict=True)
    ]


def _at_one_point(caches: Sequence[Any], owns: Sequence[Any]) -> bool:
    """Whether all agents hold one point and one search, and are asked about the same point."""
    held, own = caches[0], owns[0]
    if not (isinstance(held, Held) and isinstance(own, Own)):
        return False
    same = (held.theta, held.direction, held.etas), (own.point, own.gradient is None, None)
    return all(
        isinstance(one, Held) and isinstance(two, Own) and one.frame == held.frame
        and all(map(is_, (one.theta, one.direction, one.etas), same[0]))
        and (two.point, two.gradient is None, two.whole) == same[1]
        for one, two in zip(caches, owns, strict=True)
    )  # fmt: skip


def _points(held: Held) -> Iterator[Vector]:
    yield held.theta
    if held.direction is not None and held.etas is not None:
        for eta in held.etas.tolist():
            yield links.moved(held.theta, eta, held.direction)
