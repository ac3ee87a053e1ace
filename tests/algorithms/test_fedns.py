"""FedNS: Newton where the sketch is exact; elsewhere unbiased sketches that lead to the pooled optimum."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import fedshed
from conftest import make_federation, well_conditioned
from fedshed.algorithms.rivals.fedns import FedNS, Gaussian, LocalSketch, Srht, square_root, walsh_hadamard
from fedshed.exchange import Faulty, InProcess, Stateless
from fedshed.protocol.conversation import Problem

L2 = 1e-2
SKETCHES = [Gaussian(), Srht()]
either = pytest.mark.parametrize("sketch", SKETCHES, ids=["gaussian", "srht"])


@pytest.mark.parametrize("k", [6, 50])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_with_as_many_rows_as_the_square_root_it_is_newton(k, loss):
    federation = make_federation(loss)
    one, two = (fedshed.optimize(federation, loss=loss, algorithm=a, l2=L2) for a in (FedNS(k=k), "newton"))
    assert len(one.trace) == len(two.trace)
    np.testing.assert_allclose(one.trace.column("f"), two.trace.column("f"), rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)


def test_few_columns_are_not_sketched_and_many_get_half_as_many_rows():
    assert [FedNS().rows_of(n) for n in (6, 60, 301)] == [32, 32, 151]
    assert FedNS(k=7).rows_of(301) == 7


@pytest.mark.parametrize("m", [1, 2, 8, 32])
def test_butterflies_are_the_product_with_hadamards_matrix(m):
    x = np.random.default_rng(0).normal(size=(m, 3))
    np.testing.assert_allclose(walsh_hadamard(x), scipy.linalg.hadamard(m) @ x / np.sqrt(m), atol=1e-13)


def test_all_rows_of_a_hadamard_sketch_are_exact():
    """An orthogonal sketch changes no Gram matrix."""
    R = np.random.default_rng(0).normal(size=(11, 4))
    S = Srht()(R, 16, np.random.default_rng(1))
    np.testing.assert_allclose(S.T @ S, R.T @ R, atol=1e-13)


@either
def test_the_sketched_hessian_is_unbiased(sketch):
    """The mean of (S R)'(S R) over many draws is R'R."""
    R = np.random.default_rng(0).normal(size=(11, 3))
    drawn = [sketch(R, 4, np.random.default_rng(s)) for s in range(800)]
    grams = np.array([S.T @ S for S in drawn])
    error = grams.std(axis=0) / np.sqrt(len(grams))
    assert (np.abs(grams.mean(axis=0) - R.T @ R) <= 5 * error).all()


@pytest.mark.parametrize("rows", [3, 20])
def test_the_square_root_has_no_more_rows_than_columns_and_the_same_gram_matrix(rows):
    F = np.random.default_rng(0).normal(size=(rows, 5))
    R = square_root(F)
    assert len(R) == min(rows, 5)
    np.testing.assert_allclose(R.T @ R, F.T @ F, atol=1e-12)


@either
def test_sketches_lead_to_the_pooled_optimum_whatever_is_lost(sketch):
    federation = well_conditioned("logistic")

    def faulty(sites):
        return Faulty(InProcess(sites), lose=0.2, delay=0.15, repeat=0.2, forget=0.2, seed=0)

    result = fedshed.optimize(
        federation, algorithm=FedNS(k=4, sketch=sketch), l2=L2, tol=1e-9, transport=faulty, max_iterations=500
    )
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, fedshed.optimum(federation, l2=L2)[0], atol=1e-6)


@either
def test_draws_follow_the_seed_so_any_transport_and_a_resume_give_the_same_bits(sketch, tmp_path):
    federation, path = well_conditioned("logistic"), tmp_path / "run.ckpt"
    options = {"algorithm": FedNS(k=4, sketch=sketch), "l2": L2, "max_iterations": 12}
    here, there, other = (
        fedshed.optimize(federation, transport=transport, seed=seed, **options)
        for transport, seed in ((None, 3), (Stateless, 3), (None, 4))
    )
    fedshed.optimize(federation, seed=3, checkpoint=path, **{**options, "max_iterations": 5})
    resumed = fedshed.resume(path, federation, max_iterations=12)
    assert np.array_equal(here.theta, there.theta)
    assert np.array_equal(here.theta, resumed.theta)
    assert here.trace[-1].uplink_bytes == there.trace[-1].uplink_bytes
    assert not np.array_equal(here.theta, other.theta)


def test_a_sketch_costs_k_vectors_and_a_site_of_few_rows_sends_those():
    federation = make_federation("logistic", sizes={"a": 2, "b": 50})
    trace = fedshed.optimize(federation, algorithm=FedNS(k=4), l2=L2, max_iterations=0).trace
    assert trace[-1].uplink_vectors == pytest.approx(1 + (2 + 4) / 2)


def test_a_sketch_of_too_many_rows_is_refused():
    problem = Problem(np.full(6, L2), {"a": 1.0}, "logistic")
    answer = LocalSketch(1.0, np.zeros(6), np.zeros((5, 6)))
    assert "5 rows, not 4" in FedNS(k=4).refusal(problem, None, None, answer)
    assert FedNS(k=5).refusal(problem, None, None, answer) is None


def test_a_sketch_of_no_rows_is_refused():
    with pytest.raises(
        fedshed.ConfigError, match="k, the number of rows of a FedNS sketch, must be at least 1"
    ):
        FedNS(k=0)
