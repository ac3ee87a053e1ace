"""`optimize` and `resume`: from a federation to a result; everything is checked before the run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed.algorithms import Budget
from fedshed.algorithms.base import AnyAlgorithm
from fedshed.algorithms.costs import HERE, Network
from fedshed.algorithms.firth import Firth
from fedshed.algorithms.linesearch import LineSearch
from fedshed.algorithms.registry import check_summable
from fedshed.exchange import InProcess
from fedshed.exchange.grouped_sites import BY_GROUPS, GroupedSites
from fedshed.exchange.groups import Group, check_groups, group_problem
from fedshed.exchange.sites import Connect, LocalSites
from fedshed.exchange.wire import Traffic
from fedshed.linalg.arrays import Vector
from fedshed.linalg.device import device_named
from fedshed.objectives import (
    LinearModel,
    coefficient_names,
    common_classes,
    family_of,
    local_objectives,
    stacked,
)
from fedshed.objectives.batch import on_device
from fedshed.objectives.build import origin
from fedshed.objectives.ordinal import threshold_names
from fedshed.protocol.conversation import Problem
from fedshed.protocol.precision import Precision
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve import validation as checks
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.reference import pooled_optimum
from fedshed.solve.run import Result, Watch, conclude, run
from fedshed.solve.separation import separated, separating
from fedshed.solve.stages import fit_stage, null_start
from fedshed.solve.trace import Trace
from fedshed.tables import Federation


def optimize(
    federation: Federation,
    *,
    loss: str = "logistic",
    l2: float | Vector = 1e-5,
    l1: float | Vector = 0.0,
    intercept: bool = False,
    algorithm: str | AnyAlgorithm = "auto",
    budget: Budget = None,
    line_search: LineSearch | None = None,
    precision: Precision | None = None,
    theta0: Vector | Literal["null"] | None = None,
    max_iterations: int = 500,
    tol: float = 1e-9,
    f_star: float | None = None,
    gap_tol: float | None = None,
    seed: int = 0,
    quorum: int = 1,
    patience: int = 20,
    groups: Sequence[Group] = (),
    transport: Connect | None = None,
    network: Network | None = None,
    device: str | None = None,
    checkpoint: str | Path | None = None,
    watch: Watch | None = None,
) -> Result:
    """Minimise sum_i p_i f^(i)(theta) + theta' diag(l2) theta / 2 + l1'|theta| over the sites.

    f^(i) is the mean loss of the rows of site i, and p_i = N_i / N is its share of all rows.

    Parameters
    ----------
    federation : Federation
        The rows of each site.
    loss : str, default "logistic"
        The loss, such as "least-squares", "logistic", "poisson", "gamma" or "multinomial". With "multinomial"
        theta holds K - 1 contrasts of the K classes, one after the other (`fedshed.objectives.contrasts`).
    l2 : float or array, default 1e-5
        The ridge on the mean loss: one number, or one per column.
    l1 : float or array, default 0.0
        The absolute penalty (lasso) on the mean loss, in the same form; with both it is the elastic net. It
        sets coefficients to 0, and is for newton and the SHED family (docs/selection.md).
    intercept : bool, default False
        Whether to add an intercept as the last coefficient; a single number `l2` or `l1` does not penalise
        it.
    algorithm : str or Algorithm, default "auto"
        A name (see `fedshed algorithms`), an instance, or "auto". "auto" estimates, for the size of the
        problem and the network, which algorithm ends first, and gives the reason in `result.algorithm`
        (docs/cost.md).
    budget : int or Channel, optional
        The number of eigenpairs per round and site. Default: that of the algorithm. An algorithm whose
        messages have a fixed size refuses a budget.
    line_search : LineSearch, optional
        `TwoExchange()` or `Fused()`. Default: that of the algorithm.
    precision : Precision, optional
        How precisely an agent's arrays travel: `Exact()`, `Bits(bits=8)`, `EntropyCoded()`. Default: that of
        the algorithm.
    theta0 : array or "null", optional
        The starting point. "null" starts at the intercept of the model without columns, which costs one more
        exchange of a few sums. Default: 0.
    max_iterations : int, default 500
        Stop after this many iterations.
    tol : float, default 1e-9
        The run has converged when the norm of the global gradient is at most this number; with `l1`, the norm
        of the subgradient of least norm.
    f_star, gap_tol : float, optional
        The optimal cost, for the column `gap` of the trace, and the gap f - f_star at which to stop.
    seed : int, default 0
        The seed of random draws, such as those of fading links.
    quorum, patience : int, default 1 and 20
        A round continues once `quorum` sites have answered; the Master uses its model of the other sites if
        the algorithm has one. A site without a usable answer in `patience` exchanges in a row ends the run,
        which has then not converged (docs/faults.md).
    groups : sequence of Group, optional
        Groups of sites, each of which appears to the Master as one agent, for algorithms that need only sums
        (docs/scale.md). A site outside all groups stays an agent. `result.hops` counts the bytes within
        groups.
    transport : callable, optional
        A function that makes a transport from the sites or groups. Default: all sites are in this process.
    network : Network, optional
        The latency and rate that "auto" assumes. Default: without `transport`, none, and CPU seconds count;
        with a `transport`, 50 ms and 10 Mbit/s.
    device : str, optional
        The device on which agents of this process compute, such as "torch:cuda", for simulations of very many
        agents. Results agree to rounding, except that approximate eigenpairs are exact there
        (docs/performance.md).
    checkpoint : path, optional
        A file that the run writes and from which `resume` continues.
    watch : callable, optional
        A function that is called with the progress after every round; `RunLog(folder)` writes it for
        `fedshed watch folder`.

    Returns
    -------
    Result
        The coefficients theta, whether and why the run ended, a certificate of the error, and the trace.

    Raises
    ------
    ConfigError
        If parameters cannot work; nothing has been sent then.
    DataError
        If a table does not suit the loss.
    SingularError
        If the optimum is not unique, for example with collinear columns that are not penalised.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> result = fedshed.optimize(federation, l2=1e-2, algorithm="newton")
    >>> result.converged, result.trace[-1].exchanges
    (True, 13)
    """
    objectives, problem = build_problem(federation, loss, l2, intercept, device, l1)
    sites, problem = agents_of(objectives, problem, groups, transport or InProcess)
    goal = checks.goal(tol, max_iterations, f_star, gap_tol, quorum, patience, len(problem.agents))
    between = HERE if network is None and sites.one_process else network
    chosen, why = checks.choose_algorithm(
        algorithm, budget, line_search, seed, problem, sites.stateless, between,
        entries=checks.stored_entries(objectives), protected=bool(groups),
    )  # fmt: skip
    chosen = checks.with_precision(chosen, precision)
    if groups:
        check_summable(chosen, BY_GROUPS, budget)
    theta = checks.start(None if isinstance(theta0, str) else theta0, problem.n)
    if theta0 is None:
        theta = origin(loss, problem.columns, problem.n)
    checks.unique_optimum(objectives, problem.penalised, problem.columns)
    traffic = Traffic()
    if isinstance(theta0, str):
        checks.null_start(theta0, intercept or family_of(loss).classes == "ordered")
        theta, traffic = null_start(sites, problem)
    start = Progress(chosen.start(problem, theta), traffic, rows=[])
    saver = None
    if checkpoint is not None:
        checks.new_file(checkpoint)
        settings = Settings(loss, problem.l2, intercept, goal, problem.l1, tuple(groups))
        saver = Checkpoint(checkpoint, chosen, settings, federation.fingerprint())
    result = _solve(chosen, problem, objectives, sites, start, goal, saver, watch)
    return replace(result, algorithm=why)


def resume(
    path: str | Path,
    federation: Federation,
    *,
    algorithm: AnyAlgorithm | None = None,
    max_iterations: int | None = None,
    tol: float | None = None,
    quorum: int | None = None,
    patience: int | None = None,
    transport: Connect | None = None,
    device: str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Continue a run from a checkpoint, with the same iterates, bit for bit, as if it had never been stopped.

    Parameters
    ----------
    path : path
        The file that `optimize(..., checkpoint=path)` wrote.
    federation : Federation
        The same rows as before; other rows are refused.
    algorithm : Algorithm, optional
        The algorithm; needed only if it is not part of fedshed.
    max_iterations, tol, quorum, patience : optional
        New values of these parameters of `optimize`. Default: those that the run started with.
    transport, device, watch
        As in `optimize`. A run on a device continues with the same bits on the same device.

    Returns
    -------
    Result
        The result of the whole run, with all rows of its trace.

    Raises
    ------
    ConfigError
        If there is no such file, or it is a checkpoint of another version, other data or another algorithm.
    CodecError
        If the file is not a checkpoint.

    Examples
    --------
    >>> import fedshed, tempfile, pathlib
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "checkpoint"
    >>> cut = fedshed.optimize(federation, l2=1e-2, max_iterations=3, checkpoint=path)
    >>> fedshed.resume(path, federation, max_iterations=500).converged
    True
    """
    data = federation.fingerprint()
    chosen, settings, progress = checkpoints.load(path, data, algorithm)
    old = settings.goal
    changed = {"max_iterations": max_iterations, "tol": tol, "quorum": quorum, "patience": patience}
    wanted = {name: getattr(old, name) if new is None else new for name, new in changed.items()}
    objectives, problem = build_problem(
        federation, settings.loss, settings.l2, settings.intercept, device, settings.l1
    )
    sites, problem = agents_of(objectives, problem, settings.groups, transport or InProcess)
    goal = checks.goal(f_star=old.f_star, gap_tol=old.gap_tol, sites=len(problem.agents), **wanted)
    progress = replace(progress, state=chosen.assume_forgotten(progress.state))
    saver = Checkpoint(path, chosen, replace(settings, goal=goal), data)
    return _solve(chosen, problem, objectives, sites, progress, goal, saver, watch)


