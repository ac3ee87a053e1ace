"""Reports of what was run: a comparison, or an experiment of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from fedshed._utils.mathematics import plain
from fedshed.algorithms.costs import rate_in_words, time_in_words
from fedshed.experiments.times import TimeMap, ranked
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives
from fedshed.report.model import Agent, Grid, Problem, Report, Rerun, Run, Spectrum, Times, versions
from fedshed.report.recorder import digits, grid

if TYPE_CHECKING:
    from fedshed.algorithms.channels import Channel
    from fedshed.experiments import Comparison
    from fedshed.experiments.plan import Figure
    from fedshed.experiments.repeats import Repeats
    from fedshed.experiments.runs import Record
    from fedshed.linalg.arrays import Vector
    from fedshed.tables import Federation

MOST_EIGENVALUES = 2000  # of a whole spectrum that is computed for a picture


def of_comparison(comparison: Comparison) -> Report:
    """The report of a comparison, with what the Master held of each agent in its first repeat."""
    data, setting, first = comparison.federation, comparison.setting, comparison.trials[0]
    best = min(comparison.results.values(), key=lambda result: float(result.trace[-1].f))
    whole = _Whole(data, setting.loss, setting.intercept, best.theta)
    ended = {one.algorithm: one for one in comparison.summary()}
    runs = [
        Run(
            name, result.trace, ended[name].reason, ended[name].converged,
            first.recorders[name].pairs() if name in first.recorders else None,
            drawn(comparison.algorithms[name], data, len(result.trace) - 1, data.dim + setting.intercept),
            whole.beside(first.recorders[name].spectra()) if name in first.recorders else (),
            tuple(trial.results[name].trace for trial in comparison.trials[1:]),
        )
        for name, result in comparison.results.items()
    ]  # fmt: skip
    hashes = {trial.federation.name: trial.federation.fingerprint() for trial in comparison.trials[:1]}
    hashes |= {
        f"{t.federation.name}, repeat {k}": t.federation.fingerprint()
        for k, t in enumerate(comparison.trials[1:], 2)
    }
    rerun = Rerun(setting.command, setting.seed, hashes, versions())
    title = comparison.title
    problem = Problem(title, tuple(runs), comparison.agents, agents_of(data), times_of(comparison.time_map()))
    return Report(title, (problem,), rerun)


def times_of(found: TimeMap | None) -> Times | None:
    """The map of the fastest algorithms, as the page shows it."""
    if found is None:
        return None
    return Times(
        tuple(map(time_in_words, found.latencies)), tuple(map(rate_in_words, found.rates)),
        tuple(tuple(name for name, _ in row) for row in found.cells),
        tuple(tuple(seconds for _, seconds in row) for row in found.cells),
        tuple(tuple(time_in_words(seconds) for _, seconds in row) for row in found.cells),
        tuple(tuple(tuple(ranked(times)) for times in row) for row in found.times),
        tuple(found.notes()),
    )  # fmt: skip


def of_experiment(plan: Figure, records: Mapping[str, Sequence[Repeats]], command: str) -> Report:
    """The report of one experiment of the paper, a problem for each of its panels."""
    from fedshed.experiments.runs import data_of

    problems, hashes = [], {}
    for panel in plan.panels:
        data, title = data_of(panel.problem), plain(panel.title)
        runs = tuple(map(_run, records[panel.title]))
        problems.append(Problem(title, runs, len(data.sites), agents_of(data)))
        hashes[title] = data.fingerprint()
    seed = plan.panels[0].problem.seed if plan.panels else 0
    title = plain(plan.heading)
    return Report(title, tuple(problems), Rerun(command, seed, hashes, versions()))


def _run(repeats: Repeats) -> Run:
    """A recorded run as the page shows it: of the first seed all, of the others their traces."""
    one, *others = repeats.records
    more = tuple(other.rows for other in others)
    return Run(plain(one.name), one.rows, _ended(one), one.converged, one.pairs, None, one.spectra, more)


def agents_of(federation: Federation) -> tuple[Agent, ...]:
    """Who holds how many rows, and of which classes."""
    return tuple(
        Agent(str(one.pop("site")), int(one.pop("rows")), {str(label): int(n) for label, n in one.items()})
        for one in federation.report()
    )


def drawn(algorithm: Any, federation: Federation, iterations: int, n: int) -> Grid | None:
    """d_t^(i), which a channel draws again: it depends on (seed, agent, t) only."""
    channel: Channel | None = getattr(algorithm, "channel", None)
    if channel is None or not iterations:
        return None
    sites, size = federation.sites, 8 * (n + 1)
    return grid(sites, range(1, iterations + 1), lambda t, i: channel.eigenpairs(t + 1, sites[i], size))


class _Whole:
    """All eigenvalues of an agent's Hessian at theta, computed once an agent."""

    def __init__(self, federation: Federation, loss: str, intercept: bool, theta: Vector) -> None:
        self._objectives = local_objectives(federation, loss, intercept)
        self._theta, self._found = theta, dict[str, tuple[float, ...]]()

    def beside(self, spectra: Sequence[Spectrum]) -> tuple[Spectrum, ...]:
        """The spectra with what the Master never saw."""
        return tuple(replace(one, whole=self._values(one.agent)) for one in spectra)

    def _values(self, agent: str) -> tuple[float, ...]:
        if agent not in self._found:
            factor = self._objectives[agent].at(self._theta).factor
            few = min(factor.shape) <= MOST_EIGENVALUES
            values = leading_eigenpairs(factor)[0] if few else np.empty(0)
            self._found[agent] = tuple(map(digits, values))
        return self._found[agent]


def _ended(record: Record) -> str:
    return "reached its gap" if record.converged else f"stopped after {record.rows[-1].iteration} iterations"
