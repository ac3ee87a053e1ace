"""What runs at the Master: `fedshed.fit` over sites that are elsewhere, conversation by conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed._utils.files import in_words, write_atomically
from fedshed.algorithms import build
from fedshed.algorithms.auto import choose
from fedshed.algorithms.base import Algorithm
from fedshed.algorithms.channels import Constant, PerAgent
from fedshed.algorithms.linesearch import Fused, TwoExchange
from fedshed.deployment.config import StudyFile, read_study
from fedshed.deployment.envelope import (
    FIT,
    INSPECT,
    LEAST,
    NAME,
    START,
    Greeting,
    Play,
    Prepare,
    Room,
    digest,
)
from fedshed.exchange import Transport
from fedshed.exchange.wire import SilenceError, Traffic, Wire
from fedshed.fitting.fit import concluded
from fedshed.fitting.model import Model
from fedshed.inference.infer import Evidence, infer_from
from fedshed.linalg.arrays import Vector
from fedshed.objectives import LOSSES, coefficient_names
from fedshed.preparation import Plan
from fedshed.preparation.messages import Ready
from fedshed.preparation.protocol import negotiate
from fedshed.protocol.codec import encode, raw
from fedshed.protocol.conversation import Problem
from fedshed.solve import checkpoint as checkpoints
from fedshed.solve.certificate import certify
from fedshed.solve.checkpoint import Checkpoint, Settings
from fedshed.solve.engine import Outcome, Progress, iterate
from fedshed.solve.inspection import inspect_sites, null_loss, null_problem
from fedshed.solve.null_start import NullStart
from fedshed.solve.optimize import Result, Watch, begin_of, watched
from fedshed.solve.trace import Trace
from fedshed.solve.watching import Observer, RunLog

UNLIMITED = 1 << 20  # eigenpairs a round over a link without a budget: more than any site has


class Report(Struct, frozen=True):
    """What a study cost: bytes as the model's run counts them, and in the envelopes the engine was given."""

    converged: bool
    algorithm: str
    theta: list[float]
    rows: dict[str, int]
    exchanges: int
    payload_up: int
    payload_down: int
    carried_up: int
    carried_down: int
    seconds: float


def conduct(
    file: StudyFile, transport: Transport, *, checkpoint: Path | None = None, watch: Watch | None = None,
    save: Callable[[Model], None] = lambda model: None,
) -> tuple[Model, Report]:  # fmt: skip
    """The model of all rows of all sites; a fit that was cut off goes on from its checkpoint.

    `save` is called with the model before the checkpoint is removed, so that one of both is always there.
    """
    began, name = time.perf_counter(), _name(checkpoint)
    await_sites(transport, file.sites, file.deadline)
    with threadpool_limits(1):  # the same bits on any machine with this BLAS
        talk = Room(transport, name, Prepare())
        plan, ready, agreed = prepared(file, talk)
        problem = posed(plan, ready, transport.stateless)
        algorithm, why = chosen(file, talk.greetings, problem, transport.stateless)
        play = Room(transport, name, playing(plan, algorithm))
        start, spent = _start(plan, problem, play)
        result = _fit(file, algorithm, problem, play, (start, spent), checkpoint, watch)
        if any(contact.silent >= file.patience for contact in result.sites.values()):
            raise SilenceError(result.reason)  # the checkpoint stays: the study can be started again
        evidence = _inspected(problem, result.theta, play)
        inference = infer_from(problem, result.theta, evidence)
    told = Traffic(downlink_bytes=talk.told + play.told)
    model = concluded(plan, replace(result, algorithm=why), inference, agreed, evidence.traffic, told)
    save(model)
    if checkpoint is not None:  # the study is over: the next is a new one
        checkpoint.unlink(missing_ok=True)
    rows = {site: each.rows for site, each in ready.items()}
    return model, _report(model, result.theta, rows, (talk, play), time.perf_counter() - began)


def _name(checkpoint: Path | None) -> bytes:
    """A study's name, drawn at random; one that goes on keeps it, and sites go on counting what they give."""
    if checkpoint is None:
        return token_bytes(NAME)
    path = checkpoint.with_name(f"{checkpoint.name}.study")
    if checkpoint.exists() and path.exists() and len(kept := path.read_bytes()) == NAME:
        return kept
    return write_atomically(path, token_bytes(NAME)).read_bytes()


def await_sites(transport: Transport, sites: tuple[str, ...], seconds: float, pause: float = 0.5) -> None:
    """Wait until every site of the study is connected."""
    until = time.monotonic() + seconds
    while missing := sorted(set(sites) - set(transport.agents())):
        if time.monotonic() > until:
            raise ProtocolError(f"sites {missing} are not connected after {seconds:g} s; are they running?")
        time.sleep(pause)


def prepared(file: StudyFile, talk: Room) -> tuple[Plan, dict[str, Ready], Traffic]:
    """The plan all sites agree on, what each said of its table, and what that took."""
    plan, ready, traffic = negotiate(file.study, talk.part(), file.sites)
    for site, greeting in talk.greetings.items():
        if greeting.name != site:
            raise ProtocolError(
                f"the node registered as {site!r} calls itself {greeting.name!r}; "
                "the name in its site.toml must be the one it is registered under"
            )
    return plan, ready, traffic


def posed(plan: Plan, ready: Mapping[str, Ready], stateless: bool) -> Problem:
    """The problem as the Master sees it."""
    columns = coefficient_names(plan.names, plan.intercept, contrasts(plan))
    weights = {site: each.weight for site, each in ready.items()}
    return Problem(np.tile(plan.l2(), contrasts(plan)), weights, plan.study.loss, columns, stateless)