def agents_of(
    objectives: Mapping[str, LinearModel], problem: Problem, groups: Sequence[Group], connect: Connect
) -> tuple[LocalSites, Problem]:
    """Where the rows are, and the problem with the agents that the Master asks: sites, or groups of them."""
    if not groups:
        return LocalSites(objectives, connect), problem
    checked = check_groups(groups, problem.agents)
    return GroupedSites(objectives, checked, connect), group_problem(problem, checked)


def optimum(
    federation: Federation, *, loss: str = "logistic", l2: float | Vector = 1e-5, intercept: bool = False
) -> tuple[Vector, float]:
    """The optimum theta* and f* of the pooled rows, which every algorithm must reach.

    Parameters
    ----------
    federation : Federation
        The rows of each site.
    loss, l2, intercept
        As in `optimize`.

    Returns
    -------
    tuple of array and float
        theta* and f*, computed by Newton's method on all rows at once.

    Raises
    ------
    SingularError
        If the optimum is not unique.

    Examples
    --------
    >>> import fedshed
    >>> federation = fedshed.datasets.load("digits", agents=4)
    >>> theta, f = fedshed.optimum(federation, l2=1e-2)
    >>> len(theta), round(f, 3)
    (64, 0.213)
    """
    objectives, problem = build_problem(federation, loss, l2, intercept)
    checks.unique_optimum(objectives, problem.l2, problem.columns)
    with threadpool_limits(1):
        return pooled_optimum(objectives, problem.l2)


