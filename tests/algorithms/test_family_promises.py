"""The promises of docs/design.md hold for the other families too."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from fedshed import Federation
from fedshed.exchange import Faulty, InProcess, Stateless

ALGORITHMS = ("newton", "qn-shed", "pen")
AT_SITES = ("poisson@site(0.5)",)  # a site is not the sum of its rows
LOSSES = (
    "binomial", "negative-binomial(0.8)", "tweedie(1.5)", "probit", "cloglog",
    "inverse-gaussian", "ordinal", *AT_SITES,
)  # fmt: skip
RUN = {"l2": 1e-3, "tol": 1e-9}


def unequal(loss):
    """Sites of 3, 20 and 80 rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(103, 3))
    z = X @ [0.6, -0.4, 0.0]
    chosen = (z + rng.logistic(size=103) > 0).astype(int)
    y = {
        "binomial": rng.binomial(4, 1 / (1 + np.exp(-z))) / 4,
        "negative-binomial(0.8)": rng.negative_binomial(2, 2 / (2 + np.exp(z))),
        "poisson@site(0.5)": rng.poisson(np.exp(z)),
        "tweedie(1.5)": rng.poisson(np.exp(z)) * rng.gamma(2.0, 0.5, 103),
        "inverse-gaussian": rng.wald(np.exp(z), 20.0),
        "ordinal": np.digitize(z + rng.logistic(size=103), [-1.0, 1.0]),
    }
    return Federation.from_arrays(X, y.get(loss, chosen), np.repeat(["a", "b", "c"], [3, 20, 80]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_limit_is_the_optimum_of_the_pooled_rows(loss, algorithm):
    federation = unequal(loss)
    pooled = federation if loss in AT_SITES else Federation.from_sites({"all": federation.pooled()})
    theta, f = fedshed.optimum(pooled, loss=loss, l2=RUN["l2"])
    result = fedshed.optimize(federation, loss=loss, algorithm=algorithm, **RUN)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, theta, atol=1e-7)
    assert result.trace[-1].f == pytest.approx(f, rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_any_transport_and_a_resumed_run_give_the_same_bits(loss, tmp_path):
    settings = {"loss": loss, "algorithm": "fib-shed", **RUN}
    whole = fedshed.optimize(unequal(loss), **settings)
    again = fedshed.optimize(unequal(loss), **settings, transport=Stateless)
    np.testing.assert_array_equal(whole.theta, again.theta)
    fedshed.optimize(unequal(loss), **settings, max_iterations=2, checkpoint=tmp_path / "run")
    resumed = fedshed.resume(tmp_path / "run", unequal(loss), max_iterations=500)
    np.testing.assert_array_equal(resumed.theta, whole.theta)


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_replies_and_forgetful_agents_do_not_move_the_limit(loss):
    def faulty(sites):
        return Faulty(InProcess(sites), lose=0.1, delay=0.1, repeat=0.1, forget=0.1, seed=1)

    theta, _ = fedshed.optimum(unequal(loss), loss=loss, l2=RUN["l2"])
    result = fedshed.optimize(unequal(loss), loss=loss, algorithm="fib-shed", transport=faulty, **RUN)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, theta, atol=1e-6)
