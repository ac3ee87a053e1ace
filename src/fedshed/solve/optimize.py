"""`optimize` and `resume`: from a federation to a result, everything checked before it starts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed._utils.notebook import html_table
from fedshed.algorithms import Budget
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.linesearch import LineSearch
from fedshed.exchange import InProcess, Transport, opened
from fedshed.exchange.site import Site
from fedshed.exchange.wire import Contact, Refusal, Traffic, Wire
from fedshed.linalg.arrays import Vector
from fedshed.linalg.device import device_named
from fedshed.objectives import LinearModel, coefficient_names, local_objectives, stacked
from fedshed.objectives.batch import placed
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.precision import Precision
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve import validation as checks
from fedshed.solve.certificate import Certificate, certify
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Outcome, Progress, iterate
from fedshed.solve.null_start import NullStart
from fedshed.solve.reference import pooled_optimum
from fedshed.solve.separation import separating
from fedshed.solve.trace import Trace
from fedshed.solve.watching import Begin, Observer
from fedshed.tables import Federation

Watch = Callable[[Progress], None]
_LOG = logging.getLogger("fedshed")


class Result(Struct, frozen=True):
    """What a run gives: theta, whether and why it ended, how far it can be off, and its trace."""

    theta: Vector
    converged: bool
    reason: str
    certificate: Certificate
    trace: Trace
    columns: tuple[str, ...]
    algorithm: str = ""  # which, and why it was chosen
    sites: dict[str, Contact] = {}  # when each site last answered, and the bytes to and from it
    refusals: tuple[Refusal, ...] = ()  # answers that were not used, and why

    def __repr__(self) -> str:
        ended = "converged" if self.converged else "NOT converged"
        return (
            f"Result: {ended} ({self.reason}), {len(self.theta)} coefficients, "
            f"gradient norm {self.certificate.grad_norm:.1e}\n{self.trace!r}"
        )

    def _repr_html_(self) -> str:
        last = self.trace[-1]
        facts = {
            "converged": "yes" if self.converged else f"NO: {self.reason}", "algorithm": self.algorithm,
            "coefficients": len(self.theta), "iterations": last.iteration, "exchanges": last.exchanges,
            "bytes up": f"{last.uplink_bytes:,}", "bytes down": f"{last.downlink_bytes:,}",
            "gradient norm": self.certificate.grad_norm, "gap at most": self.certificate.bound,
        }  # fmt: skip
        return html_table([{"": name, "Result": value} for name, value in facts.items()])


def optimize(
    federation: Federation,
    *,
    loss: str = "logistic",
    l2: float | Vector = 1e-5,
    intercept: bool = False,
    algorithm: str | Algorithm[Any] = "auto",
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
    transport: Callable[[Mapping[str, Site]], Transport] | None = None,
    device: str | None = None,
    checkpoint: str | Path | None = None,
    watch: Watch | None = None,
) -> Result:
    """Minimise sum_i p_i f^(i)(theta) + theta' diag(l2) theta / 2 over the sites, p_i = N_i / N.

    `loss` is least-squares, logistic, poisson, gamma or multinomial (theta then holds K - 1 contrasts of the
    K classes, one after the other: `fedshed.objectives.contrasts`).  `l2` is one number or one for each
    column; an intercept is the last coefficient, and is not penalised by a single number.
    `algorithm` is a name (see `fedshed algorithms`), an Algorithm, or "auto", which chooses from n, the
    number of sites and the budget, and says why in `result.algorithm`. `precision` is how an agent's arrays
    travel (`Exact()`, `Bits(bits=8)`, `EntropyCoded()`). `theta0` is the start (default: 0); "null" starts
    at the intercept of the model without columns, for one exchange of a few sums more. `tol` is on the norm
    of the global gradient, `gap_tol` on f - f_star. `transport` makes a transport from the sites (default:
    all in this process). `device` is where agents of this process compute, such as "torch:cuda", for
    simulations of very many: the same to rounding, but that approximate eigenpairs are exact there
    (docs/performance.md). `checkpoint` names a file from which
    `resume` goes on; `watch` is called after every round: a function, or an `Observer` such as
    `RunLog(folder)` for `fedshed watch folder`.

    A site that does not answer in time counts with the Master's model of it where the algorithm has one, as
    long as `quorum` sites answer; else it is asked again.  One that gives no usable answer in `patience`
    exchanges in a row ends the run, which is then not converged (docs/faults.md).
    """
    objectives, problem = pose(federation, loss, l2, intercept, device)
    settings = Settings(
        loss, problem.l2, intercept, checks.tolerance(tol),
        checks.whole(max_iterations, "max_iterations"), checks.known_optimum(f_star),
        checks.gap_tolerance(gap_tol, f_star), checks.rules(quorum, patience, len(federation.sites)),
    )  # fmt: skip
    stateless = bool(getattr(transport, "stateless", False))
    chosen, why = checks.chosen(algorithm, budget, line_search, seed, loss, federation, problem.n, stateless)
    chosen = checks.with_precision(chosen, precision)
    theta = checks.start(None if isinstance(theta0, str) else theta0, problem.n)
    checks.unique_optimum(objectives, problem.l2, problem.columns)
    traffic = Traffic()
    if isinstance(theta0, str):
        checks.null_start(theta0, intercept)
        theta, traffic = _null_start(objectives, problem, transport or InProcess)
    start = Progress(chosen.start(problem, theta), traffic, rows=[])
    saver = None
    if checkpoint is not None:
        checks.new_file(checkpoint)
        saver = Checkpoint(checkpoint, chosen, settings, federation.fingerprint())
    result = _run(chosen, problem, objectives, transport or InProcess, start, settings, saver, watch)
    return replace(result, algorithm=why)


def resume(
    path: str | Path,
    federation: Federation,
    *,
    algorithm: Algorithm[Any] | None = None,
    max_iterations: int | None = None,
    tol: float | None = None,
    quorum: int | None = None,
    patience: int | None = None,
    transport: Callable[[Mapping[str, Site]], Transport] | None = None,
    device: str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Go on from a checkpoint: the same iterates, bit for bit, as a run that was never stopped.

    A run on a device goes on with the same bits on the same device.
    """
    data = federation.fingerprint()
    chosen, settings, progress = checkpoints.load(path, data, algorithm)
    if max_iterations is not None:
        settings = replace(settings, max_iterations=checks.whole(max_iterations, "max_iterations"))
    if tol is not None:
        settings = replace(settings, tol=checks.tolerance(tol))
    old = settings.rules
    rules = checks.rules(
        old.quorum if quorum is None else quorum,
        old.patience if patience is None else patience,
        len(federation.sites),
    )
    settings = replace(settings, rules=rules)
    objectives, problem = pose(federation, settings.loss, settings.l2, settings.intercept, device)
    progress = replace(progress, state=chosen.reminded(progress.state))
    saver = Checkpoint(path, chosen, settings, data)
    return _run(chosen, problem, objectives, transport or InProcess, progress, settings, saver, watch)


