"""`fit`: from a table at each site to the pooled model with its standard errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fedshed._utils.errors import ConfigError
from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.costs import Network
from fedshed.exchange import InProcess
from fedshed.exchange.groups import Group
from fedshed.exchange.processes import Processes, ProcessGroup
from fedshed.exchange.sites import Connect
from fedshed.fitting.conduct import conduct
from fedshed.fitting.grouped import GroupedTables, check_grouped
from fedshed.fitting.model import Model
from fedshed.fitting.process_sites import ProcessSites
from fedshed.fitting.protected_study import fit_protected
from fedshed.fitting.sites import LocalTables, TableSites
from fedshed.inference.result import RowRobust
from fedshed.preparation import Study
from fedshed.solve import validation as checks
from fedshed.solve.run import Watch


def fit(
    tables: Mapping[str, Any],
    study: Study,
    *,
    algorithm: str | Algorithm[Any] = "auto",
    budget: Budget = None,
    tol: float = 1e-9,
    max_iterations: int = 500,
    seed: int = 0,
    errors: RowRobust | None = None,
    groups: Sequence[Group] = (),
    over: Connect | ProcessSites | None = None,
    transport: Connect | None = None,
    network: Network | None = None,
    watch: Watch | None = None,
) -> Model:
    """The model of all rows of all tables, one for each site, which stay where they are.

    Parameters
    ----------
    tables : mapping
        The table of each site: a pandas or polars frame, an Arrow table, or a dict of arrays.
    study : Study
        Which model of which columns. With `protected=True` the sites are simulated here with real masks, each
        replays the study, and only sums over all of them are used; it needs lists of levels and classes.
    algorithm, budget, tol, max_iterations, seed
        As in `fedshed.optimize`; with all sites in this process "auto" takes what needs least time.
    errors : "HC0", "HC1", "HC2", "HC3" or "cluster", optional
        Robust errors by rows, or by the study's column `cluster` within the sites, for one more exchange;
        `summary(robust="HC3")` shows them. HC2 and HC3 send the inverse information to the sites, for the
        leverages. Errors clustered by site come without asking.
    groups : sequence of Group, optional
        Groups of sites that are one agent each to the Master, which then sees only their sums
        (docs/scale.md). In the preparation every site is asked. `model.run.hops` has the bytes within groups.
    over : optional
        Where the sites run: by default all in this process; `ProcessSites()` starts a process for each; or
        what makes a transport from the sites, such as `fedshed.exchange.Stateless`.
    transport : optional
        The former name of `over`.
    network : Network, optional
        Latency and rate that "auto" reckons with, as in `fedshed.optimize`; not for protected studies.
    watch : callable, optional
        Called with the progress after every round; a `RunLog` writes it down.

    Returns
    -------
    Model
        With `summary()`, `predict(table)`, `save(path)`.

    Raises
    ------
    DataError
        Before any gradient is computed, if the tables do not fit together or the study; it names the site and
        the column.
    SingularError
        If columns are collinear over all sites and not penalised.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.9, 1.7], "y": [1.0, 1.9, 3.2]}
    >>> tables = {"north": north, "south": {"x": [0.4, 1.2], "y": [1.2, 2.4]}}
    >>> model = fedshed.fit(tables, fedshed.Study(family="linear", target="y"))
    >>> model.converged, round(model.coefficients["x"], 2)
    (True, 1.41)
    """
    if transport is not None:
        warnings.warn("transport= of fit is now called over=", DeprecationWarning, stacklevel=2)
        over = transport if over is None else over
    if study.grid:
        raise ConfigError(
            "grid is for deployed studies; here fedshed.survival gives the curves: leave it out"
        )
    goal = checks.goal(tol, max_iterations, None, None, 1, 20, len(tables) or 1)
    if groups:
        check_grouped(study, over)
    if study.protected:
        if over is not None or budget is not None:
            raise ConfigError("a protected study has no budget, and runs in this process; leave out both")
        return fit_protected(tables, study, goal, algorithm=algorithm, errors=errors, watch=watch).model
    with where_tables_are(tables, over, groups) as sites:
        done = conduct(
            study, sites, goal, algorithm=algorithm, budget=budget, seed=seed, errors=errors, watch=watch,
            network=network,
        )  # fmt: skip
    return sites.told_of(done.model) if isinstance(sites, GroupedTables) else done.model


def where_tables_are(
    tables: Mapping[str, Any], over: Connect | ProcessSites | None, groups: Sequence[Group] = ()
) -> AbstractContextManager[TableSites]:
    """The sites of tables: in this process, in processes of their own, or over a transport."""
    if isinstance(over, ProcessSites):
        return over.start(tables)
    if not callable(over or InProcess) or over in (ProcessSites, ProcessGroup, Processes):
        raise ConfigError("over is ProcessSites(), or what makes a transport from sites, such as Stateless")
    if groups:
        return nullcontext(GroupedTables(tables, groups, over or InProcess))
    return nullcontext(LocalTables(tables, over or InProcess))
