"""Each rival against an independent known answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from conftest import make_federation, well_conditioned
from fedshed import Federation
from fedshed.algorithms.rivals.agd import Agd, HeavyBall
from fedshed.algorithms.rivals.compressors import leading_part
from fedshed.algorithms.rivals.fednl import FedNL
from fedshed.algorithms.rivals.giant import Done, Giant
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-2
QUICK = settings(deadline=None, max_examples=40)


def iterates(algorithm, federation, loss, count, l2=L2):
    """theta^1, theta^2, ... and the states they belong to."""
    objectives = local_objectives(federation, loss)
    n = federation.dim
    problem = Problem(np.full(n, l2), {i: o.weight for i, o in objectives.items()}, loss)
    transport = InProcess({i: Site(i, o, algorithm) for i, o in objectives.items()})
    start = Progress(algorithm.start(problem, np.zeros(n)))
    run = iterate(algorithm, problem, transport, start, Goal(tol=0.0, max_iterations=count))
    return [start.state, *(progress.state for progress in run)]


def pooled(federation, loss):
    """f, g and H of the pooled rows with the ridge, by the textbook."""
    table = federation.pooled()
    (objective,) = local_objectives(Federation.from_sites({"all": (table.X, table.y)}), loss).values()

    def evaluate(theta):
        point = objective.at(theta)
        ridge = 0.5 * L2 * theta @ theta
        return point.value + ridge, point.gradient + L2 * theta, gram(point.factor) + L2 * np.eye(len(theta))

    return evaluate


def armijo(evaluate, theta, direction, alpha=0.1):
    f, g, _ = evaluate(theta)
    eta = 1.0
    while evaluate(theta + eta * direction)[0] > f + alpha * eta * (g @ direction) + 1e-15:
        eta /= 2
    return theta + eta * direction


def newton_first(federation, loss):
    return fedshed.optimize(federation, loss=loss, algorithm="newton", l2=L2, max_iterations=1).theta


# --- GIANT, determinantal averaging, DONE -------------------------------------------------------------


@pytest.mark.parametrize("name", ["giant", "giant-det", "fednl"])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_with_one_agent_the_first_step_is_newtons(name, loss):
    table = make_federation(loss).pooled()
    federation = Federation.from_sites({"all": (table.X, table.y)})
    first = fedshed.optimize(federation, loss=loss, algorithm=name, l2=L2, max_iterations=1)
    np.testing.assert_allclose(first.theta, newton_first(federation, loss), rtol=1e-10)


@pytest.mark.parametrize("name", ["giant", "giant-det"])
def test_with_identical_agents_giant_is_newton(name):
    table = make_federation("logistic").tables["large"]
    federation = Federation.from_sites(dict.fromkeys("abc", (table.X, table.y)))
    one = fedshed.optimize(federation, algorithm=name, l2=L2)
    two = fedshed.optimize(federation, algorithm="newton", l2=L2)
    assert len(one.trace) == len(two.trace)
    np.testing.assert_allclose(one.trace.column("f"), two.trace.column("f"), rtol=0, atol=1e-14)
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-9)


def test_giant_takes_the_harmonic_mean_with_weights_p():
    federation = well_conditioned("least-squares")
    states = iterates(Giant(), federation, "least-squares", 1)
    objectives = local_objectives(federation, "least-squares")
    N = sum(o.weight for o in objectives.values())
    zero = np.zeros(federation.dim)
    g = sum(o.weight / N * o.at(zero).gradient for o in objectives.values())
    inverse = sum(
        o.weight / N * np.linalg.inv(gram(o.at(zero).factor) + L2 * np.eye(len(g)))
        for o in objectives.values()
    )
    step = states[1].theta - states[0].theta
    cosine = step @ (-inverse @ g) / np.linalg.norm(step) / np.linalg.norm(inverse @ g)
    assert cosine == pytest.approx(1.0, abs=1e-12)


def test_determinants_weigh_the_local_directions():
    federation = well_conditioned("least-squares")
    states = iterates(fedshed.ALGORITHMS["giant-det"].algorithm, federation, "least-squares", 1)
    objectives = local_objectives(federation, "least-squares")
    zero = np.zeros(federation.dim)
    H = {i: gram(o.at(zero).factor) + L2 * np.eye(len(zero)) for i, o in objectives.items()}
    w = {i: o.weight * np.linalg.det(H[i]) for i, o in objectives.items()}
    g = sum(o.weight * o.at(zero).gradient for o in objectives.values()) / sum(
        o.weight for o in objectives.values()
    )
    p = sum(w[i] * np.linalg.solve(H[i], g) for i in w) / sum(w.values())
    step = states[1].theta
    np.testing.assert_allclose(step / np.linalg.norm(step), -p / np.linalg.norm(p), atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 60))
@QUICK
def test_richardson_iterations_approach_the_solve_at_their_rate(seed, iterations):
    """||x_R - H^-1 g|| <= (1 - lambda_n/lambda_1)^R ||H^-1 g||."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(8, 5))
    H, g = A.T @ A + 0.1 * np.eye(5), rng.normal(size=5)
    exact = np.linalg.solve(H, g)
    values = np.linalg.eigvalsh(H)
    error = np.linalg.norm(Done(iterations=iterations).local_direction(H, g) - exact)
    assert error <= (1 - values[0] / values[-1]) ** iterations * np.linalg.norm(exact) * (1 + 1e-9) + 1e-12


