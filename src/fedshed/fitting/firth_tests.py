"""Tests by Firth's penalised likelihood, with each term held at 0 under the penalty of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from fedshed._utils.errors import ConfigError
from fedshed.algorithms.firth import Firth
from fedshed.exchange.sites import Sites
from fedshed.exchange.wire import Traffic
from fedshed.fitting.conduct import problem_of
from fedshed.fitting.sites import LocalTables
from fedshed.fitting.term_tests import Tests, judged
from fedshed.linalg.arrays import Vector
from fedshed.linalg.threads import one_thread
from fedshed.preparation import Study, negotiate
from fedshed.protocol.conversation import Problem
from fedshed.solve import validation as checks
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.run import Result, run
from fedshed.solve.stages import fit_stage


def firth_tests(
    tables: Mapping[str, Any], study: Study, *, tol: float = 1e-9, max_iterations: int = 500
) -> Tests:
    """Penalised likelihood-ratio tests of all terms, as R's `logistf` reports them; one fit per term.

    The statistic is 2 (log L* - log L*_0), where L* is the maximum of the penalised likelihood, and L*_0 its
    maximum with the coefficients of the term held at 0. Both have the penalty of the whole model (Heinze and
    Schemper 2002, Statist. Med. 21, 2409). Prefer this test to Wald's test if the data are separated.

    Parameters
    ----------
    tables : mapping
        The table of each site, as in `fedshed.fit`; all sites are in this process.
    study : Study
        The model and its columns, with `firth=True`.
    tol : float, default 1e-9
        Each fit stops when the norm of the gradient is below this number.
    max_iterations : int, default 500
        The largest number of iterations of each fit.

    Returns
    -------
    Tests
        One chi2 test for each term.

    Raises
    ------
    ConfigError
        If the study does not have Firth's penalty or is protected, or a fit did not converge.

    Examples
    --------
    >>> import fedshed
    >>> north = {"x": [0.1, 0.4, 0.9, 1.7], "y": [0, 0, 1, 1]}
    >>> tables = {"north": north, "south": {"x": [0.2, 1.2], "y": [0, 1]}}
    >>> study = fedshed.Study(family="logistic", target="y", firth=True)
    >>> round(fedshed.firth_tests(tables, study)["x"].p_value, 3)
    0.041
    """
    if not study.firth or study.protected:
        raise ConfigError(
            "firth_tests needs a study with firth = true and without protected; set firth, or use fedshed.fit"
        )
    goal = checks.goal(tol, max_iterations, None, None, 1, 20, len(tables) or 1)
    sites = LocalTables(tables)
    with one_thread():
        with sites.prepare() as transport:
            plan, ready, _ = negotiate(study, transport, sites.names, goal.patience)
        problem = problem_of(plan, ready, False)
        played = sites.play(plan, problem, Firth())
        best = _fitted(problem, played, goal, np.zeros(problem.n), ())
        weight, found = sum(problem.weights.values()), []
        for term in dict.fromkeys(plan.terms):
            fixed = tuple(j for j, name in enumerate(plan.terms) if name == term)
            start = best.theta.copy()
            start[list(fixed)] = 0.0
            without = _fitted(problem, played, goal, start, fixed)
            chi2 = 2 * weight * (without.trace[-1].f - best.trace[-1].f)
            found.append(judged(term, max(chi2, 0.0), len(fixed), inf))
    return Tests(tuple(found))


def _fitted(problem: Problem, sites: Sites, goal: Goal, start: Vector, fixed: tuple[int, ...]) -> Result:
    """The maximum of the penalised likelihood with the fixed coefficients held at their start."""
    algorithm = Firth(fixed=fixed)
    with sites.open(fit_stage(algorithm)) as transport:
        progress = Progress(algorithm.start(problem, start), Traffic(), rows=[])
        result = run(algorithm, problem, transport, progress, goal)
    if not result.converged:
        held = f" without {problem.columns[fixed[0]]!r}" if fixed else ""
        raise ConfigError(f"Firth's fit{held} did not converge: {result.reason}; increase max_iterations")
    return result
