"""Means and knots over all sites: sums and histograms of a site, and what the Master makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedshed._utils.errors import DataError, ProtocolError
from fedshed.preparation import formulas
from fedshed.preparation.calls import Transform
from fedshed.preparation.expressions import values
from fedshed.preparation.messages import Tallies
from fedshed.preparation.plan import DesignPlan
from fedshed.preparation.quantiles import MOST, blocks
from fedshed.preparation.transforms import Spline, State, known

_LARGEST = 1e100  # of a value: its squares are numbers, too


def pending(plan: DesignPlan) -> list[tuple[Transform, State]]:
    """The transforms of the formula that lack numbers, in its order."""
    if plan.study.formula is None:
        return []
    found = [(it, known(it, plan.transforms)) for it in formulas.formula_of(plan.study).transforms]
    return [(it, state) for it, state in found if not state.complete(it)]


def tally(plan: DesignPlan, columns: Mapping[str, NDArray[np.float64]], least: int) -> Tallies:
    """What a site tells of its rows for the transforms that lack numbers: a histogram or sums of each."""
    sums, histograms = [np.zeros(0)], [np.zeros((0, 3))]
    for it, state in pending(plan):
        x = _argument(it, columns)
        if isinstance(state, Spline) and not state.placed:
            found = blocks(x, least)
            found[:, :2] = _within(state, found[:, :2])
            histograms.append(found)
        else:
            sums.append(_finite(it, state.sums(it, x)))
    sizes = tuple(len(each) for each in histograms[1:])
    return Tallies(np.concatenate(sums), np.concatenate(histograms).ravel(), sizes)


def with_tallies(plan: DesignPlan, found: Mapping[str, Tallies], counts: Mapping[str, int]) -> DesignPlan:
    """The plan with the numbers that follow from what the sites told, each of so many rows."""
    waiting, rows = pending(plan), sum(counts.values())
    unplaced = sum(isinstance(state, Spline) and not state.placed for _, state in waiting)
    histograms = iter(_together(found, unplaced, counts))
    placed = [(it, s) for it, s in waiting if not (isinstance(s, Spline) and not s.placed)]
    totals, states = _totals(found, sum(state.count(it) for it, state in placed)), dict(plan.transforms)
    for it, state in waiting:
        if isinstance(state, Spline) and not state.placed:
            states[it.term] = state.with_blocks(it, next(histograms))
        else:
            mine, totals = np.split(totals, [state.count(it)])
            states[it.term] = state.with_sums(it, mine, rows)
    return replace(plan, found=states)


def smallest_block(answer: Tallies) -> int | None:
    """The rows of the smallest block of a site's histograms, if it tells any."""
    return int(answer.blocks[2::3].min()) if len(answer.blocks) else None


def _argument(it: Transform, columns: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        x = values(it.argument, it.names, columns)
        if not (np.abs(x) <= _LARGEST).all():
            raise DataError(f"term {it.term!r} is infinite or not defined in some rows; correct or drop them")
    return x


def _within(state: Spline, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ends of blocks, those outside given bounds moved to them: with bounds a site tells no more."""
    ends = ends if state.lower is None else np.maximum(ends, state.lower)
    return ends if state.upper is None else np.minimum(ends, state.upper)


def _finite(it: Transform, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(sums).all():
        raise DataError(f"term {it.term!r}: its sums are too large; divide the column by a number")
    return sums


def _together(found: Mapping[str, Tallies], count: int, rows: Mapping[str, int]) -> list[NDArray[np.float64]]:
    """The blocks of all sites, for each term that waits for knots."""
    by_site = [_histograms(site, found[site], count, rows[site]) for site in sorted(found)]
    return [np.concatenate(histograms) for histograms in zip(*by_site, strict=True)]


def _histograms(site: str, told: Tallies, count: int, total: int) -> list[NDArray[np.float64]]:
    """The histograms of a site, each of all its rows; one that cannot be is refused."""
    numbers = 3 * sum(told.sizes)
    sized = len(told.sizes) == count and all(1 <= size <= MOST for size in told.sizes)
    found = told.blocks.reshape(-1, 3) if len(told.blocks) == numbers else np.ones((1, 3))
    low, high, rows = found.T
    if not sized or len(told.blocks) != numbers or not ((low <= high) & (rows >= 1)).all():
        raise ProtocolError(
            f"site {site!r} sent impossible histograms; run the same version of fedshed there"
        )
    histograms = np.split(found, np.cumsum(told.sizes)[:-1]) if count else []
    if any(each[:, 2].sum() != total for each in histograms):
        raise ProtocolError(f"site {site!r} sent a histogram of other rows than its {total} complete ones")
    return histograms


def _totals(found: Mapping[str, Tallies], count: int) -> NDArray[np.float64]:
    for site in sorted(found):
        if len(found[site].sums) != count:
            raise ProtocolError(
                f"site {site!r} sent {len(found[site].sums)} sums, not {count}; run the same version of "
                "fedshed there"
            )
    return np.asarray(sum(found[site].sums for site in sorted(found)))
