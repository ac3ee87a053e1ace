"""`fit`: the pooled model of the tables of all sites, with its standard errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fedshed._utils.errors import ConfigError
from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
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
    algorithm: str | AnyAlgorithm = "auto",
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
    """Fit the pooled model of the tables of all sites; each table stays at its site.

    Parameters
    ----------
    tables : mapping
        The table of each site: a pandas or polars frame, an Arrow table, or a dict of arrays.
    study : Study
        The model and its columns. With `protected=True` the protected study is simulated in this process with
        real masks: every site verifies the requests, and only sums over all sites are used. The study must
        then list levels and classes.
    algorithm : str or Algorithm, default "auto"
        The algorithm, as in `fedshed.optimize`. If all sites are in this process, "auto" chooses the one that
        needs the least time.
    budget : int, str or channel, optional
        Eigenpairs per round, as in `fedshed.optimize`.
    tol : float, default 1e-9
        The fit stops when the norm of the gradient is below this number.
    max_iterations : int, default 500
        The largest number of iterations.
    seed : int, default 0
        The seed of an algorithm that draws random numbers.
    errors : "HC0" to "HC3", "HC0-expected" to "HC3-expected" or "cluster", optional
        Robust standard errors by rows, or by the study's column `cluster` within the sites. They take one
        more exchange, and `summary(robust="HC3")` shows them. HC2 and HC3 send the inverse information to the
        sites, which need it for the leverages. "HC3" uses the Hessian, as statsmodels does, and
        "HC3-expected" the expected information, as R's sandwich does; they differ for links that are not
        canonical. Errors clustered by site are always computed.
    groups : sequence of Group, optional
        Groups of sites. The Master treats each group as one agent and sees only its sums (docs/scale.md); in
        the preparation it asks every site. `model.run.hops` has the bytes within groups.
    over : ProcessSites or callable, optional
        Where the sites run. Default: all in this process. `ProcessSites()` starts a process for each site; a
        callable makes a transport from the sites, such as `fedshed.exchange.Stateless`.
    transport : callable, optional
        The former name of `over`.
    network : Network, optional
        The latency and rate that "auto" assumes, as in `fedshed.optimize`; not for protected studies.
    watch : callable, optional
        Called with the progress after every round, such as a `RunLog`, which writes it to a file.

    Returns
    -------
    Model
        The fitted model, with `summary()`, `predict(table)` and `save(path)`.

    Raises
    ------
    ConfigError
        If options contradict each other or the study.
    DataError
        If the tables do not agree with each other or with the study; the message names the site and the
        column. It is raised before any gradient is computed.
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
        warnings.warn(
            "the parameter transport of fit is now called over; use over=", DeprecationWarning, stacklevel=2
        )
        over = transport if over is None else over
    if study.grid:
        raise ConfigError(
            "grid applies to deployed studies only; leave it out, and use fedshed.survival for the curves"
        )
    goal = checks.goal(tol, max_iterations, None, None, 1, 20, len(tables) or 1)
    if groups:
        check_grouped(study, over)
    if study.protected:
        if over is not None or budget is not None:
            raise ConfigError(
                "a protected study has no budget and runs in this process; leave out budget and over"
            )
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
    """The sites of tables: in this process, in separate processes, or over a transport."""
    if isinstance(over, ProcessSites):
        return over.start(tables)
    if not callable(over or InProcess) or over in (ProcessSites, ProcessGroup, Processes):
        raise ConfigError(
            "over must be ProcessSites() or a callable that makes a transport from sites, such as Stateless"
        )
    if groups:
        return nullcontext(GroupedTables(tables, groups, over or InProcess))
    return nullcontext(LocalTables(tables, over or InProcess))
