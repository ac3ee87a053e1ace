"""A conversation between the Master and the sites: who is asked what, and how a site answers.

The Master's half is a generator that yields an `Ask` and receives the `Replies`; a site's half is `respond`,
a function of its cache and the request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ProtocolError
from fedshed.linalg.arrays import Vector
from fedshed.objectives import Objective
from fedshed.protocol.messages import Message
from fedshed.protocol.precision import Exact, Precision

AgentId: TypeAlias = str


class Size(Struct, frozen=True):
    """What a site said of its rows before the fit, which its later answers must agree with."""

    rows: int
    squares: Vector | None = None  # mean square of each design column, without the intercept; NaN: unknown


class Problem(Struct, frozen=True, dict=True):
    """min sum_i p_i f^(i)(theta) + theta' diag(l2) theta / 2, with p_i = N_i / N (Section 2).

    With `l1` the cost has l1'|theta| too; gradients are then those of the smooth part.
    """

    l2: Vector
    weights: dict[AgentId, float]
    loss: str
    columns: tuple[str, ...] = ()
    stateless: bool = False  # agents forget everything between two exchanges
    sizes: dict[AgentId, Size] = {}  # as far as the agents were asked
    l1: Vector | None = None

    @property
    def n(self) -> int:
        """Dimension of theta."""
        return len(self.l2)

    @cached_property
    def agents(self) -> tuple[AgentId, ...]:
        """Names of the agents, sorted: every sum over agents runs in this order."""
        return tuple(sorted(self.weights))

    @cached_property
    def p(self) -> dict[AgentId, float]:
        """Share p_i of each agent in the total weight."""
        total = sum(self.weights[i] for i in self.agents)
        return {i: self.weights[i] / total for i in self.agents}

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What the Master may keep to save work: it follows from the state, and no result depends on it."""
        return {}

    def ridge(self, theta: Vector) -> float:
        """The penalty, which only the Master adds (docs/notation.md, "ridge")."""
        return float(0.5 * theta @ (self.l2 * theta))

    def lasso(self, theta: Vector) -> float:
        """l1'|theta|, which only the Master adds."""
        return 0.0 if self.l1 is None else float(self.l1 @ np.abs(theta))

    def penalty(self, theta: Vector) -> float:
        """All that the Master adds to the mean cost."""
        return self.ridge(theta) if self.l1 is None else self.ridge(theta) + self.lasso(theta)

    @property
    def penalised(self) -> Vector:
        """What of each coefficient's penalty is not 0: l2, with l1 where there is one."""
        return self.l2 if self.l1 is None else self.l2 + self.l1


class Ask(Struct, frozen=True):
    """A request: parts common to all agents, and each agent's own part (its keys say who is asked).

    Those that are `needed` are asked until they answer; the others may stay silent.
    """

    parts: tuple[Message, ...]
    each: Mapping[AgentId, Message | None]
    needed: frozenset[AgentId] = frozenset()

    def to(self, agents: Iterable[AgentId]) -> Ask:
        """The same request, to these agents only."""
        return replace(self, each={i: self.each[i] for i in agents})


R = TypeVar("R")
M = TypeVar("M", bound=Message)
Replies: TypeAlias = Mapping[AgentId, Sequence[M]]  # the silent are absent; one answer for each part
Flow: TypeAlias = Generator[Ask, Replies[Any], R]  # whoever runs it sends the answers to the last Ask


class Lead(Protocol):
    """The Master, as a site knows it that replays what the Master does (fedshed.protected.follow)."""

    def adopt(self, parts: Sequence[Message]) -> None:
        """Overwrite the arrays of the site's own request with the bits of the Master's."""
        ...

    def agrees(self, theta: Vector) -> bool:
        """Whether the Master's next request is about this very point."""
        ...


LEAD: ContextVar[Lead | None] = ContextVar("lead", default=None)  # None at the Master itself


class Agent(Struct, frozen=True):
    """An agent as its algorithm sees it: a name and a local cost."""

    name: AgentId
    objective: Objective


# kinds of parts, each with the kind of own part that comes with it
Requests: TypeAlias = tuple[tuple[type, type | None], ...]


class Conversation(Struct, frozen=True, tag=True):
    """Typed requests and replies between a Master and sites: an algorithm, the preparation, the inspection.

    It is immutable configuration, the same at both ends.
    """

    precision: Precision = Exact()  # how arrays of an agent are encoded
    messages: ClassVar[tuple[type[Message], ...]]  # its own, besides those of the line search
    cache: ClassVar[Any] = None  # type of what a site remembers, which is only a cache
    updates_cache_when_sent: ClassVar[bool] = False  # `sent` does something
    requests: ClassVar[Requests | None] = None  # what a site answers; None: `respond` looks at it itself

    @property
    def lossy(self) -> bool:
        """Whether gradients may come rounded."""
        return self.precision.lossy

    def located(
        self, cache: Any, parts: Sequence[Any], own_part: Any, n: int
    ) -> tuple[Any, Sequence[Any], Any] | None:
        """A site's cache, and a request as it would be in full, with every theta.

        None where the cache has lost what the request goes on from.
        """
        return cache, parts, own_part

    def respond(self, agent: Agent, cache: Any, part: Any, own_part: Any) -> tuple[Any, Message]:
        """A site's answer to one part of a request, and its new cache."""
        raise NotImplementedError

    def answer_kind(self, part: Any) -> type[Message]:
        """The kind of message that answers a part: a site that cannot answer it adds zeros of this kind."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it answers {type(part).__name__}")

    def sent(self, cache: Any, answer: Any) -> Any:
        """A site's cache after it has sent what the Master sees as `answer`."""
        return cache

    def refusal(self, problem: Problem, part: Any, own_part: Any, answer: Any) -> str | None:
        """Why this answer to a part cannot be used, if it cannot: only what shapes and types do not say."""
        return None

    def anchor(self, cache: Any) -> Vector | None:
        """The point of the Hessian in a cache, if there is one: it was counted when it was computed."""
        return None

    def kernel_used(self, cache: Any) -> str | None:
        """The kernel that computed the eigenpairs in a cache, if there are any."""
        return None


def everyone(parts: Sequence[Message], problem: Problem) -> Flow[Replies[Any]]:
    """The same parts to every site, each of which must answer."""
    replies = yield Ask(tuple(parts), dict.fromkeys(problem.agents), frozenset(problem.agents))
    return replies


def answers_of(replies: Replies[Any], kind: type[M], part: type[Message]) -> dict[AgentId, M]:
    """The one answer of each site, by site; another kind than was asked for is an error that names it."""
    for site, (answer,) in replies.items():
        if not isinstance(answer, kind):
            raise ProtocolError(f"site {site!r} answered {part.__name__} with {type(answer).__name__}")
    return {site: answer for site, (answer,) in replies.items()}


def require_plausible(
    answers: dict[AgentId, M], why_not: Callable[[AgentId, M], str | None]
) -> dict[AgentId, M]:
    """The answers, each of which is possible; one that is not is an error that names its site."""
    for site, answer in answers.items():
        if why := why_not(site, answer):
            raise ProtocolError(f"site {site!r} {why}; run the same version of fedshed there")
    return answers


def wrong_type_reason(answer: Message, *expected: type[Message]) -> str | None:
    """Why an answer of another kind than expected cannot be used; None if it is of one of these kinds."""
    if isinstance(answer, expected):
        return None
    names = " or ".join(kind.__name__ for kind in expected)
    return f"it sent a {type(answer).__name__}, not a {names}"
