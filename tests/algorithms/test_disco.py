"""DiSCO against Newton's step, and its conjugate gradients against their theory."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from fedshed.algorithms.base import SiteModel, State, gradient
from fedshed.algorithms.gradients import Scale
from fedshed.algorithms.rivals.disco import Diagonal, Disco, FirstAgent, HessianProduct
from fedshed.linalg.arrays import pack
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem

L2 = 1e-3
PRECONDITIONERS = [Diagonal(), FirstAgent(mu=1e-2)]
EXACT = [Disco(preconditioner=p, tolerance=0.0, products=12) for p in PRECONDITIONERS]
named = pytest.mark.parametrize("algorithm", EXACT, ids=["diagonal", "first agent"])


@named
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_with_as_many_products_as_columns_the_step_is_newtons(algorithm, loss):
    """Conjugate gradients end after n products; a few more correct their rounding."""
    federation = make_federation(loss)
    options = {"loss": loss, "l2": L2, "max_iterations": 1}
    one, two = (fedshed.optimize(federation, algorithm=a, **options) for a in (algorithm, "newton"))
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS, ids=["diagonal", "first agent"])
def test_least_squares_end_after_n_products(preconditioner):
    """One exchange for the gradient, n for the products, one for the search and one for the next gradient."""
    federation = make_federation("least-squares")
    algorithm = Disco(preconditioner=preconditioner, tolerance=0.0)
    result = fedshed.optimize(federation, algorithm=algorithm, loss="least-squares", l2=L2, tol=1e-8)
    assert result.converged
    assert len(result.trace) == 2
    assert result.trace[-1].exchanges <= federation.dim + 3


def solved(algorithm, federation, theta):
    """v, the number of products, the Hessian and the gradient: the generator fed with exact products."""
    objectives = local_objectives(federation, "logistic")
    problem = Problem(np.full(len(theta), L2), {i: o.weight for i, o in objectives.items()}, "logistic")
    points = {i: o.at(theta) for i, o in objectives.items()}
    H = {i: gram(point.factor) for i, point in points.items()}
    first = isinstance(algorithm.preconditioner, FirstAgent)
    known = {
        i: SiteModel(theta, p.value, p.gradient, Scale(pack(H[i]) if first else np.diag(H[i])))
        for i, p in points.items()
    }
    state = State(t=1, theta=theta, known=known)
    g, whole = (
        gradient(problem, state),
        sum(problem.p[i] * H[i] for i in problem.agents) + L2 * np.eye(len(theta)),
    )
    flow = algorithm._solve(problem, state, g)
    try:
        ask = next(flow)
        while True:
            ask = flow.send({i: (HessianProduct(H[i] @ ask.parts[0].u),) for i in problem.agents})
    except StopIteration as end:
        return *end.value, whole, g


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS, ids=["diagonal", "first agent"])
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 1e-6])
def test_the_residual_is_within_the_tolerance(preconditioner, tolerance):
    """||H v - g|| <= tolerance ||g|| (Algorithm 1)."""
    algorithm = Disco(preconditioner=preconditioner, tolerance=tolerance, products=100)
    v, products, H, g = solved(algorithm, make_federation("logistic"), 0.1 * np.arange(6.0))
    assert np.linalg.norm(H @ v - g) <= tolerance * np.linalg.norm(g) * (1 + 1e-8)
    assert products <= 12


@pytest.mark.parametrize("products", [1, 2, 3, 4])
def test_the_error_falls_at_the_rate_of_conjugate_gradients(products):
    """||v_m - v*||_H <= 2 ((sqrt(kappa) - 1)/(sqrt(kappa) + 1))^m ||v*||_H, kappa of P^-1/2 H P^-1/2."""
    v, _, H, g = solved(Disco(tolerance=0.0, products=products), make_federation("logistic"), np.zeros(6))
    d = 1 / np.sqrt(np.diag(H))
    values, exact = np.linalg.eigvalsh(H * d * d[:, None]), np.linalg.solve(H, g)
    root = np.sqrt(values[-1] / values[0])
    error, start = (np.sqrt(e @ H @ e) for e in (v - exact, exact))
    assert error <= 2 * ((root - 1) / (root + 1)) ** products * start * (1 + 1e-9)
    assert error < start


def test_a_product_costs_one_vector_and_one_exchange_and_a_hessian_is_counted_once_a_step():
    federation = make_federation("logistic")
    algorithm = Disco(tolerance=0.0, products=4)
    last = fedshed.optimize(federation, algorithm=algorithm, l2=L2, max_iterations=3).trace[-1]
    assert last.rounds == 3 * (1 + 4 + 1)
    assert last.uplink_vectors == 3 * (2 + 4) + 2  # the gradient at the last point comes with its diagonal
    assert last.hessians == 4


def test_only_the_first_agent_sends_its_hessian():
    """Its message is longer by n(n + 1)/2 numbers; the others send gradients."""
    federation = make_federation("logistic")
    first, diagonal = (
        fedshed.optimize(federation, algorithm=Disco(preconditioner=p), l2=L2, max_iterations=0).trace[-1]
        for p in PRECONDITIONERS[::-1]
    )
    assert first.uplink_bytes - diagonal.uplink_bytes == pytest.approx(8 * 21 - 3 * 8 * 6, abs=60)


@pytest.mark.parametrize("wrong", [{"tolerance": 1.0}, {"tolerance": -0.1}, {"products": 0}])
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(fedshed.ConfigError, match="disco needs"):
        Disco(**wrong)


def test_studies_refuse_it():
    from fedshed.algorithms.registry import check_for_studies

    with pytest.raises(fedshed.ConfigError, match="disco is for comparisons"):
        check_for_studies(Disco())


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 1e-3])
def test_the_solve_ends_with_the_first_residual_within_the_tolerance(tolerance):
    """Against conjugate gradients written down here: no product more than needed."""
    federation, theta = make_federation("logistic"), np.zeros(6)
    _, count, H, g = solved(Disco(tolerance=tolerance), federation, theta)
    v, r, needed = np.zeros(6), g, 0
    P = np.diag(H)
    u = r / P
    while np.linalg.norm(r) > tolerance * np.linalg.norm(g):
        alpha = (r @ (r / P)) / (u @ H @ u)
        v, after, needed = v + alpha * u, r - alpha * (H @ u), needed + 1
        u, r = after / P + (after @ (after / P)) / (r @ (r / P)) * u, after
    assert count == needed
