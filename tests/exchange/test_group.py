"""A group answers for its members as one site would that holds all their rows."""

import numpy as np
import pytest
from tests.inference_problems import LOSSES, SITES, made

import fedshed
from fedshed.algorithms import build
from fedshed.algorithms.newton import Newton
from fedshed.exchange.group import Relay
from fedshed.exchange.inprocess import InProcess
from fedshed.exchange.site import Site
from fedshed.exchange.sums import ALL, scaling_of
from fedshed.exchange.wire import Traffic
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Costs, Declined, Search, Undefined, Update
from fedshed.solve.engine import Progress
from fedshed.solve.goal import Goal
from fedshed.solve.optimize import build_problem
from fedshed.solve.run import run


def grouped(conversation, objectives, problem):
    """The group of these sites, and its problem of one agent."""
    together = Problem(problem.l2, {ALL: sum(problem.weights.values())}, problem.loss, problem.columns)
    members = {i: Site(i, model, conversation) for i, model in objectives.items()}
    scalings = {i: scaling_of(together, model.weight) for i, model in objectives.items()}
    return Relay(members, conversation, problem.n, scalings), together


def federation(loss, scale=1.0):
    X, y, weights, offset = made(loss)
    return fedshed.Federation.from_arrays(X * scale, y, SITES, sample_weight=weights, offset=offset)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["newton", "lbfgs", "agd"])
def test_a_fit_of_a_group_is_the_fit_of_its_members(loss, name):
    objectives, problem = build_problem(federation(loss), loss, 1e-2, intercept=True)
    algorithm, goal = build(name), Goal(tol=1e-10, max_iterations=25)
    group, together = grouped(algorithm, objectives, problem)
    one = run(algorithm, together, InProcess({ALL: group}), _start(algorithm, together), goal)
    members = {i: Site(i, model, algorithm) for i, model in objectives.items()}
    each = run(algorithm, problem, InProcess(members), _start(algorithm, problem), goal)
    assert one.trace[-1].exchanges == each.trace[-1].exchanges
    np.testing.assert_allclose(one.trace[-1].f, each.trace[-1].f, rtol=1e-12)
    np.testing.assert_allclose(one.theta, each.theta, rtol=1e-6, atol=1e-9)


def _start(algorithm, problem):
    return Progress(algorithm.start(problem, np.zeros(problem.n)), Traffic(), rows=[])


def _asked(group, conversation, parts):
    codec = codec_of(conversation, 4)
    payload = codec.encode_request(codec.encode_common(b"run", 1, parts), None)
    return codec.decode_reply(group.handle(payload))


def test_a_group_counts_a_hessian_of_its_members_as_one():
    objectives, problem = build_problem(federation("logistic"), "logistic", 0.0, intercept=True)
    group, _ = grouped(Newton(), objectives, problem)
    assert _asked(group, Newton(), [Update(1, np.zeros(4))]).hessians == 1


def test_where_one_member_overflows_the_group_does_and_only_a_trial_point_may():
    objectives, problem = build_problem(federation("poisson"), "poisson", 0.0, intercept=True)
    group, _ = grouped(Newton(), objectives, problem)
    far = np.array([0.0, 10.0, 0.0, 0.0])
    costs, update = _asked(
        group, Newton(), [Search(np.zeros(4), far, np.array([1.0, 0.0])), Update(2, None)]
    ).parts
    assert isinstance(costs, Costs)
    assert isinstance(update, Undefined)
    assert costs.values[0] == np.inf
    assert np.isfinite(costs.values[1])
    (answer,) = _asked(group, Newton(), [Update(2, far)]).parts
    assert isinstance(answer, Declined)


def test_a_member_that_declines_is_named():
    objectives, problem = build_problem(federation("poisson"), "poisson", 0.0, intercept=True)
    group, _ = grouped(Newton(), objectives, problem)
    (answer,) = _asked(group, Newton(), [Update(2, np.array([0.0, 1e3, 0.0, 0.0]))]).parts
    assert "site 'a' cannot answer Update" in answer.why
