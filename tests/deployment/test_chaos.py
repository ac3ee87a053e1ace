"""Sites killed and stalled, the Master killed twice: what `python -m benchmarks chaos` does on 20 seeds."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.chaos import federation, flaws_of, run
from msgspec.structs import replace

from fedshed.algorithms.base import SiteModel
from fedshed.algorithms.shed_curvature import SharedCurvature
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives


@pytest.mark.parametrize("seed", [0, 4])  # an algorithm that can do without a site, and one that cannot
def test_whoever_is_killed_the_run_ends_at_the_pooled_optimum(seed):
    report = run(seed, trouble=1.5)
    assert report.converged, report
    assert report.error <= 1e-8
    assert report.flaws == 0
    assert report.masters == 2
    assert report.kills > 0
    assert report.stalls > 0


def test_a_hole_or_a_silent_difference_would_be_found():
    """The chaos run's own judge: it passes the truth, and nothing else."""
    objective = local_objectives(federation(0), "logistic")["cork"]
    theta = np.full(6, 0.3)
    point = objective.at(theta)
    values, vectors = leading_eigenpairs(point.factor)
    held = SharedCurvature(1, theta, values[:3], vectors[:3], float(values[3]), False, t=1)
    known = SiteModel(theta, point.value, point.gradient, held)
    assert list(flaws_of(objective, known, exact=True)) == []
    hole = replace(held, values=values[[0, 1, 3]], vectors=vectors[[0, 1, 3]])
    for other in (
        replace(known, f=known.f + 1e-9),
        replace(known, g=known.g + 1e-9),
        replace(known, curvature=hole),
        replace(known, curvature=replace(held, theta_k=theta + 0.1)),
    ):
        assert list(flaws_of(objective, other, exact=True))
