"""What is not believed: why a site's answer cannot be used, from what was asked and what it said before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, sqrt
from typing import Any

import numpy as np
from msgspec import Struct

from fedshed.algorithm import Algorithm, Ask, Known, Problem
from fedshed.arrays import Vector
from fedshed.codec import Reply
from fedshed.messages import Costs, Declined, Message, Search, Share, Undefined, Update

MOST_HESSIANS = 1000
SLACK = 1e-9  # what rounding may do to a cost, relative to the largest the site has reported


class Claim(Struct, frozen=True):
    """f_i(theta) and perhaps g_i(theta) as a site reports them; each entry of g is within `error`."""

    theta: Vector
    f: float
    g: Vector | None = None
    error: float = 0.0


def unusable(
    algorithm: Algorithm[Any], problem: Problem, ask: Ask, mine: Any, reply: Reply,
    known: Known[Any] | None, scale: float,
) -> str | None:  # fmt: skip
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
        if isinstance(answer, Costs | Undefined):
            continue
        if why := algorithm.refusal(problem, part, mine, answer) or _too_large(part, answer):
            return why
    return _incredible(known, ask.parts, reply.parts, scale, algorithm.lossy) if known else None


def _incredible(
    known: Known[Any], parts: Sequence[Any], answers: Sequence[Any], scale: float, lossy: bool
) -> str | None:
    """Why no convex cost gives these answers, if none does."""
    if not lossy:
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(part, Search) and (why := search_contradiction(known, part, answer, scale)):
                return why
    return contradiction(known, claims(parts, answers), scale, lossy)


def _unfit(part: Any, answer: Any) -> str | None:
    """Each part has an answer of its kind: costs to a search, one for each step size."""
    if isinstance(answer, Undefined):
        fits = getattr(part, "theta", part) is None  # only at a trial point
    elif isinstance(part, Search):
        fits = isinstance(answer, Costs) and _complete(part, answer)
    else:
        fits = not isinstance(answer, Costs | Search | Update | Share)
    return None if fits else f"it answered {type(part).__name__} with an unfit {type(answer).__name__}"


def _complete(search: Search, costs: Costs) -> bool:
    slopes = 0 if costs.slopes is None else len(costs.slopes)
    return len(costs.values) == len(search.etas) and slopes == len(search.etas) * search.slopes


def _too_large(part: Any, answer: Message) -> str | None:
    """Numbers whose squares overflow can be had at a trial point, which is then rejected; elsewhere not."""
    if getattr(part, "theta", part) is None:
        return None
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if isinstance(value, Message) and (why := _too_large(part, value)):
            return why
        if isinstance(value, np.ndarray | float) and not isfinite(np.vdot(value, value)):
            return f"its {name} is too large to compute with"
    return None


def claims(parts: Sequence[Any], answers: Sequence[Any]) -> Iterator[Claim]:
    """Every gradient in a reply with its cost, and where they were taken."""
    trial: Vector | None = None
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(part, Search):
            trial = part.theta + part.direction
        elif isinstance(g := getattr(answer, "gradient", None), np.ndarray):
            theta = trial if part.theta is None else part.theta
            accuracy = getattr(part, "accuracy", 0.0)
            if theta is not None:
                yield Claim(theta, answer.loss, g if accuracy >= 0 else None, accuracy)


def search_contradiction(known: Known[Any], search: Search, costs: Costs, scale: float) -> str | None:
    """The costs of a search that lie below the tangent at the last answer, all step sizes at once."""
    s, d, g, values = search.theta - known.w, search.direction, known.g, costs.values
    tangent = known.f + g @ s + search.etas * (g @ d)
    reach = _length(g) * (_length(s) + search.etas * _length(d))
    size = np.maximum(np.maximum(np.abs(values), reach), max(scale, abs(known.f)))
    low = (values < tangent - SLACK * size) & np.isfinite(size)
    return _contradicts(float(values[low][0]), known) if low.any() else None


def cancelled(known: Known[Any]) -> float:
    """What cancels in the residuals of least squares, lambda_1 ||theta||^2 / 2, or less.

    A start near the optimum of rows that fit almost exactly has tiny costs, and rounding that is not:
    f >= 0 has ||g||^2 <= 2 lambda_1 f, so ||g||^2 / (2 f) may stand for lambda_1.
    """
    if known.f <= 0:
        return 0.0
    root = _length(known.g) * _length(known.w)
    size = root * root / (4 * known.f)  # ** would raise where it overflows
    return size if isfinite(size) else 0.0


def _contradicts(cost: float, known: Known[Any]) -> str:
    return f"its costs and gradients contradict each other (cost {cost:.6g}, before {known.f:.6g})"


def contradiction(known: Known[Any], said: Iterator[Claim], scale: float, lossy: bool) -> str | None:
    """A convex cost lies above its tangents: f(b) >= f(a) + g(a)'(b - a), for any two of its answers.

    A tangent whose gradient was rounded on its way by an unknown amount says nothing.
    """
    before = Claim(known.w, known.f, None if lossy else known.g)
    for now in said:
        if _below(now, before, scale) or _below(before, now, scale):
            return _contradicts(now.f, known)
    return None


def _below(point: Claim, tangent: Claim, scale: float) -> bool:
    """Whether a cost lies below a tangent by more than rounding explains."""
    if tangent.g is None:
        return False
    s = point.theta - tangent.theta
    length = _length(s)
    size = max(scale, abs(point.f), abs(tangent.f), _length(tangent.g) * length)
    slack = SLACK * size + tangent.error * sqrt(len(s)) * length
    return isfinite(slack) and point.f < tangent.f + float(tangent.g @ s) - slack


def _length(v: Vector) -> float:
    """||v||, also where its square overflows."""
    square = float(v @ v)
    if isfinite(square):
        return sqrt(square)
    most = float(np.abs(v).max())
    return most * _length(v / most) if isfinite(most) else most
