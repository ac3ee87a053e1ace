"""`survival`: the survival curves of all sites, from counts that the sites send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.newton import Newton
from fedshed.exchange import InProcess
from fedshed.exchange.sites import Connect
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.curves import count_curves
from fedshed.fitting.process_sites import ProcessSites
from fedshed.fitting.sites import LocalTables, TableSites
from fedshed.inference.survival_result import SurvivalCurves
from fedshed.linalg.arrays import Vector
from fedshed.preparation import Study, negotiate
from fedshed.preparation.study import Missing
from fedshed.solve.life_counts import MOST_TIMES

PATIENCE = 20


def survival(
    tables: Mapping[str, Any],
    *,
    time: str,
    event: str,
    entry: str | None = None,
    by: str | None = None,
    grid: Sequence[float] | None = None,
    every: float | None = None,
    until: float | None = None,
    least: int = 0,
    missing: Missing = "refuse",
    positive: Sequence[Any] = (),
    over: Connect | ProcessSites | None = None,
) -> SurvivalCurves:
    """Estimate Kaplan-Meier and Nelson-Aalen curves over all sites, with the log-rank test of groups.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`.
    time : str
        The column with the time for which a row was observed.
    event : str
        The column that is 1 if the observation ended with the event, and 0 if it was censored.
    entry : str, optional
        The column with the time at which a row came under observation. Default: 0.
    by : str, optional
        The column with the groups to be compared; numbers are treated as categories.
    grid : sequence of float, optional
        The times at which sites count. Without a grid, the sites first send the times of their events, and
        the curves are those of the pooled rows. With a grid, no time of a row leaves its site, and the result
        says how far its curves can be from those of the pooled rows.
    every : float, optional
        The step of a grid of equal steps, which ends at `until`.
    until : float, optional
        The last time of the grid or, without `every`, of the exact curves.
    least : int, default 0
        The smallest count, other than 0, that may leave a site; cells of the grid are merged until all counts
        comply.
    missing : "refuse" or "drop", default "refuse"
        What is done with rows that have missing values.
    positive : sequence, default ()
        The values of `event` that count as the event, if it contains neither 0 and 1 nor booleans.
    over : ProcessSites or callable, optional
        Where the sites run, as in `fedshed.fit`.

    Returns
    -------
    SurvivalCurves
        The curves, with `summary()`, `curves`, `logrank()`, `plot()` and `to_csv()`.

    Raises
    ------
    ConfigError
        If the grid is impossible or options contradict each other.
    DataError
        If the tables do not agree with each other; the message names the site and the column.
    DisclosureError
        If a site has so few events or censored rows that no grid can hide them.

    Examples
    --------
    >>> import fedshed
    >>> north = {"months": [5.0, 8.0, 9.0, 12.0], "death": [1, 0, 1, 1]}
    >>> south = {"months": [6.0, 7.0, 10.0, 14.0], "death": [1, 1, 0, 1]}
    >>> found = fedshed.survival({"north": north, "south": south}, time="months", event="death")
    >>> found["all"].median()[0], found.exact
    (9.0, True)
    """
    times, last = asked_grid(grid, every, until)
    if least < 0:
        raise ConfigError(f"least must be a number of rows, 0 or larger, not {least}")
    study = Study(
        family="cox", time=time, event=event, entry=entry, columns=(by,) if by else (),
        categories=(by,) if by else (), missing=missing, positive=tuple(positive), l2=1.0,
    )  # fmt: skip
    with _where(tables, over) as sites:
        return count(study, sites, times, last, least)


def _where(tables: Mapping[str, Any], over: Any) -> AbstractContextManager[TableSites]:
    """The sites, in this process or in separate processes."""
    if isinstance(over, ProcessSites):
        return over.start(tables)
    return nullcontext(LocalTables(tables, over or InProcess))


def count(
    study: Study, tables: TableSites, times: Vector | None, last: float | None, least: int
) -> SurvivalCurves:
    """The curves of a study whose only column, if it has one, contains the groups."""
    with tables.prepare() as transport:
        stateless = transport.stateless
        plan, ready, agreed = negotiate(study, transport, tables.names, PATIENCE)
    problem = problem_of(plan, ready, stateless)
    sites = tables.play(plan, problem, Newton())
    by = study.columns[0] if study.columns else None
    found, _ = count_curves(plan, problem, sites, ready, by, times, last, least, agreed, PATIENCE)
    return replace(found, downlink_bytes=found.downlink_bytes + tables.told().downlink_bytes)


def asked_grid(
    grid: Sequence[float] | None, every: float | None, until: float | None
) -> tuple[Vector | None, float | None]:
    """The times of a grid, if there is one, and the last time."""
    for name, value in (("every", every), ("until", until)):
        if value is not None and not 0 < value < np.inf:
            raise ConfigError(f"{name} must be a finite time above 0, not {value}")
    if grid is not None:
        if every is not None or until is not None:
            raise ConfigError("give either a grid of times or its step (every) and its end (until), not both")
        times = np.asarray(sorted(set(map(float, grid))))
        if not len(times) or not np.isfinite(times).all() or times[0] < 0 or len(times) > MOST_TIMES:
            raise ConfigError(
                f"a grid must have 1 to {MOST_TIMES:,} times, none of them negative or infinite"
            )
        if times[-1] == 0:
            raise ConfigError("a grid must end after time 0; add later times")
        return times, None
    if every is None:
        return None, until
    if until is None:
        raise ConfigError("a grid of equal steps (every) needs an end; give the last time (until)")
    if until / every > MOST_TIMES:
        raise ConfigError(f"a grid can have at most {MOST_TIMES:,} times; make the step (every) longer")
    steps = int(np.ceil(until / every * (1 - 1e-12)))
    return np.minimum(every * np.arange(1.0, steps + 1), until), None
