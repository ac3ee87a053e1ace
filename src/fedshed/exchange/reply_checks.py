"""Why a site's answer cannot be used, from what was asked; `convexity` looks at what it said before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.protocol.codec import Alike, Reply
from fedshed.protocol.columns import Columns
from fedshed.protocol.conversation import Ask, Conversation, Problem
from fedshed.protocol.links import Along, Forgot
from fedshed.protocol.messages import (
    Costs,
    Declined,
    Search,
    Share,
    Undefined,
    Update,
    at_trial_point,
    numeric_fields,
    too_large,
)

MOST_HESSIANS = 1000
FAR_FROM_INFINITY = 1e300
OF_A_SEARCH = (Costs, Undefined)  # tuples: a union is made anew whenever it is looked at
NO_UPDATE = (Costs, Search, Update, Share)


def unusable(
    conversation: Conversation, problem: Problem, ask: Ask, own_part: Any, reply: Reply
) -> str | None:
    """Why this reply to `ask` cannot be used, if it cannot."""
    if not 0 <= reply.hessians <= MOST_HESSIANS:
        return f"it says it computed {reply.hessians} Hessians for one request"
    if declined := next((part for part in reply.parts if isinstance(part, Declined)), None):
        return f"it declined: {declined.why}"
    if len(reply.parts) != len(ask.parts):
        return f"it answered {len(reply.parts)} of {len(ask.parts)} parts"
    for part, answer in zip(ask.parts, reply.parts, strict=True):
        if why := _unfit(part, answer):
            return why
        if isinstance(answer, OF_A_SEARCH):
            continue
        if why := conversation.refusal(problem, part, own_part, answer):
            return why
        if not at_trial_point(part) and (name := too_large(answer)):
            return f"its {name} is too large to compute with"
    return None


def defined(ask: Ask, answers: Sequence[Any]) -> list[Any]:
    """The answers of a usable reply; one whose squares overflow at a trial point counts as undefined.

    An honest site would say so itself, and the point is rejected; if it is accepted, the site is absent
    there.
    """
    each = zip(ask.parts, answers, strict=True)
    return [
        Undefined() if at_trial_point(part) and too_large(answer) is not None else answer
        for part, answer in each
    ]


def sound(
    conversation: Conversation, problem: Problem, ask: Ask, alike: Alike, owns: Sequence[Any]
) -> NDArray[np.bool_]:
    """Which of the replies that are alike can be used as they are; of the others `unusable` says why.

    `owns` are the own parts of the sites' requests.
    """
    fine = np.ones(len(owns), dtype=bool)
    if not 0 <= alike.first.hessians <= MOST_HESSIANS or len(alike.parts) != len(ask.parts):
        return ~fine
    for k, (part, answers) in enumerate(zip(ask.parts, alike.parts, strict=True)):
        first = alike.first.parts[k]
        if _unfit(part, first):
            return ~fine
        if isinstance(first, OF_A_SEARCH):
            continue
        if answers.even and _by_kind(type(conversation)):
            different = owns if any(own is not None for own in owns) else [None]
            fine &= [conversation.refusal(problem, part, own, first) is None for own in different]
        else:
            each = zip(owns, answers.messages(), strict=True)
            fine &= [conversation.refusal(problem, part, own, answer) is None for own, answer in each]
        fine &= _small_enough(answers)
    return fine


@lru_cache
def _by_kind(kind: type[Conversation]) -> bool:
    """Whether what is refused of one answer is refused of all that are like it."""
    return kind.refusal is Conversation.refusal or (kind.by_kind and kind.goes_with("by_kind", "refusal"))


def _small_enough(answers: Columns) -> NDArray[np.bool_]:
    """Whose numbers have squares that are far from overflowing."""
    fine = np.ones(len(answers), dtype=bool)
    for name in numeric_fields(answers.kind):
        value = answers.fields[name]
        if isinstance(value, np.ndarray):
            rows = value.reshape(len(answers), value[:1].size)
            fine &= np.einsum("ij,ij->i", rows, rows) < FAR_FROM_INFINITY
        elif isinstance(value, Columns):
            fine &= _small_enough(value)
    return fine


def _unfit(part: Any, answer: Any) -> str | None:
    """Each part has an answer of its kind: costs to a search, one for each step size."""
    if isinstance(answer, Undefined):
        fits = at_trial_point(part)
    elif isinstance(part, Search | Along) and not (isinstance(part, Along) and isinstance(answer, Forgot)):
        fits = isinstance(answer, Costs) and _complete(part, answer)
    else:
        fits = not isinstance(answer, NO_UPDATE)
    return None if fits else f"it answered {type(part).__name__} with an unfit {type(answer).__name__}"


def _complete(search: Search | Along, costs: Costs) -> bool:
    count = search.count if isinstance(search, Along) else len(search.etas)
    slopes = 0 if costs.slopes is None else len(costs.slopes)
    return len(costs.values) == count and slopes == count * search.slopes
