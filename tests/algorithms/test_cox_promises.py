"""The promises of docs/design.md hold for Cox regression too, by the algorithms that `auto` chooses among."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import Federation
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.tables.survival import survival

ALGORITHMS = ("newton", "fib-shed", "qn-shed", "pen", "lbfgs")
L2 = 1e-3


def unequal(sizes=(3, 40, 300)):
    """Sites of 3, 40 and 300 rows with many ties and late entries; the first has no event."""
    rng = np.random.default_rng(0)
    tables = {}
    for site, rows in zip("abc", sizes, strict=True):
        X = rng.normal(size=(rows, 4))
        time = np.ceil(20 * rng.exponential(np.exp(-X @ [0.8, -0.5, 0.2, 0.0])))
        y = survival(
            time, rng.random(rows) < 0.7 * (site != "a"), np.where(rng.random(rows) < 0.3, time // 2, -1)
        )
        tables[site] = X, y
    return Federation.from_sites(tables)


@pytest.mark.parametrize(
    ("algorithm", "loss"), [*((name, "cox") for name in ALGORITHMS), ("newton", "cox-breslow")]
)
def test_the_limit_is_the_optimum_of_the_pooled_rows_with_sites_as_strata(algorithm, loss):
    pooled = unequal().pooled()
    theta, f = fedshed.optimum(Federation.from_sites({"all": pooled}), loss=loss, l2=L2)
    result = fedshed.optimize(unequal(), loss=loss, l2=L2, algorithm=algorithm, tol=1e-11)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, theta, atol=1e-8)
    assert result.trace[-1].f == pytest.approx(f, rel=1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_transport_and_a_resumed_run_give_the_same_bits(algorithm, tmp_path):
    settings = {"loss": "cox", "l2": L2, "algorithm": algorithm, "tol": 1e-10}
    whole = fedshed.optimize(unequal(), **settings)
    again = fedshed.optimize(unequal(), **settings, transport=Stateless)
    np.testing.assert_array_equal(whole.theta, again.theta)
    half = {**settings, "max_iterations": 2, "checkpoint": tmp_path / "run"}
    fedshed.optimize(unequal(), **half)
    np.testing.assert_array_equal(
        fedshed.resume(tmp_path / "run", unequal(), max_iterations=500).theta, whole.theta
    )


def test_lost_replies_and_forgetful_agents_do_not_move_the_limit():
    def faulty(sites):
        return Faulty(InProcess(sites), lose=0.1, delay=0.1, repeat=0.1, forget=0.1, seed=1)

    theta, _ = fedshed.optimum(unequal(), loss="cox", l2=L2)
    result = fedshed.optimize(unequal(), loss="cox", l2=L2, algorithm="fib-shed", transport=faulty)
    assert result.converged
    np.testing.assert_allclose(result.theta, theta, atol=1e-7)
