"""Survival curves as a page of text."""

from __future__ import annotations

from math import isinf
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedshed._utils.names import printable
from fedshed.objectives.life_table import LifeTable

if TYPE_CHECKING:
    from fedshed.inference.logrank import LogRank
    from fedshed.inference.survival_result import SurvivalCurves

WIDTH = 78
ROUNDING = 1e-6  # of a count


def text(found: SurvivalCurves, level: float = 0.95) -> str:
    """The whole text, at most 80 columns wide."""
    double, single = "=" * WIDTH, "-" * WIDTH
    lines = ["Survival over all sites".center(WIDTH).rstrip(), double, *_about(found), single]
    lines += [*_groups(found, level), double]
    if len(found.groups) > 1:
        lines += [_test("Log-rank test", found.logrank())]
        if len(found.sites) > 1:
            lines += [_test("Log-rank test, stratified by site", found.logrank(stratified=True))]
    notes = [_accuracy(found), _left_out(found), _traffic(found)]
    return "\n".join([*lines, *(fill(note, WIDTH) for note in notes if note)])


def _about(found: SurvivalCurves) -> list[str]:
    subjects, events = round(found.table.subjects.sum()), round(found.table.events.sum())
    count = found.over or len(found.sites)
    sites = ("1 site" if count == 1 else f"{count} sites") + " (sums only)" * bool(found.over)
    return [
        fill(f"time: {printable(found.time)}; event: {printable(found.event)}", WIDTH),
        f"{subjects:,} subject{'s' * (subjects != 1)} with {events:,} event{'s' * (events != 1)}, at {sites}",
    ]


def common_end(found: SurvivalCurves) -> float:
    """The last time at which somebody of every group is observed, as far as the table tells."""
    table = found.table
    return min(_observed(table, group) for group in range(len(found.groups)))


def _observed(table: LifeTable, group: int) -> float:
    """The last time at which somebody of a group is known to be at risk."""
    if table.beyond[group] > 0:
        return float(table.times[-1])
    cells = np.flatnonzero(table.starting[group] > ROUNDING)
    k = int(cells[-1]) if len(cells) else 0
    return float(table.times[k] if table.points[k] else table.times[max(k - 1, 0)])


def _groups(found: SurvivalCurves, level: float) -> list[str]:
    """A line for each group."""
    end, tail = common_end(found), (1 - level) / 2
    wide = 20
    ends = f"[{tail:.3g}", f"{1 - tail:.3g}]"
    head = printable(found.by) if found.by else "group"
    lines = [
        f"{head[:wide]:<{wide}}{'subjects':>9}{'events':>8}{'median':>8}{ends[0]:>8}{ends[1]:>8}"
        f"{'mean*':>8}{'std err':>9}"
    ]  # fmt: skip
    for k, (group, curve) in enumerate(found.curves.items()):
        median, low, high = curve.median(level)
        mean, error, *_ = curve.restricted_mean(end)
        lines.append(
            f"{printable(group)[:wide]:<{wide}}{int(found.table.subjects[k]):>9,}{round(curve.events.sum()):>8,}"
            f"{_time(median):>8}{_time(low):>8}{_time(high):>8}{mean:>8.5g}{error:>9.3g}"
        )  # fmt: skip
    return [*lines, f"* restricted to the time until {end:g}"]


def _time(value: float) -> str:
    """A time, or that it is not reached."""
    return "-" if isinf(value) or np.isnan(value) else f"{value:.5g}"


def _test(name: str, test: LogRank) -> str:
    if not test.df:
        return f"{name}: nothing to compare"
    p = f"p = {test.p:.3g}" if test.p >= 1e-16 else "p < 1e-16"
    return f"{name}: chi2({test.df}) = {test.statistic:.4g}, {p}"


def _accuracy(found: SurvivalCurves) -> str:
    """How close the curves are to those of all rows."""
    if found.exact:
        return "The curves are those that all rows together would give (Kaplan and Meier)."
    bounds = []
    for group, curve in found.curves.items():
        after, until = curve.median_bounds()
        if not isinf(after):
            name = f"of {printable(group)} " if len(found.groups) > 1 else ""
            bounds.append(f"{name}after {after:g}" + ("" if isinf(until) else f" and until {until:g}"))
    return (
        f"The counts are for intervals of time: the curves that all rows together would give are within "
        f"{found.error_bound:.2g} of these at the ends of the intervals; their medians are "
        f"{', '.join(bounds)}. The tests are those for grouped times."
    )


def _left_out(found: SurvivalCurves) -> str:
    if not found.dropped:
        return ""
    return f"{found.dropped:,} rows with missing values were left out (missing = drop)."


def _traffic(found: SurvivalCurves) -> str:
    if not found.exchanges:
        return ""
    return (
        f"{found.exchanges} exchanges, {found.uplink_bytes:,} bytes from the sites, "
        f"{found.downlink_bytes:,} to them."
    )