def build_problem(
    federation: Federation, loss: str, l2: float | Vector, intercept: bool, device: str | None = None,
    l1: float | Vector | None = None,
) -> tuple[dict[str, LinearModel], Problem]:  # fmt: skip
    """The local objectives, and the problem the Master sees; l2 is one number, or one for each column."""
    checks.flag(intercept, "intercept")
    checks.parameter_given(loss)
    local = local_objectives(checks.federation_of(federation), loss, intercept)
    objectives = stacked(local) if device is None else on_device(local, device_named(device))
    n = next(iter(objectives.values())).dim
    if family_of(loss).classes == "ordered":
        return objectives, _ordered(federation, objectives, loss, l2, l1)
    width = federation.dim + intercept
    columns = coefficient_names(federation.columns, intercept, n // width)
    entries = width if np.size(l2) < n else n  # of theta itself, or of each contrast alike
    penalty = np.tile(checks.ridge(l2, entries, intercept), n // entries)
    weights = {site: objective.weight for site, objective in objectives.items()}
    lasso = None if l1 is None else checks.absolute(l1, n, intercept, loss)
    return objectives, Problem(penalty, weights, loss, columns, l1=lasso)


def _ordered(
    federation: Federation, objectives: Mapping[str, LinearModel], loss: str, l2: float | Vector,
    l1: float | Vector | None,
) -> Problem:  # fmt: skip
    """The problem of ordered classes: thresholds come last, and penalties of the columns leave them free."""
    classes = common_classes(family_of(loss), [federation.tables[site].y for site in federation.sites])
    names = threshold_names(classes or ())
    n = federation.dim + len(names)
    weights = {site: objective.weight for site, objective in objectives.items()}
    lasso = checks.absolute(_with_thresholds(0.0 if l1 is None else l1, "l1", n, len(names)), n, False, loss)
    ridge = checks.ridge(_with_thresholds(l2, "l2", n, len(names)), n, False)
    return Problem(ridge, weights, loss, (*federation.columns, *names), l1=lasso)


def _with_thresholds(penalty: float | Vector, name: str, n: int, thresholds: int) -> Vector:
    """A penalty for each coefficient: 0 for thresholds, unless there is a number for each of them, too."""
    if thresholds and np.ndim(penalty) and np.size(penalty) == n:
        return np.asarray(penalty)
    return np.append(checks.ridge(penalty, n - thresholds, False, name), np.zeros(thresholds))


def _solve(
    algorithm: AnyAlgorithm, problem: Problem, objectives: Mapping[str, LinearModel], sites: LocalSites,
    progress: Progress, goal: Goal, saver: Checkpoint | None, watch: Watch | None,
) -> Result:  # fmt: skip
    """The run, and whether the point where it ended is an optimum."""
    with sites.open(fit_stage(algorithm)) as transport, threadpool_limits(1):  # the same bits with this BLAS
        checks.reachable(transport, problem.agents)
        problem = replace(problem, stateless=transport.stateless)
        result = run(algorithm, problem, transport, progress, goal, saver, watch)
    hops = sites.traffic() if isinstance(sites, GroupedSites) else ()
    result = replace(result, trace=Trace(tuple(result.trace), sites.kernels()), hops=hops)
    firth = isinstance(algorithm, Firth)  # finite where the data are separated
    if not firth and not problem.penalised.all() and (names := separating(objectives, problem, result.theta)):
        result = replace(result, converged=False, reason=separated(names, problem.loss))
    return conclude(result, watch)
