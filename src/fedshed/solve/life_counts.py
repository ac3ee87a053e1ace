"""The exchange for survival curves: who is at risk, has the event or is censored, by group and cell."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct

from fedshed._utils.errors import DisclosureError, ProtocolError
from fedshed.linalg.arrays import Scalars
from fedshed.objectives.life_table import (
    KINDS,
    WITH_THE_NEXT,
    LifeTable,
    exact_grid,
    round_times,
    small_count,
    spread,
)
from fedshed.protocol.conversation import Agent, AgentId, Conversation, Flow, Problem, answers_of, everyone
from fedshed.protocol.limits import Count
from fedshed.protocol.messages import Message
from fedshed.protocol.sums import TOTAL, Rule

MOST_TIMES = 1 << 20  # of a grid
MOST_GROUPS = 1000
MOST_CELLS = 1 << 22  # of all groups
LARGEST = float(2**53)  # a count beyond it is not a whole number of float64
ROUNDING = 1e-6  # of a count that is spread over cells


class AskTimes(Message, frozen=True):
    """Asks for the distinct times of events, and the largest time; a site behind a policy does not tell."""


class EventTimes(Message, frozen=True):
    """The distinct event times of a site in increasing order, and its largest time."""

    times: Scalars
    largest: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _increasing(self.times)
        if self.largest < self.times.max(initial=0.0) or self.times.min(initial=0.0) < 0:
            raise ValueError("times of events lie between 0 and the largest time")


class AskCounts(Message, frozen=True):
    """Asks for the life table on a grid of times: counts are 0 or at least `least`, or told together.

    The groups are the levels of a category: these columns of the design indicate all of them but one.
    """

    times: Scalars
    columns: Annotated[tuple[Count, ...], Meta(max_length=MOST_GROUPS)] = ()
    least: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.times):
            raise ValueError("a grid has at least one time")
        if len(self.times) * (len(self.columns) + 1) > MOST_CELLS:
            raise ValueError(f"a life table has at most {MOST_CELLS} cells; give fewer times or groups")
        _increasing(self.times)


class LifeCounts(Message, frozen=True):
    """The life table of a site, the groups one after the other; -1: told with the count of the next cell."""

    events: Scalars
    censored: Scalars
    entered: Scalars
    beyond: Scalars

    adds: ClassVar[Mapping[str, Rule] | None] = {
        "events": TOTAL, "censored": TOTAL, "entered": TOTAL, "beyond": TOTAL
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            values = getattr(self, name)
            if ((values < WITH_THE_NEXT) | (values > LARGEST) | (values != np.floor(values))).any():
                raise ValueError(f"{name} are no whole numbers")
        if (self.beyond < 0).any():
            raise ValueError("a count is at least 0")


class SiteTables(Struct, frozen=True):
    """What the sites have counted."""

    tables: dict[AgentId, LifeTable]

    @property
    def total(self) -> LifeTable:
        """Over all sites."""
        return reduce(LifeTable.__add__, (self.tables[i] for i in sorted(self.tables)))


class SurvivalCounts(Conversation, frozen=True, tag=True):
    """One exchange on a given grid; without one, an exchange before it finds the times of all events."""

    grid: tuple[float, ...] | None = None  # at a site that approved a study: the only times it counts at
    groups: tuple[int, ...] | None = None  # and the only columns by which it tells groups apart
    messages: ClassVar[tuple[type[Message], ...]] = (AskTimes, EventTimes, AskCounts, LifeCounts)
    requests = ((AskTimes, None), (AskCounts, None))

    def flow(
        self,
        problem: Problem,
        times: Scalars | None,
        columns: tuple[int, ...] = (),
        last: float | None = None,
        least: int = 0,
    ) -> Flow[SiteTables]:
        """The tables of all sites; without times, on the exact grid of all event times until the last."""
        if times is None:
            told = yield from everyone([AskTimes()], problem)
            found = answers_of(told, EventTimes, AskTimes)
            last = max(each.largest for each in found.values()) if last is None else last
            moments = np.concatenate([each.times for each in found.values()])
            known = np.concatenate([moments[moments <= last], round_times(last)[1:], [last]])
            times = exact_grid(known)
        replies = yield from everyone([AskCounts(times, columns, least)], problem)
        answers = answers_of(replies, LifeCounts, AskCounts)
        tables = {i: _table(problem, i, times, len(columns) + 1, answers[i]) for i in sorted(answers)}
        return SiteTables(tables)

    def respond(self, agent: Agent, cache: None, part: Any, own_part: Any) -> tuple[None, Message]:
        """The times of this site's events, or its counts."""
        if self.grid is not None and not (
            isinstance(part, AskCounts) and np.array_equal(part.times, self.grid)
        ):
            raise ProtocolError("the study that was approved counts at other times")
        if self.groups is not None and part.columns != self.groups:
            raise ProtocolError("the study that was approved counts other groups of rows")
        if isinstance(part, AskTimes):
            return None, EventTimes(*agent.objective.event_times())
        table = agent.objective.life_table(part.times, part.columns, part.least)
        if small_count(table, part.least) is not None:
            raise DisclosureError(
                f"site {agent.name!r}: over all times it has fewer than {part.least} events or "
                "censorings of some group; ask for smaller counts (least), or leave the groups out"
            )
        counts = (table.events, table.censored, table.entered, table.beyond)
        return None, LifeCounts(*(each.ravel() for each in counts))


def _increasing(values: Scalars) -> None:
    if len(values) > MOST_TIMES:
        raise ValueError(f"a grid has at most {MOST_TIMES} times, not {len(values)}")
    if (np.diff(values) <= 0).any():
        raise ValueError("the times of a grid increase")


def _table(problem: Problem, site: AgentId, times: Scalars, groups: int, answer: LifeCounts) -> LifeTable:
    """The table in an answer, if some rows can have it."""
    cells = len(times)
    told = {kind: getattr(answer, kind) for kind in KINDS}
    if groups != len(answer.beyond) or {len(each) for each in told.values()} != {groups * cells}:
        raise _unbelievable(site, "counts of other groups or cells than were asked for")
    rows = {kind: each.reshape(groups, cells) for kind, each in told.items()}
    if any((each[:, -1] == WITH_THE_NEXT).any() for each in rows.values()):
        raise _unbelievable(site, "a life table that does not end where the grid does")
    found = {kind: [spread(kind, g, row) for g, row in enumerate(each)] for kind, each in rows.items()}
    blocks = tuple(block for each in found.values() for _, more in each for block in more)
    events, censored, entered = (np.array([counts for counts, _ in found[kind]]) for kind in KINDS)
    table = LifeTable(times, events, censored, entered, answer.beyond, blocks)
    known = problem.sizes[site].rows if site in problem.sizes else np.inf
    if (table.starting[:, 0] < -ROUNDING).any() or table.subjects.sum() > known:
        raise _unbelievable(site, "more events than it has rows at risk")
    return table


def _unbelievable(site: AgentId, what: str) -> ProtocolError:
    return ProtocolError(f"site {site!r} sent {what}; run the same version of fedshed there")
