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
    """Kaplan-Meier and Nelson-Aalen curves of all rows of all tables, and the log-rank test of their groups.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`.
    time, event : str
        Columns: how long a row was observed, and whether it ended with the event (1) or was censored (0).
    entry : str, optional
        Column with the time since which a row was observed, where that is later than 0.
    by : str, optional
        Column with the groups to be compared; numbers are categories too.
    grid : sequence of float, optional
        Times at which sites count. Without a grid they tell the times of their events first, and the curves
        are those of all rows; with one no time of a row leaves its site, and the result says how far its
        curves can be from those of all rows.
    every, until : float, optional
        A grid of equal steps, up to a last time. Without `every` the last time of the exact curves.
    least : int
        No count between 0 and this leaves a site: cells of the grid are merged until there is none.
    missing : "refuse" or "drop"
        What is done about rows with missing values.
    positive : sequence
        Values of `event` that count as the event, if it holds neither 0 and 1 nor booleans.
    over : optional
        Where the sites run, as in `fedshed.fit`.

    Returns
    -------
    SurvivalCurves
        With `summary()`, `curves`, `logrank()`, `plot()`, `to_csv()`.

    Raises
    ------
    DataError
        If the tables do not fit together; it names the site and the column.
    DisclosureError
        If a site has so few events or censorings that no grid hides them.

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
        raise ConfigError(f"least is a number of rows, not {least}")
    study = Study(
        family="cox", time=time, event=event, entry=entry, columns=(by,) if by else (),
        categories=(by,) if by else (), missing=missing, positive=tuple(positive), l2=1.0,
    )  # fmt: skip
    with _where(tables, over) as sites:
        return count(study, sites, times, last, least)


def _where(tables: Mapping[str, Any], over: Any) -> AbstractContextManager[TableSites]:
    """The sites: here, or in processes of their own."""
    if isinstance(over, ProcessSites):
        return over.start(tables)
    return nullcontext(LocalTables(tables, over or InProcess))


def count(
    study: Study, tables: TableSites, times: Vector | None, last: float | None, least: int
) -> SurvivalCurves:
    """The curves of a study whose one column, if any, has the groups."""
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
            raise ConfigError(f"{name} must be a time above 0, not {value}")
    if grid is not None:
        if every is not None or until is not None:
            raise ConfigError("give a grid of times, or its steps (every) and its end (until), not both")
        times = np.asarray(sorted(set(map(float, grid))))
        if not len(times) or not np.isfinite(times).all() or times[0] < 0 or len(times) > MOST_TIMES:
            raise ConfigError(f"a grid has 1 to {MOST_TIMES:,} times, none of them negative or infinite")
        if times[-1] == 0:
            raise ConfigError("a grid must end after time 0; add later times")
        return times, None
    if every is None:
        return None, until
    if until is None:
        raise ConfigError("a grid of equal steps needs an end; give the last time (until)")
    if until / every > MOST_TIMES:
        raise ConfigError(f"a grid has at most {MOST_TIMES:,} times; make the steps longer")
    steps = int(np.ceil(until / every * (1 - 1e-12)))
    return np.minimum(every * np.arange(1.0, steps + 1), until), None
