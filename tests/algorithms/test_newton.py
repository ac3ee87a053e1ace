"""Newton's method: the step of the pooled rows, from packed Hessians."""

from __future__ import annotations

import numpy as np
import pytest

import fedshed
from conftest import make_federation
from fedshed.algorithms.newton import Newton, hessian, make_definite
from fedshed.linalg import DensePlusRidge
from fedshed.linalg.arrays import unpack
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Agent, Problem
from fedshed.protocol.messages import Update

L2 = 1e-2


@pytest.fixture
def known():
    """A problem, its agents, and the Master's state with all answers at theta."""
    federation = make_federation("logistic")
    objectives = local_objectives(federation, "logistic")
    n = federation.dim
    problem = Problem(np.full(n, L2), {i: o.weight for i, o in objectives.items()}, "logistic")
    agents = {i: Agent(i, o) for i, o in objectives.items()}
    newton, theta = Newton(), np.linspace(-0.5, 0.5, n)
    state = newton.start(problem, theta)
    replies = {i: [newton.respond(agent, None, Update(1, theta), None)[1]] for i, agent in agents.items()}
    return problem, agents, newton.absorb(problem, state, replies)


def test_an_agent_sends_its_whole_hessian(known):
    _, agents, state = known
    for i, agent in agents.items():
        factor = agent.objective.at(state.theta).factor
        np.testing.assert_allclose(
            unpack(state.known[i].curvature.packed, len(state.theta)), gram(factor), rtol=1e-12, atol=1e-15
        )


def test_the_hessian_is_the_weighted_mean_with_the_ridge_and_exact_if_all_answered(known):
    problem, agents, state = known
    H = sum(problem.p[i] * gram(agent.objective.at(state.theta).factor) for i, agent in agents.items())
    v = np.linspace(1, 2, problem.n)
    np.testing.assert_allclose((H + np.diag(problem.l2)) @ hessian(problem, state).solve(v), v, rtol=1e-9)
    assert Newton().exact_curvature(problem, state) is not None
    assert Newton(precision=fedshed.Bits(8)).exact_curvature(problem, state) is None


def test_an_indefinite_matrix_is_made_definite_by_the_size_of_its_eigenvalues(known):
    problem, _, _ = known
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(problem.n, problem.n)))[0]
    values = np.linspace(-1, 2, problem.n) + 0.1
    made = make_definite(DensePlusRidge((Q * values) @ Q.T, problem.l2, problem.columns), problem)
    v = rng.normal(size=problem.n)
    expected = (Q * np.abs(values)) @ Q.T + np.diag(problem.l2)
    np.testing.assert_allclose(expected @ made.solve(v), v, rtol=1e-8)
