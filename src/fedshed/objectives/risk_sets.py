"""Who is at risk when: sums over risk sets by cumulative sums over the event times of each stratum.

Rows are sorted by stratum and time.  A *group* is a time of a stratum at which events happen; its risk set
are the rows of the stratum that have entered before it and end at it or later.  With r_j = w_j exp(z_j) the
sum of r over the risk set of each group is a cumulative sum from the end, less that of rows that enter later.
Tied events (Efron 1977, JASA 72, 557): the k-th of d events at a time, k = 0, ..., d - 1, has the denominator
S_k = sum over the risk set of r - (k / d) sum over the tied events of r; Breslow's is the one with k = 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Places = NDArray[np.intp]


class RiskSets:
    """The groups of a site's rows, and which of them each row is at risk in: from `since` up to `until`."""

    def __init__(self, y: NDArray[Any], weights: Numbers | None, efron: bool) -> None:
        self.rows = len(y)
        strata = np.unique(y["stratum"], return_inverse=True)[1].reshape(-1)
        moments = np.unique(y["time"][y["event"]])  # over all strata
        ends, entries = (_coded(strata, moments, y[name]) for name in ("time", "entry"))
        groups = np.unique(ends[y["event"]])
        self.stratum, self.times = groups // (len(moments) + 1), moments[groups % (len(moments) + 1) - 1]
        until, since = (np.searchsorted(groups, codes, side="right") for codes in (ends, entries))
        at_risk = np.flatnonzero(since < until)
        keys = ~y["event"][at_risk], y["time"][at_risk], strata[at_risk]  # events before rows censored then
        order = at_risk[np.lexsort(keys)]
        self.order, self.since, self.until = order, since[order], until[order]
        self.event = y["event"][order]
        self.weights = np.ones(len(order)) if weights is None else weights[order]
        self.begins = np.searchsorted(self.stratum, np.unique(self.stratum))
        self.stratum_of = self.begins.searchsorted(np.arange(len(self.times)), side="right") - 1
        self.row_stratum = self.begins.searchsorted(self.since, side="right") - 1
        self.ends = np.searchsorted(self.row_stratum, np.arange(len(self.begins)), side="right")
        self.starts = np.searchsorted(self.until, np.arange(1, len(self.times) + 1))
        self._count_events(efron)
        self._sort_late()

    def _count_events(self, efron: bool) -> None:
        """The event rows, the group of each, and its share k / d of the tied events before it."""
        self.deaths = np.flatnonzero(self.event)
        self.group = self.until[self.deaths] - 1
        self.tied = np.bincount(self.group, minlength=len(self.times))
        self.first = np.cumsum(self.tied) - self.tied
        rank = np.arange(len(self.deaths)) - self.first[self.group]
        self.share = rank / self.tied[self.group] if efron else np.zeros(len(self.deaths))
        total = np.bincount(self.group, self.weights[self.deaths], minlength=len(self.times))
        self.mean_weight = total / np.maximum(self.tied, 1)

    def _sort_late(self) -> None:
        """The rows that enter after the first group of their stratum, by when they do."""
        late = np.flatnonzero(self.since > self.begins[self.row_stratum])
        self._late = late[np.argsort(self.since[late], kind="stable")]
        self._late_groups, self._late_starts = np.unique(self.since[self._late], return_index=True)

    @property
    def truncated(self) -> bool:
        """Whether rows enter late."""
        return bool(len(self._late))

    def over_risk_sets(self, values: Numbers) -> tuple[Numbers, Numbers]:
        """The sums over the risk set of each group (the last axis), and those with late rows."""
        sums = self.from_end(self._by_group(values))
        if not self.truncated:
            return sums, sums
        later = np.zeros_like(sums)
        later[..., self._late_groups] = np.add.reduceat(values[..., self._late], self._late_starts, axis=-1)
        after = self.from_end(later) - later
        return sums - after, sums

    def log_over_risk_sets(self, logs: Numbers) -> Numbers:
        """The logarithms of the same sums, of numbers by their logarithms; no row may enter late."""
        return self._from_end(np.logaddexp.reduceat(logs, self.starts, axis=-1), np.logaddexp)

    def members(self, group: int) -> Places:
        """The rows in the risk set of a group."""
        rows = np.arange(self.starts[group], self.ends[self.stratum_of[group]])
        return rows[self.since[rows] <= group]

    def over_events(self, values: Numbers) -> Numbers:
        """The sums over the events of each group."""
        return np.add.reduceat(values[..., self.deaths], self.first, axis=-1)

    def over_ties(self, values: Numbers) -> Numbers:
        """The sums over k of numbers that each tied event has."""
        return np.add.reduceat(values, self.first, axis=-1)

    def _by_group(self, values: Numbers) -> Numbers:
        """The sums over the rows that end at a group or after it, but before the next."""
        return np.add.reduceat(values, self.starts, axis=-1)

    def from_end(self, values: Numbers) -> Numbers:
        """Cumulative sums over groups, from the last of each stratum."""
        return self._from_end(values, np.add)

    def _from_end(self, values: Numbers, add: np.ufunc) -> Numbers:
        sums = np.empty_like(values)
        for start, end in self.strata():
            sums[..., start:end] = add.accumulate(values[..., start:end][..., ::-1], axis=-1)[..., ::-1]
        return sums

    def from_start(self, values: Numbers) -> Numbers:
        """Cumulative sums over groups, from the first of each stratum."""
        sums = np.empty_like(values)
        for start, end in self.strata():
            np.cumsum(values[..., start:end], axis=-1, out=sums[..., start:end])
        return sums

    def strata(self) -> Iterator[tuple[int, int]]:
        """The groups of each stratum, which is summed alone: no digits of one are lost in another's."""
        return pairwise([*self.begins.tolist(), len(self.times)])

    def while_at_risk(self, cumulated: Numbers) -> Numbers:
        """What each row gathers while it is at risk, of cumulative sums from the start."""
        gathered = cumulated[..., self.until - 1]
        if self.truncated:
            before = cumulated[..., self.since[self._late] - 1]
            gathered[..., self._late] -= before
        return gathered

    def largest(self, z: Numbers) -> Numbers:
        """The largest z of each row's stratum."""
        starts = np.searchsorted(self.row_stratum, np.arange(len(self.begins)))
        return np.maximum.reduceat(z, starts, axis=-1)[..., self.row_stratum]


def _coded(strata: Places, moments: Numbers, at: Numbers) -> Places:
    """A whole number for a time of a stratum, in the order of strata and then of moments before it."""
    codes: Places = strata * (len(moments) + 1) + np.searchsorted(moments, at, side="right")
    return codes