def optimum(
    federation: Federation, *, loss: str = "logistic", l2: float | Vector = 1e-5, intercept: bool = False
) -> tuple[Vector, float]:
    """theta* and f* of the pooled rows: what every algorithm must reach."""
    objectives, problem = pose(federation, loss, l2, intercept)
    checks.unique_optimum(objectives, problem.l2, problem.columns)
    with threadpool_limits(1):
        return pooled_optimum(objectives, problem.l2)


def pose(
    federation: Federation, loss: str, l2: float | Vector, intercept: bool, device: str | None = None
) -> tuple[dict[str, LinearModel], Problem]:
    """The local objectives, and the problem the Master sees; l2 is one number, or one for each column."""
    checks.flag(intercept, "intercept")
    local = local_objectives(checks.federation_of(federation), loss, intercept)
    objectives = stacked(local) if device is None else placed(local, device_named(device))
    width, n = federation.dim + intercept, next(iter(objectives.values())).dim
    columns = coefficient_names(federation.columns, intercept, n // width)
    entries = width if np.size(l2) < n else n  # of theta itself, or of each contrast alike
    penalty = np.tile(checks.ridge(l2, entries, intercept), n // entries)
    weights = {site: objective.weight for site, objective in objectives.items()}
    return objectives, Problem(penalty, weights, loss, columns)


def _null_start(
    objectives: Mapping[str, LinearModel],
    problem: Problem,
    connect: Callable[[Mapping[str, Site]], Transport],
) -> tuple[Vector, Traffic]:
    """The start at the model without columns, and the exchange it took."""
    sites = {name: Site(name, objective, NullStart()) for name, objective in objectives.items()}
    with opened(connect(sites)) as transport:
        wire = Wire(NullStart(), problem, transport, Traffic())
        return wire.play(NullStart().flow(problem)), wire.traffic


def _run(
    algorithm: Algorithm[Any],
    problem: Problem,
    objectives: Mapping[str, LinearModel],
    connect: Callable[[Mapping[str, Site]], Transport],
    progress: Progress,
    settings: Settings,
    saver: Checkpoint | None,
    watch: Watch | None,
) -> Result:
    codec = codec_of(algorithm, problem.n)
    sites = {name: Site(name, objective, algorithm, codec) for name, objective in objectives.items()}
    with opened(connect(sites)) as transport, threadpool_limits(1):  # the same bits wherever this BLAS is
        checks.reachable(transport, problem.agents)
        problem = replace(problem, stateless=transport.stateless)
        run = iterate(
            algorithm, problem, transport, progress,
            tol=settings.tol, max_iterations=settings.max_iterations,
            f_star=settings.f_star, gap_tol=settings.gap_tol, rules=settings.rules,
        )  # fmt: skip
        if isinstance(watch, Observer):
            watch.begin(begin_of(algorithm, problem, settings))
        outcome = watched(run, progress, saver, watch)
        certificate = certify(problem, algorithm, outcome.state, outcome.gradient, outcome.exact)
    converged, reason, theta = outcome.converged, outcome.reason, outcome.state.theta
    kernels = Counter(site.kernel for site in sites.values() if site.kernel is not None)
    if not problem.l2.all() and (names := separating(objectives, problem, theta)):
        converged, reason = False, separated(names)
    result = Result(
        theta, converged, reason, certificate, Trace(outcome.rows, kernels), problem.columns,
        sites=outcome.sites, refusals=outcome.refusals,
    )  # fmt: skip
    if isinstance(watch, Observer):
        watch.end(result)
    _LOG.info("%s", result)
    return result


def begin_of(algorithm: Algorithm[Any], problem: Problem, settings: Settings) -> Begin:
    """What an observer is told before the first exchange."""
    return Begin(
        type(algorithm).__name__, problem.loss, problem.n, problem.p, settings.tol, settings.max_iterations,
        float(problem.l2.min()), settings.rules.patience,
    )  # fmt: skip


def watched(
    run: Generator[Progress, None, Outcome], progress: Progress, saver: Checkpoint | None, watch: Watch | None
) -> Outcome:
    """Play a run to its end, saving now and then, and once more when it ends or is interrupted."""
    try:
        while True:
            try:
                progress = next(run)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
            if saver:
                saver.offer(progress)
            if watch:
                watch(progress)
    finally:
        if saver:
            saver.save_if_possible(progress)


def separated(names: tuple[str, ...]) -> str:
    """Why there is no optimum, and what to do."""
    shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
    remedy = "no row has an event: add rows that do" if names == ("intercept",) else "set l2 > 0 or drop them"
    return f"separated: the cost falls for ever along {shown}, so there is no finite optimum; {remedy}"
