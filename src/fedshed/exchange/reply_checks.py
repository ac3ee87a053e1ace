"""Why a site's answer cannot be used, from what was asked; `convexity` looks at what it said before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshed.protocol.batch import MessageBatch, ReplyBatch
from fedshed.protocol.conversation import Ask, Conversation, Problem
from fedshed.protocol.links import AlongDirection, Forgot
from fedshed.protocol.messages import (
    TOO_LARGE,
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
from fedshed.protocol.replies import Reply

MOST_HESSIANS = 1000
FAR_FROM_INFINITY = 1e300
OF_A_SEARCH = (Costs, Undefined)  # tuples: a union is made anew whenever it is looked at
NO_UPDATE = (Costs, Search, Update, Share)


def refusal_reason(
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
        if why := _wrong_kind_reason(part, answer):
            return why
        if isinstance(answer, OF_A_SEARCH):
            continue
        if why := conversation.refusal(problem, part, own_part, answer):
            return why
        if not at_trial_point(part) and (name := too_large(answer)):
            return f"its {name} is {TOO_LARGE}"
    return None


def mark_undefined(ask: Ask, answers: Sequence[Any]) -> list[Any]:
    """The answers of a usable reply; one whose squares overflow at a trial point counts as undefined.

    An honest site would say so itself, and the point is rejected; if it is accepted, the site is absent
    there.
    """
    each = zip(ask.parts, answers, strict=True)
    return [
        Undefined() if at_trial_point(part) and too_large(answer) is not None else answer
        for part, answer in each
    ]


def check_batch(
    conversation: Conversation, problem: Problem, ask: Ask, batch: ReplyBatch, own_parts: Sequence[Any]
) -> NDArray[np.bool_]:
    """Which replies of one shape can be used as they are; of the others `refusal_reason` says why.

    `own_parts` are those of the sites' requests.
    """
    fine = np.ones(len(own_parts), dtype=bool)
    if not 0 <= batch.first.hessians <= MOST_HESSIANS or len(batch.parts) != len(ask.parts):
        return ~fine
    for k, (part, messages) in enumerate(zip(ask.parts, batch.parts, strict=True)):
        first = batch.first.parts[k]
        if _wrong_kind_reason(part, first):
            return ~fine
        if isinstance(first, OF_A_SEARCH):
            continue
        each = zip(own_parts, batch.answers, strict=True)
        fine &= [conversation.refusal(problem, part, own, answers[k]) is None for own, answers in each]
        fine &= _find_computable(messages)
    return fine


def _find_computable(messages: MessageBatch) -> NDArray[np.bool_]:
    """Which messages have numbers whose squares are far from overflowing."""
    fine = np.ones(len(messages), dtype=bool)
    for name in numeric_fields(messages.kind):
        value = messages.fields[name]
        if isinstance(value, np.ndarray):
            rows = value.reshape(len(messages), value[:1].size)
            fine &= np.einsum("ij,ij->i", rows, rows) < FAR_FROM_INFINITY
        elif isinstance(value, MessageBatch):
            fine &= _find_computable(value)
    return fine


def _wrong_kind_reason(part: Any, answer: Any) -> str | None:
    """Each part has an answer of its kind: costs to a search, one for each step size."""
    if isinstance(answer, Undefined):
        fits = at_trial_point(part)
    elif isinstance(part, Search | AlongDirection) and not (
        isinstance(part, AlongDirection) and isinstance(answer, Forgot)
    ):
        fits = isinstance(answer, Costs) and _has_all_costs(part, answer)
    else:
        fits = not isinstance(answer, NO_UPDATE)
    return None if fits else f"it answered {type(part).__name__} with an unfit {type(answer).__name__}"


def _has_all_costs(search: Search | AlongDirection, costs: Costs) -> bool:
    count = search.count if isinstance(search, AlongDirection) else len(search.etas)
    slopes = 0 if costs.slopes is None else len(costs.slopes)
    return len(costs.values) == count and slopes == count * search.slopes
