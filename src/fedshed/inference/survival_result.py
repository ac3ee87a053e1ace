"""`SurvivalCurves`: the survival curves of all sites by group, as text, test, figure and file."""

from __future__ import annotations

import csv
import io
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed._utils.names import closest
from fedshed._utils.notebook import preformatted
from fedshed.inference.life_curves import Curve, curves
from fedshed.inference.logrank import LogRank, logrank
from fedshed.objectives.life_table import LifeTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = (
    "group", "time", "at_risk", "events", "censored", "survival", "std_err", "low", "high", "hazard",
    "hazard_std_err", "lowest", "highest",
)  # fmt: skip


class SurvivalCurves(Struct, frozen=True, dict=True):
    """Survival curves by group over all sites, computed from counts that the sites sent.

    Attributes
    ----------
    time, event : str
        The columns of the times and of the events.
    by : str or None
        The column whose levels are the groups.
    groups : tuple of str
        The groups: the levels of the column `by`, or one group of all rows.
    sites : dict
        The life table of each site.
    dropped : int
        The number of rows that were left out because a value was missing.
    exchanges, uplink_bytes, downlink_bytes : int
        The number of exchanges, and the bytes from and to the sites.
    over : int
        In a protected study, the number of sites in the sums; `sites` then has one table.

    Examples
    --------
    >>> import fedshed
    >>> north = {"t": [5.0, 8.0, 9.0, 12.0], "d": [1, 0, 1, 1], "arm": ["a", "a", "b", "b"]}
    >>> south = {"t": [6.0, 7.0, 10.0, 14.0], "d": [1, 1, 0, 1], "arm": ["a", "a", "b", "b"]}
    >>> found = fedshed.survival({"north": north, "south": south}, time="t", event="d", by="arm")
    >>> found["a"].survival[-1].round(3), found["b"].median()[0], found.logrank().df
    (np.float64(0.25), 12.0, 1)
    """

    time: str
    event: str
    by: str | None
    groups: tuple[str, ...]
    sites: dict[str, LifeTable]
    dropped: int = 0
    exchanges: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    over: int = 0

    @cached_property
    def table(self) -> LifeTable:
        """The life table of all sites."""
        names = sorted(self.sites)
        total = self.sites[names[0]]
        for name in names[1:]:
            total = total + self.sites[name]
        return total

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """The curve of each group."""
        return dict(zip(self.groups, curves(self.table), strict=True))

    def __getitem__(self, group: str) -> Curve:
        if group not in self.curves:
            raise ConfigError(f"there is no group {group!r}{closest(group, self.groups)}")
        return self.curves[group]

    def of_site(self, site: str) -> SurvivalCurves:
        """The curves of one site alone.

        Parameters
        ----------
        site : str
            The name of the site.

        Returns
        -------
        SurvivalCurves
            The curves from the life table of this site.

        Raises
        ------
        ConfigError
            If there is no such site.
        """
        if site not in self.sites:
            raise ConfigError(f"there is no site {site!r}{closest(site, tuple(self.sites))}")
        return replace(self, sites={site: self.sites[site]})

    @property
    def exact(self) -> bool:
        """Whether the curves are exactly those of the pooled rows."""
        return self.error_bound <= 1e-12

    @property
    def error_bound(self) -> float:
        """The largest possible distance of a curve from that of the pooled rows, at times of the table."""
        return max(each.error_bound for each in self.curves.values())

    def logrank(self, *, stratified: bool = False) -> LogRank:
        """The log-rank test of whether the groups differ, pooled over sites or stratified by site.

        A test that is stratified by site compares subjects only with those of the same site, so that the
        hazards of the sites may differ.

        Parameters
        ----------
        stratified : bool, default False
            Whether the test is stratified by site.

        Returns
        -------
        LogRank
            The statistic, its degrees of freedom and the p-value.

        Raises
        ------
        ConfigError
            If there is only one group.
        """
        if len(self.groups) < 2:
            raise ConfigError(
                "a log-rank test needs at least two groups; give the column of the groups (by, --by)"
            )
        return logrank([self.sites[i] for i in sorted(self.sites)] if stratified else [self.table])

    def rows(self, level: float = 0.95) -> list[tuple[Any, ...]]:
        """The rows of the table of curves: by group, at each time with an event or a censoring.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.

        Returns
        -------
        list of tuple
            The numbers in the order of the columns of `to_csv`.
        """
        points = self.table.points
        shown = ~np.append(points[1:], False)  # a gap before a time is told with it
        return [
            row for group, each in self.curves.items() for row in _rows(group, each, shown, points, level)
        ]

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """The curves as a pandas DataFrame.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.

        Returns
        -------
        DataFrame
            One row per group and time.
        """
        import pandas as pd

        return pd.DataFrame(self.rows(level), columns=list(COLUMNS))

    def to_csv(self, level: float = 0.95, *, per_site: bool = False) -> str:
        """The curves as CSV; an undefined number is an empty cell.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.
        per_site : bool, default False
            Whether to give the curves of each site instead of those of all sites together.

        Returns
        -------
        str
            The text of the CSV file.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("site", *COLUMNS) if per_site else COLUMNS)
        parts = [((name,), self.of_site(name)) for name in sorted(self.sites)] if per_site else [((), self)]
        for first, part in parts:
            writer.writerows((*first, *map(_shown, row)) for row in part.rows(level))
        return out.getvalue()

    def facts(self, level: float = 0.95) -> dict[str, Any]:
        """The numbers of the summary as plain data; an undefined number is None.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.

        Returns
        -------
        dict
            Medians by group, the log-rank tests, the error bound, and the traffic.
        """
        subjects, tests = self.table.subjects, {}
        if len(self.groups) > 1:
            tests = {"logrank": self.logrank(), "logrank_stratified_by_site": self.logrank(stratified=True)}
        groups = {
            name: {
                "subjects": int(subjects[k]), "events": round(float(each.events.sum())),
                "median": [_finite(value) for value in each.median(level)],
                "median_of_all_rows": [_finite(value) for value in each.median_bounds()],
            }
            for k, (name, each) in enumerate(self.curves.items())
        }  # fmt: skip
        return {
            "groups": groups,
            **{name: {"chi2": t.statistic, "df": t.df, "p": _finite(t.p)} for name, t in tests.items()},
            "error_bound": self.error_bound, "dropped": self.dropped, "exchanges": self.exchanges,
            "uplink_bytes": self.uplink_bytes, "downlink_bytes": self.downlink_bytes,
        }  # fmt: skip

    def summary(self, level: float = 0.95) -> str:
        """The summary as text: subjects, events, medians with intervals, means, and the log-rank tests.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.

        Returns
        -------
        str
            The text, at most 80 columns wide.
        """
        from fedshed.inference.survival_text import text

        return text(self, level)

    def plot(self, level: float = 0.95, title: str = "") -> Figure:
        """Draw the curves with their confidence bands, and the numbers at risk below them.

        Parameters
        ----------
        level : float, default 0.95
            The confidence level of intervals, between 0 and 1.
        title : str, optional
            The title above the curves. Default: none.

        Returns
        -------
        Figure
            The figure of matplotlib.
        """
        from fedshed.inference.survival_plot import draw

        return draw(self, level, title)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return preformatted(self.summary())


def _rows(group: str, curve: Curve, shown: Any, points: Any, level: float) -> list[tuple[Any, ...]]:
    """The rows of one group: cells that are shown, each with the censorings of the gap before it."""
    ends = np.flatnonzero(shown)
    starts = np.concatenate([[0], ends[:-1] + 1])
    censored = np.add.reduceat(curve.censored, starts)
    low, high = curve.band(level)
    numbers = np.column_stack([
        curve.survival, curve.std_err, low, high, curve.hazard, np.sqrt(curve.hazard_variance), curve.lowest,
        curve.highest,
    ])  # fmt: skip
    counts = np.column_stack([curve.at_risk, curve.events])
    return [
        (group, float(curve.times[k]), *map(_count, (*counts[k], c)), *map(float, numbers[k]))
        for k, c in zip(ends, censored, strict=True)
        if not points[k] or curve.events[k] or c
    ]


def _shown(value: Any) -> Any:
    return "" if isinstance(value, float) and np.isnan(value) else value


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _count(value: float) -> float | int:
    """A count; it has a fraction if only the count of several cells together is known."""
    whole = round(float(value))
    return whole if abs(value - whole) < 1e-6 else round(float(value), 3)
