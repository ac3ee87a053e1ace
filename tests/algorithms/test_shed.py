"""SHED (Algorithm 4): what is asked, what is learnt, the step, and an agent's answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from fedshed.algorithms import Midpoint, NextEigenvalue, Shed, TailMean
from fedshed.algorithms.base import SiteModel, gradient
from fedshed.algorithms.channels import Constant
from fedshed.algorithms.renewal import Periodic
from fedshed.linalg.rows import gram
from fedshed.objectives import Logistic
from fedshed.protocol.conversation import Agent, Problem
from fedshed.protocol.messages import Share, Update

N = 6
QUICK = settings(deadline=None, max_examples=25)


def make_agents(count=3, rows=30, seed=0):
    rng = np.random.default_rng(seed)
    agents = {}
    for i in range(count):
        X = rng.normal(size=(rows, N)) * np.geomspace(1, 0.1, N)
        agents[str(i)] = Agent(str(i), Logistic(X, np.sign(rng.normal(size=rows))))
    return agents


def make_problem(agents):
    return Problem(np.full(N, 1e-3), {i: agent.objective.weight for i, agent in agents.items()}, "logistic")


class Round:
    """Agents and a Master without a transport: `exchange` runs ask, respond and absorb once."""

    def __init__(self, shed, agents, theta=None):
        self.shed, self.agents, self.problem = shed, agents, make_problem(agents)
        self.state = shed.start(self.problem, np.zeros(N) if theta is None else theta)
        self.caches = dict.fromkeys(agents)

    def exchange(self, silent=()):
        ask = self.shed.ask(self.problem, self.state)
        replies = {}
        for i, agent in self.agents.items():
            if i not in silent:
                self.caches[i], answer = self.shed.respond(agent, self.caches[i], ask.parts[0], ask.each[i])
                replies[i] = [answer]
        self.state = self.shed.absorb(self.problem, self.state, replies)
        return ask, replies

    def advance(self, theta):
        self.state = replace(self.state, t=self.state.t + 1, theta=theta)


def hessian(agent, theta):
    return gram(agent.objective.at(theta).factor)


def dense(held):
    return np.column_stack([held.matvec(e) for e in np.eye(N)])


# --- ask -----------------------------------------------------------------------------------------------


def test_the_first_request_asks_for_a_hessian_and_the_next_for_the_pairs_that_follow():
    run = Round(Shed(channel=Constant(2), renewal=Periodic(every=4)), make_agents())
    ask, _ = run.exchange()
    assert all(share.k == 1 and share.have == 0 and share.more for share in ask.each.values())
    run.advance(np.full(N, 0.1))
    ask, _ = run.exchange()
    assert all((share.k, share.have, share.more) == (1, 2, True) for share in ask.each.values())


def test_a_hessian_is_renewed_when_the_policy_says_so_and_then_starts_without_pairs():
    run = Round(Shed(channel=Constant(1), renewal=Periodic(every=3)), make_agents())
    asked = []
    for t in range(1, 8):
        ask, _ = run.exchange()
        asked.append((ask.each["0"].k, ask.each["0"].have))
        run.advance(np.full(N, 0.01 * t))
    assert asked == [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (6, 0), (6, 1)]


def test_nothing_more_is_asked_of_an_agent_that_has_sent_all_its_pairs():
    run = Round(Shed(channel=Constant(N), renewal=Periodic(every=100)), make_agents())
    run.exchange()
    run.advance(np.full(N, 0.1))
    ask, replies = run.exchange()
    assert not any(share.more for share in ask.each.values())
    assert all(answer.pairs is None for (answer,) in replies.values())


# --- respond -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [NextEigenvalue(), Midpoint(), TailMean()])
@given(st.integers(0, 4), st.integers(1, 5), st.integers(0, 1000))
@QUICK
def test_an_agent_sends_the_next_pairs_of_its_hessian_and_rho(rho, have, d, seed):
    agent = make_agents(1, seed=seed)["0"]
    theta = np.random.default_rng(seed).normal(size=N)
    shed = Shed(channel=Constant(d), rho=rho)
    cache, answer = shed.respond(agent, None, Update(3, theta), Share(3, have, True, None))
    values = np.linalg.eigvalsh(hessian(agent, theta))[::-1]
    q = min(have + d, N - 1)
    sent = answer.pairs
    np.testing.assert_allclose(sent.values, values[have:q], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        hessian(agent, theta) @ sent.vectors.T, sent.vectors.T * sent.values, atol=1e-9
    )
    assert sent.rho == pytest.approx(rho(values, q), rel=1e-7)
    assert sent.last == (q == N - 1)
    assert answer.loss == agent.objective.at(theta).value
    assert cache.theta_k is theta


def test_an_agent_that_forgot_computes_the_same_pairs_at_the_anchor_and_without_it_sends_none():
    agent, theta, later = make_agents(1)["0"], np.full(N, 0.3), np.full(N, -0.2)
    shed = Shed(channel=Constant(2))
    cache, _ = shed.respond(agent, None, Update(1, theta), Share(1, 0, True, None))
    more = Update(2, later), Share(1, 2, True, None)
    _, kept = shed.respond(agent, cache, *more)
    _, rebuilt = shed.respond(agent, None, more[0], replace(more[1], anchor=theta))
    assert kept.pairs.vectors.tobytes() == rebuilt.pairs.vectors.tobytes()
    assert shed.respond(agent, None, *more)[1].pairs is None


def test_a_cache_of_the_same_k_at_another_point_is_not_used():
    """As after a resume: the number of the iteration alone does not say which Hessian it was."""
    agent, theta, other = make_agents(1)["0"], np.full(N, 0.3), np.full(N, -0.9)
    shed = Shed(channel=Constant(2))
    cache, _ = shed.respond(agent, None, Update(1, other), Share(1, 0, True, None))
    _, answer = shed.respond(agent, cache, Update(1, theta), Share(1, 0, True, None))
    _, fresh = shed.respond(agent, None, Update(1, theta), Share(1, 0, True, None))
    assert answer.pairs.values.tobytes() == fresh.pairs.values.tobytes()


# --- absorb --------------------------------------------------------------------------------------------


@given(st.integers(0, N - 1), st.integers(0, 1000))
@QUICK
def test_h_hat_is_an_upper_bound_and_with_all_pairs_the_hessian(q, seed):
    """Corollary 5; and H_hat = H as soon as n - 1 pairs and rho = lambda_n are in."""
    agents = make_agents(1, seed=seed)
    run = Round(Shed(channel=Constant(max(q, 1))), agents)
    run.exchange()
    held = run.state.known["0"].curvature.first(q)
    gap = np.linalg.eigvalsh(dense(held) - hessian(agents["0"], np.zeros(N)))
    assert gap[0] >= -1e-10
    if q == N - 1:
        np.testing.assert_allclose(gap, 0.0, atol=1e-10)


def test_replies_in_any_order_give_the_same_state():
    run = Round(Shed(channel=Constant(2)), make_agents())
    before = run.state
    _, replies = run.exchange()
    backwards = run.shed.absorb(run.problem, before, dict(reversed(replies.items())))
    assert list(backwards.known) == list(run.state.known)


def test_an_agent_that_missed_its_renewal_is_asked_to_renew_as_soon_as_it_answers():
    run = Round(Shed(channel=Constant(1), renewal=Periodic(every=2)), make_agents())
    run.exchange()
    run.advance(np.full(N, 0.1))
    run.exchange(silent=["1"])  # t = 2 is a renewal
    assert run.state.known["1"].curvature.renewal_missed
    assert run.state.known["1"].curvature.k == 1
    run.advance(np.full(N, 0.2))
    ask, _ = run.exchange()
    assert (ask.each["1"].k, ask.each["1"].have) == (3, 0)
    assert ask.each["0"].k == 2
    assert not run.state.known["1"].curvature.renewal_missed


def test_an_agent_without_pairs_to_send_is_sent_the_anchor_with_the_next_request():
    run = Round(Shed(channel=Constant(1), renewal=Periodic(every=100)), make_agents(), theta=np.full(N, 0.5))
    run.exchange()
    run.caches["2"] = None
    run.advance(np.full(N, 0.1))
    ask, _ = run.exchange()
    assert ask.each["2"].anchor is None
    assert run.state.known["2"].curvature.needs_anchor
    run.advance(np.full(N, 0.2))
    ask, _ = run.exchange()
    np.testing.assert_array_equal(ask.each["2"].anchor, np.full(N, 0.5))
    assert run.state.known["2"].curvature.q == 2
    assert not run.state.known["2"].curvature.needs_anchor


# --- step ----------------------------------------------------------------------------------------------


def test_with_all_pairs_the_first_step_is_newtons():
    agents = make_agents()
    run = Round(Shed(channel=Constant(N), line_search=fedshed.FullStep()), agents)
    run.exchange()
    flow = run.shed.step(run.problem, run.state)
    with pytest.raises(StopIteration) as end:
        next(flow)
    after, info = end.value.value
    H = sum(run.problem.p[i] * hessian(agent, np.zeros(N)) for i, agent in agents.items())
    newton = -np.linalg.solve(H + np.diag(run.problem.l2), gradient(run.problem, run.state))
    np.testing.assert_allclose(after.theta, newton, rtol=1e-8)
    assert (info.eta, info.renewed, info.q_max) == (1.0, 3, N - 1)


# --- a mistake in an algorithm -------------------------------------------------------------------------


class Mistaken(Shed, frozen=True):
    """Fails from the third iteration on, in the middle of a run."""

    def respond(self, agent, cache, part, own_part):
        if part.t == 3:
            raise TypeError("a mistake")
        return super().respond(agent, cache, part, own_part)


@pytest.mark.parametrize("line_search", [fedshed.TwoExchange(), fedshed.Fused()])
def test_a_type_error_in_respond_ends_the_run_with_that_error(line_search):
    federation = fedshed.datasets.load("digits", agents=4)
    with pytest.raises(TypeError, match="a mistake"):
        fedshed.optimize(federation, l2=1e-2, algorithm=Mistaken(line_search=line_search))


def test_models_of_agents_that_answered_are_exact_at_theta():
    run = Round(Shed(), make_agents())
    run.exchange()
    for i, agent in run.agents.items():
        known = run.state.known[i]
        assert isinstance(known, SiteModel)
        assert known.cost(run.state.theta) == agent.objective.at(run.state.theta).value
