"""A calibration curve from sums of groups of rows with similar scores."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from fedshed.inference.roc import wilson
from fedshed.linalg.arrays import Matrix
from fedshed.objectives.ranking import edges_of, summed
from fedshed.solve.evaluating import GROUPS, Tabulated, Told

ENOUGH = 4  # groups of a curve; a site that merged too many of its groups is left out by name


class Group(Struct, frozen=True):
    """Rows with similar scores: their weight, mean probability, share of events and its Wilson interval."""

    weight: float
    predicted: float
    observed: float
    low: float
    high: float


def calibration_groups(told: Told) -> tuple[list[Group], tuple[str, ...]]:
    """The groups that all sites have in common, and a sentence on sites that had to be left out."""
    assert told.grid is not None
    count = len(edges_of(*told.grid[:2], GROUPS)) + 1
    ends = {site: _ends(table, count) for site, table in sorted(told.tables.items())}
    kept = sorted((site for site in ends if ends[site]), key=lambda site: (-len(ends[site]), site))
    if not kept:
        return [], ("No site has enough rows of both classes for a calibration curve.",)
    while len(kept) > 1 and len(_common(ends, kept)) < min(ENOUGH, len(ends[kept[0]])):
        kept.pop()
    common = sorted(_common(ends, kept))
    sums = np.sum([_merged(told.tables[site], ends[site], common) for site in sorted(kept)], axis=0)
    left = sorted(set(ends) - set(kept))
    notes = (
        (f"The calibration curve leaves out {', '.join(left)}, where there are too few rows.",)
        if left
        else ()
    )
    return _groups(sums), notes


def _ends(table: Tabulated, count: int) -> tuple[int, ...]:
    """Where the groups of a site end; none where it tells of none."""
    if table.groups is None:
        return ()
    if table.group_ends is None:
        return tuple(range(1, count + 1))
    return tuple(int(end) for end in table.group_ends)


def _common(ends: dict[str, tuple[int, ...]], sites: list[str]) -> set[int]:
    return set.intersection(*(set(ends[site]) for site in sites))


def _merged(table: Tabulated, ends: tuple[int, ...], common: list[int]) -> Matrix:
    """The sums of a site over the groups that all have."""
    assert table.groups is not None
    places = np.array([ends.index(end) + 1 for end in common], dtype=np.intp)
    return summed(table.groups.reshape(-1, 3), places)


def _groups(sums: Matrix) -> list[Group]:
    there = sums[sums[:, 0] > 0]
    observed = there[:, 1] / there[:, 0]
    low, high = wilson(observed, there[:, 0])
    columns = there[:, 0], there[:, 2] / there[:, 0], observed, low, high
    return [Group(*row) for row in np.stack(columns, axis=1).tolist()]
