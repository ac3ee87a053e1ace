"""Whether what sites report can come from convex costs: f(b) >= f(a) + g(a)'(b - a) for any two answers.

Sites whose last answers were at one point are looked at together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedshed.algorithms.base import SiteModel
from fedshed.linalg.arrays import Matrix, Vector, in_rows
from fedshed.protocol.conversation import AgentId
from fedshed.protocol.messages import Search, with_trial_points

SLACK = 1e-9  # what rounding may do to a cost, relative to the largest the site has reported
Said: TypeAlias = tuple[Any, Any]  # a part of a request, and what each site answered


class Claims(Struct, frozen=True):
    """f_i(theta), and g_i(theta) unless it is unknown how it was rounded; its entries are within `error`."""

    theta: Vector
    f: Vector
    g: Matrix | None
    error: float = 0.0


def contradictions(
    known: Mapping[AgentId, SiteModel[Any]],
    parts: Sequence[Any],
    answers: Mapping[AgentId, Sequence[Any]],
    scale: Mapping[AgentId, float],
    lossy: bool,
) -> dict[AgentId, str]:
    """The sites whose answers no convex cost gives, with the reason; rounded gradients excuse much."""
    found: dict[AgentId, str] = {}
    for sites in _comparable(known, answers):
        each = list(zip(*(answers[i] for i in sites), strict=True))
        said: list[Said] = list(zip(with_trial_points(parts), each, strict=True))
        before = _last_claims([known[i] for i in sites])
        sizes = np.array([scale[i] for i in sites])
        for f, low in _find_too_low(before, said, sizes, lossy):
            for j in np.flatnonzero(low):
                found.setdefault(sites[j], _contradiction_reason(f[j], before.f[j]))
    return found


def _comparable(
    known: Mapping[AgentId, SiteModel[Any]], answers: Mapping[AgentId, Sequence[Any]]
) -> list[list[AgentId]]:
    """The sites in groups: last heard at the same point, and now with answers of the same kinds."""
    groups: dict[Any, list[AgentId]] = {}
    for i, said in answers.items():
        if i in known:
            key = id(known[i].w), *[(type(a), getattr(a, "gradient", None) is None) for a in said]
            groups.setdefault(key, []).append(i)
    return list(groups.values())


def _column(answers: Any, name: str) -> NDArray[np.float64] | None:
    """A field of all answers, if it is one of numbers."""
    first = getattr(answers[0], name, None)
    if isinstance(first, np.ndarray):
        return in_rows([getattr(answer, name) for answer in answers])
    return np.array([getattr(answer, name) for answer in answers]) if isinstance(first, float) else None


def _last_claims(known: Sequence[SiteModel[Any]]) -> Claims:
    return Claims(known[0].w, np.array([k.f for k in known]), in_rows([k.g for k in known]))


def _find_too_low(
    before: Claims, said: list[Said], scale: Vector, lossy: bool
) -> Iterator[tuple[Vector, NDArray[np.bool_]]]:
    """Costs, and which of them are too low; rounded gradients give no bound."""
    if not lossy:
        yield from (
            _check_search(before, part, answers, scale) for part, answers in said if isinstance(part, Search)
        )
    tangent = Claims(before.theta, before.f, None) if lossy else before
    for now in _claims(said):
        yield now.f, _below(now, tangent, scale) | _below(tangent, now, scale)


def _claims(said: list[Said]) -> Iterator[Claims]:
    """Every gradient in a reply with its cost, and where they were taken."""
    for part, answers in said:
        theta, f, g = getattr(part, "theta", None), _column(answers, "loss"), _column(answers, "gradient")
        if theta is not None and f is not None and g is not None:
            accuracy = getattr(part, "accuracy", 0.0)
            yield Claims(theta, f, g if accuracy >= 0 else None, accuracy)


def _check_search(
    before: Claims, search: Search, costs: Any, scale: Vector
) -> tuple[Vector, NDArray[np.bool_]]:
    """The costs of a search that lie below the tangent at the last answer, all step sizes at once."""
    values = _column(costs, "values")
    assert before.g is not None
    assert values is not None
    s, d = search.theta - before.theta, search.direction
    tangent = (before.f + before.g @ s)[:, None] + np.outer(before.g @ d, search.etas)
    reach = np.outer(_lengths(before.g), _lengths(s) + search.etas * _lengths(d))
    size = np.maximum(np.maximum(np.abs(values), reach), np.maximum(scale, np.abs(before.f))[:, None])
    low = (values < tangent - SLACK * size) & np.isfinite(size)
    first = values[np.arange(len(low)), low.argmax(axis=1)]
    return first, np.asarray(low.any(axis=1))


def _below(point: Claims, tangent: Claims, scale: Vector) -> NDArray[np.bool_]:
    """Whether a cost lies below a tangent by more than rounding explains."""
    if tangent.g is None:
        return np.zeros(len(scale), dtype=bool)
    s = point.theta - tangent.theta
    length = _lengths(s)
    size = np.max([scale, np.abs(point.f), np.abs(tangent.f), _lengths(tangent.g) * length], axis=0)
    slack = SLACK * size + tangent.error * len(s) ** 0.5 * length
    return np.asarray(np.isfinite(slack) & (point.f < tangent.f + tangent.g @ s - slack))


def _contradiction_reason(cost: float, before: float) -> str:
    return f"its costs and gradients contradict each other (cost {cost:.6g}, before {before:.6g})"


def cancellation_scale(known: SiteModel[Any]) -> float:
    """What cancels in the residuals of least squares, lambda_1 ||theta||^2 / 2, or less.

    A start near the optimum of rows that fit almost exactly has tiny costs, and rounding that is not:
    f >= 0 has ||g||^2 <= 2 lambda_1 f, so ||g||^2 / (2 f) may stand for lambda_1.
    """
    if known.f <= 0:
        return 0.0
    root = float(_lengths(known.g) * _lengths(known.w))
    size = root * root / (4 * known.f)  # ** would raise where it overflows
    return size if np.isfinite(size) else 0.0


def _lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """||v|| of each row, also where its square overflows."""
    squares = np.einsum("...j,...j->...", rows, rows)
    if np.isfinite(squares).all():
        return np.asarray(np.sqrt(squares))
    most = np.abs(rows).max(axis=-1)
    unit = rows / np.where((most > 0) & (most < np.inf), most, 1.0)[..., None]
    return np.asarray(most * np.sqrt(np.einsum("...j,...j->...", unit, unit)))