def test_giant_needs_an_exchange_for_the_global_gradient():
    trace = fedshed.optimize(well_conditioned("logistic"), algorithm="giant", l2=L2).trace
    iterations = len(trace) - 1
    assert trace[-1].rounds == 3 * iterations
    assert trace[-1].exchanges == 3 * iterations + 1
    assert trace[-1].uplink_vectors == 2 * iterations + 1


# --- FedNL --------------------------------------------------------------------------------------------


def test_fednl_with_full_rank_is_newton_one_step_late():
    """Its matrix at theta^t is the Hessian at theta^{t-1}, for t > 1."""
    federation = make_federation("logistic")
    evaluate = pooled(federation, "logistic")
    states = iterates(FedNL(channel=fedshed.Constant(6)), federation, "logistic", 8)
    theta, H = np.zeros(6), evaluate(np.zeros(6))[2]
    for state in states[1:]:
        g = evaluate(theta)[1]
        direction = -np.linalg.solve(H, g)
        H, theta = evaluate(theta)[2], armijo(evaluate, theta, direction)
        np.testing.assert_allclose(state.theta, theta, atol=1e-10)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10**6))
@QUICK
def test_the_compressor_is_the_best_approximation_of_its_rank(n, rank, seed):
    """Eckart-Young: the error in the Frobenius norm is that of the eigenvalues left out."""
    A = np.random.default_rng(seed).normal(size=(n, n))
    A = A + A.T
    values, vectors = leading_part(A, rank)
    spectrum = np.sort(np.abs(np.linalg.eigvalsh(A)))[::-1]
    error = np.linalg.norm(A - (vectors.T * values) @ vectors)
    assert error == pytest.approx(np.linalg.norm(spectrum[rank:]), abs=1e-7 * spectrum[0])


def test_fednl_counts_the_hessian_it_sends_at_the_start():
    federation = make_federation("logistic")
    n = federation.dim
    trace = fedshed.optimize(federation, algorithm="fednl", l2=L2, max_iterations=3).trace
    assert trace[1].uplink_vectors == pytest.approx((n + 1) / 2 + 1)
    assert trace[2].uplink_vectors == pytest.approx((n + 1) / 2 + 1 + 2)
    assert [row.rounds for row in trace] == [0, 3, 5, 7]
    assert trace[2].hessians == 2


def test_fednl_learns_the_hessian_at_the_optimum():
    """Without a change of theta the rank-1 corrections of a least-squares Hessian are zero."""
    states = iterates(FedNL(), make_federation("least-squares"), "least-squares", 3)
    changes = [known.curvature.change for known in states[-1].known.values()]
    assert all(change is None or not change.any() for change in changes)


# --- first order and L-BFGS ---------------------------------------------------------------------------


def test_heavy_ball_is_its_recursion_on_the_pooled_rows():
    """theta^{t+1} = theta^t + m (theta^t - theta^{t-1}) - s g, s = 1/(sum p_i lambda_1(H_i) + l2)."""
    federation = make_federation("logistic")
    evaluate = pooled(federation, "logistic")
    objectives = local_objectives(federation, "logistic")
    N = sum(o.weight for o in objectives.values())
    K = sum(
        o.weight / N * np.linalg.eigvalsh(gram(o.at(np.zeros(6)).factor))[-1] for o in objectives.values()
    )
    previous = theta = np.zeros(6)
    for state in iterates(HeavyBall(), federation, "logistic", 12)[1:]:
        theta, previous = theta + 0.95 * (theta - previous) - evaluate(theta)[1] / (K + L2), theta
        np.testing.assert_allclose(state.theta, theta, atol=1e-12)


def test_nesterov_keeps_its_bound_until_the_first_restart():
    """f(x^k) - f* <= 2 K ||x^0 - x*||^2 / (k + 1)^2 (Nesterov 1983)."""
    federation = make_federation("logistic")
    evaluate = pooled(federation, "logistic")
    theta_star, f_star = fedshed.optimum(federation, l2=L2)
    states = iterates(Agd(), federation, "logistic", 60)
    problem_K = 1 / Agd()._step_length(Problem(np.full(6, L2), {
        i: float(federation.rows[i]) for i in federation.sites}, "logistic"), states[1])  # fmt: skip
    for k, state in enumerate(states[1:], start=1):
        if state.age == 1:
            break
        gap = evaluate(state.previous)[0] - f_star
        assert gap <= 2 * problem_K * theta_star @ theta_star / (k + 1) ** 2
    assert k > 5
