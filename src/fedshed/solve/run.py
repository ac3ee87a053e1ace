"""`run`: one algorithm on one problem over one transport, watched and saved, until its result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from fedshed._utils.notebook import html_table
from fedshed.algorithms.base import DIVERGED, AnyAlgorithm
from fedshed.exchange.contacts import Contact
from fedshed.exchange.groups import GroupTraffic
from fedshed.exchange.sites import Sites, Stage
from fedshed.exchange.transport import Transport
from fedshed.exchange.wire import Refusal, Traffic, Wire
from fedshed.linalg.arrays import Vector
from fedshed.protocol.conversation import Flow, Problem
from fedshed.solve.certificate import Certificate, certify
from fedshed.solve.checkpoint import Checkpoint
from fedshed.solve.engine import Outcome, Progress, iterate
from fedshed.solve.goal import Goal
from fedshed.solve.trace import Trace
from fedshed.solve.watching import Begin, Observer

R = TypeVar("R")
Watch: TypeAlias = Callable[[Progress], None]
_LOG = logging.getLogger("fedshed")


class Result(Struct, frozen=True):
    """The result of a run.

    Attributes
    ----------
    theta : array
        The coefficients, in the order of `columns`.
    converged : bool
        Whether the run reached the optimum.
    reason : str
        Why the run ended.
    certificate : Certificate
        The gradient norm, and how far from the optimum the result can be.
    trace : Trace
        One row per iteration, with costs, exchanges and bytes.
    columns : tuple of str
        The names of the coefficients.
    algorithm : str
        The algorithm, and why it was chosen.
    sites : dict
        For each agent, when it last answered, and the bytes to and from it.
    refusals : tuple
        Answers that were not used, with the reason.
    traffic : Traffic
        Exchanges and bytes of the whole run.
    answers : dict
        The exact cost and gradient of each agent at theta, without the ridge.
    hops : tuple of GroupTraffic
        The bytes within groups since the run was started or resumed.

    Attributes
    ----------
    theta : array
        The coefficients, in the order of `columns`; the intercept, if there is one, is last.
    converged : bool
        Whether theta is the pooled optimum to the tolerance that was asked for.
    reason : str
        Why the run ended, in words.
    certificate : Certificate
        The norm of the gradient at theta, and a bound or an estimate of f(theta) - f*.
    trace : Trace
        One row for each iteration: bytes, exchanges, cost, gradient norm, seconds.
    columns : tuple of str
        The names of the coefficients.
    algorithm : str
        Which algorithm ran, and why it was chosen.
    sites : dict
        When each site last answered, and the bytes to and from it.
    refusals : tuple of Refusal
        Answers that were not used, and why.
    traffic : Traffic
        Exchanges and bytes of the whole run.
    answers : dict
        f_i and g_i at theta, of each site whose answer is exact there.
    hops : tuple of GroupTraffic
        Bytes within groups since this run was started or resumed.

    Examples
    --------
    >>> import fedshed
    >>> result = fedshed.optimize(fedshed.datasets.load("digits", agents=4), l2=1e-2, algorithm="newton")
    >>> result.reason
    'the gradient norm is at most tol'
    >>> result.certificate.bound < 1e-15
    True
    """

    theta: Vector
    converged: bool
    reason: str
    certificate: Certificate
    trace: Trace
    columns: tuple[str, ...]
    algorithm: str = ""
    sites: dict[str, Contact] = {}
    refusals: tuple[Refusal, ...] = ()
    traffic: Traffic = Traffic()
    answers: dict[str, tuple[float, Vector]] = {}
    hops: tuple[GroupTraffic, ...] = ()

    def __repr__(self) -> str:
        ended = "converged" if self.converged else "NOT converged"
        said = (
            f"Result: {ended} ({self.reason}), {len(self.theta)} coefficients, "
            f"gradient norm {self.certificate.grad_norm:.1e}\n{self.trace!r}"
        )
        return "\n".join([said, *map(str, self.hops)])

    def _repr_html_(self) -> str:
        last = self.trace[-1]
        facts = {
            "converged": "yes" if self.converged else f"NO: {self.reason}", "algorithm": self.algorithm,
            "coefficients": len(self.theta), "iterations": last.iteration, "exchanges": last.exchanges,
            "bytes up": f"{last.uplink_bytes:,}", "bytes down": f"{last.downlink_bytes:,}",
            "gradient norm": self.certificate.grad_norm, "gap at most": self.certificate.bound,
        }  # fmt: skip
        return html_table([{"": name, "Result": value} for name, value in facts.items()])


def run(
    algorithm: AnyAlgorithm, problem: Problem, transport: Transport, progress: Progress, goal: Goal,
    saver: Checkpoint | None = None, watch: Watch | None = None,
) -> Result:  # fmt: skip
    """Run an algorithm from its present state to its end; `conclude` then tells the observer how it ended."""
    if isinstance(watch, Observer):
        watch.begin(_begin(algorithm, problem, goal))
    outcome = _watched(iterate(algorithm, problem, transport, progress, goal), progress, saver, watch)
    certificate = (
        Certificate(float(np.linalg.norm(outcome.gradient)), None, None)
        if outcome.reason.startswith(DIVERGED)
        else certify(problem, algorithm, outcome.state, outcome.gradient, outcome.exact)
    )
    theta, known = outcome.state.theta, outcome.state.known if outcome.exact else {}
    answers = {i: (mine.f, mine.g) for i, mine in known.items() if mine.at(theta)}
    return Result(
        theta, outcome.converged, outcome.reason, certificate, Trace(outcome.rows), problem.columns,
        sites=outcome.sites, refusals=outcome.refusals, traffic=outcome.traffic, answers=answers,
    )  # fmt: skip


def conclude(result: Result, watch: Watch | None) -> Result:
    """Tell the observer and the log how a run ended, once every check has been made."""
    if isinstance(watch, Observer):
        watch.end(result)
    _LOG.info("%s", result)
    return result


def play(
    sites: Sites, stage: Stage, problem: Problem, flow: Flow[R], traffic: Traffic, patience: int
) -> tuple[R, Traffic]:
    """Play the Master's half of a conversation that is no algorithm; the traffic goes on from what it was."""
    with sites.open(stage) as transport:
        wire = Wire(stage.conversation, problem, transport, traffic, patience=patience)
        return wire.run_conversation(flow), wire.traffic


def _begin(algorithm: AnyAlgorithm, problem: Problem, goal: Goal) -> Begin:
    """What an observer is told before the first exchange."""
    return Begin(
        type(algorithm).__name__, problem.loss, problem.n, problem.p, goal.tol, goal.max_iterations,
        float(problem.l2.min()), goal.patience,
    )  # fmt: skip


def _watched(
    rounds: Generator[Progress, None, Outcome], progress: Progress, saver: Checkpoint | None,
    watch: Watch | None,
) -> Outcome:  # fmt: skip
    """Run to the end, saving from time to time, and once more at the end or after an interrupt."""
    try:
        while True:
            try:
                progress = next(rounds)
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