def contrasts(plan: Plan) -> int:
    """Linear predictors of the model: K - 1 for a multinomial one of K classes."""
    return len(plan.classes or ()) - 1 if plan.study.loss == "multinomial" else 1


def chosen(
    file: StudyFile, sites: Mapping[str, Greeting], problem: Problem, stateless: bool
) -> tuple[Algorithm[Any], str]:
    """The algorithm and why: costs and update in one exchange, each site's uplink as its budget."""
    links = {site: greeting.uplink for site, greeting in sites.items() if greeting.uplink is not None}
    channel = PerAgent(dict(links), Constant(UNLIMITED)) if links else None
    if file.algorithm == "auto":
        algorithm, why = choose(problem.n, len(file.sites), channel, stateless)
    else:
        algorithm, why = build(file.algorithm, channel), file.algorithm
    if algorithm.losses is not None and problem.loss not in algorithm.losses:
        raise ConfigError(f"{file.algorithm} is for {', '.join(algorithm.losses)} only, not {problem.loss}")
    if isinstance(getattr(algorithm, "line_search", None), TwoExchange):
        algorithm = replace(algorithm, line_search=Fused())
    return algorithm, why


def playing(plan: Plan, algorithm: Algorithm[Any]) -> Play:
    """The stage of the fit and what belongs to it; a site builds its rows without the design's names."""
    return Play(replace(plan, names=(), terms=()), raw(algorithm))


def _start(plan: Plan, problem: Problem, play: Room) -> tuple[Vector, Traffic]:
    """The null model's intercept, as `fedshed.fit` has it, and what it took."""
    if not plan.intercept:
        return np.zeros(problem.n), Traffic()
    wire = Wire(NullStart(), problem, play.part(START), Traffic())
    return wire.play(NullStart().flow(problem)), wire.traffic


def _fit(
    file: StudyFile, algorithm: Algorithm[Any], problem: Problem, play: Room, start: tuple[Vector, Traffic],
    checkpoint: Path | None, watch: Watch | None,
) -> Result:  # fmt: skip
    limits = (file.tolerance, file.max_iterations)
    settings = Settings(problem.loss, problem.l2, False, *limits, None, rules=file.rules)
    data = digest(encode((file.study, problem))).hex()
    theta, spent = start
    progress = Progress(algorithm.start(problem, theta), spent, rows=[])
    if checkpoint is not None and checkpoint.exists():
        _, _, progress = checkpoints.load(checkpoint, data, algorithm)
        progress = replace(progress, state=algorithm.reminded(progress.state))
    saver = None if checkpoint is None else Checkpoint(checkpoint, algorithm, settings, data)
    if isinstance(watch, Observer):
        watch.begin(begin_of(algorithm, problem, settings))
    tol, most = limits
    run = iterate(
        algorithm, problem, play.part(FIT), progress, tol=tol, max_iterations=most, rules=file.rules
    )
    result = _result(algorithm, problem, watched(run, progress, saver, watch))
    if isinstance(watch, Observer):
        watch.end(result)
    return result


def _result(algorithm: Algorithm[Any], problem: Problem, outcome: Outcome) -> Result:
    certificate = certify(problem, algorithm, outcome.state, outcome.gradient, outcome.exact)
    return Result(
        outcome.state.theta, outcome.converged, outcome.reason, certificate, Trace(outcome.rows),
        problem.columns, sites=outcome.sites, refusals=outcome.refusals,
    )  # fmt: skip


def _inspected(problem: Problem, theta: Vector, play: Room) -> Evidence:
    """Exact curvature at theta, and the least loss of the null model, from its closed form on."""
    sites, traffic = inspect_sites(play.part(INSPECT), problem, theta)
    near = LOSSES[problem.loss].null_levels(np.sum([site.moments for site in sites.values()], axis=0))
    least, traffic = null_loss(play.part(LEAST), null_problem(problem, len(near)), near, traffic)
    return Evidence(sites, least, traffic)


def _report(
    model: Model, theta: Vector, rows: dict[str, int], rooms: tuple[Room, ...], took: float
) -> Report:
    run = model.run
    return Report(
        converged=run.converged,
        algorithm=run.algorithm,
        theta=theta.tolist(),
        rows=rows,
        exchanges=run.exchanges,
        payload_up=run.uplink_bytes,
        payload_down=run.downlink_bytes,
        carried_up=sum(room.up for room in rooms),
        carried_down=sum(room.down for room in rooms),
        seconds=took,
    )


def serve(folder: Path, connect: Callable[[StudyFile], Transport]) -> None:
    """Conduct the study in a Master's folder over an engine; its outcome, or why there is none, is written.

    study.toml is read; results/ gets model.json, summary.txt, trace.csv, at last report.json; or error.txt.
    """
    results = folder / "results"
    for old in ("report.json", "error.txt"):  # how an earlier attempt ended says nothing of this one
        (results / old).unlink(missing_ok=True)
    try:
        file = read_study(folder / "study.toml")
        _, report = conduct(
            file, connect(file), checkpoint=results / "checkpoint", watch=RunLog(results),
            save=lambda model: _saved(model, results),
        )  # fmt: skip
        write_atomically(results / "report.json", msgspec.json.encode(report))
    except Exception as error:
        said = in_words(error) if isinstance(error, OSError) else str(error)
        with suppress(OSError):  # the error itself is what matters
            write_atomically(results / "error.txt", f"{type(error).__name__}: {said}\n".encode())
        raise


def _saved(model: Model, results: Path) -> None:
    """Write a model and all that belongs to it."""
    model.save(results / "model.json")
    write_atomically(results / "summary.txt", f"{model.summary()}\n".encode())
    write_atomically(results / "trace.csv", (model.trace or Trace([])).to_csv().encode())
