"""What many sites of one process answer to one request, in groups whose answers differ in numbers alone.

`Site.replied` stays the reference: each answer, each cache and each count is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.exchange.site import Site
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.plural import along_each
from fedshed.protocol.codec import Reply, Request
from fedshed.protocol.columns import Columns, Groups, all_alike, columns_of, likeness, places_of
from fedshed.protocol.conversation import Conversation
from fedshed.protocol.messages import Costs, Search, at_trial_point


class Answered(Struct, frozen=True):
    """Answers of some sites that are alike, the Hessians that each computed, and their caches afterwards."""

    rows: Sequence[int]
    hessians: int
    parts: list[Columns]
    caches: Sequence[Any]

    def chosen(self, fine: NDArray[np.bool_]) -> Answered:
        """Those of some of the sites."""
        if fine.all():
            return self
        places = np.flatnonzero(fine)
        rows, caches = ([each[place] for place in places.tolist()] for each in (self.rows, self.caches))
        return Answered(rows, self.hessians, [part.rows(places) for part in self.parts], caches)


def answered_together(
    sites: Sequence[Site], request: Request, own_parts: Sequence[Any], agents: Sequence[Any]
) -> list[Answered] | None:
    """What the conversation answers for all of the sites; None: they answer one by one.

    `agents` are those of the sites, in a `Crowd` where the sites are asked again and again.
    """
    talk, found = sites[0].conversation, list[Groups]()
    if not speaks_for_all(type(talk)):
        return None
    for site in sites:
        site.begin()
    caches = list(map(attrgetter("cache"), sites))
    located = talk.located_together(caches, request.located, own_parts, sites[0].objective.dim)
    if located is None:
        return None
    after, parts, own_parts = located
    for part in parts:
        if isinstance(part, Search):
            found.append(all_alike(_costs(agents, part)))
            continue
        answered = None if at_trial_point(part) else talk.respond_together(agents, after, part, own_parts)
        if answered is None:
            return None
        after, groups = answered
        found.append(groups)
    return _groups(sites, found, after)


def answered_apart(replies: Mapping[int, tuple[Reply, Any]]) -> list[Answered]:
    """The replies of some sites, each given by itself, with the cache after it: those that are alike."""
    rows, found = list(replies), list[Answered]()
    keys = [(reply.hessians, *map(likeness, reply.parts)) for reply, _ in replies.values()]
    for places in places_of(keys):
        mine = [rows[place] for place in places]
        answers = zip(*(replies[row][0].parts for row in mine), strict=True)
        parts = [part for part in map(columns_of, answers) if part is not None]
        if len(parts) == len(replies[mine[0]][0].parts):
            hessians, caches = replies[mine[0]][0].hessians, [replies[row][1] for row in mine]
            found.append(Answered(mine, hessians, parts, caches))
    return found


def _groups(sites: Sequence[Site], found: Sequence[Groups], caches: Sequence[Any]) -> list[Answered] | None:
    """The sites whose answers to all parts are alike; None where two parts divide them."""
    finest = max(found, key=len)
    if any(len(groups) > 1 for groups in found if groups is not finest):
        return None
    answered = []
    for place, (rows, _) in enumerate(finest):
        counts = {sites[row].hessians for row in rows}
        if len(counts) > 1:
            return None
        chosen = slice(None) if len(finest) == 1 else np.array(rows)
        parts = [groups[place][1] if groups is finest else groups[0][1].rows(chosen) for groups in found]
        answered.append(Answered(rows, counts.pop(), parts, [caches[row] for row in rows]))
    return answered


@lru_cache
def speaks_for_all(kind: type[Conversation]) -> bool:
    """Whether a conversation answers for many, as it does for one."""
    speaks = kind.respond_together is not Conversation.respond_together
    return speaks and all(map(kind.told_of_many, kind.plurals))


def _costs(agents: Sequence[Any], search: Search) -> Columns:
    """The costs of all along a direction; one that overflows is infinite, and will be rejected."""
    costs, slopes = along_each(agents, search.theta, search.direction, search.etas, search.slopes)
    fields = {"values": _or_infinite(costs), "slopes": None if slopes is None else _or_infinite(slopes)}
    return Columns(Costs, fields, len(agents))


def _or_infinite(values: Matrix) -> Matrix:
    """Numbers; infinity for what is none."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.inf)
