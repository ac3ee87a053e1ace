"""Why a site's answer cannot be used, from what was asked; `convexity` looks at what it said before."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from fedshed.protocol.codec import Reply
from fedshed.protocol.conversation import Ask, Conversation, Problem
from fedshed.protocol.links import Along, Forgot
from fedshed.protocol.messages import (
    Costs,
    Declined,
    Message,
    Search,
    Share,
    Undefined,
    Update,
    at_trial_point,
    numeric_fields,
)

MOST_HESSIANS = 1000
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
        if why := conversation.refusal(problem, part, own_part, answer) or _too_large(part, answer):
            return why
    return None


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


def _too_large(part: Any, answer: Message) -> str | None:
    """Numbers whose squares overflow can be had at a trial point, which is then rejected; elsewhere not."""
    if at_trial_point(part):
        return None
    for name in numeric_fields(type(answer)):
        value = getattr(answer, name)
        if isinstance(value, Message):
            if why := _too_large(part, value):
                return why
        elif _overflows(value):
            return f"its {name} is too large to compute with"
    return None


def _overflows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not isfinite(np.vdot(value, value))
    return isinstance(value, float) and not isfinite(value * value)
