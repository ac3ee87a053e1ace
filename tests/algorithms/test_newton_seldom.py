"""Newton with seldom Hessians: Newton's limit, fewer Hessians, and gradients alone in between."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.made_rows import FAMILIES, response

import fedshed
from conftest import make_federation
from fedshed import ConfigError, Federation, Fused, TwoExchange
from fedshed.algorithms import Newton, NewtonSeldom
from fedshed.algorithms.newton_seldom import HessianUpdate
from fedshed.exchange import Faulty, InProcess
from fedshed.linalg.arrays import pack
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.privacy.policy import scalars
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Agent, Problem
from fedshed.protocol.messages import Local, LocalHessian, Search

L2 = 1e-3
SEARCHES = [TwoExchange(), Fused()]


def optimize(federation, algorithm, loss="logistic", **options):
    options = {"l2": L2, "tol": 1e-11, "max_iterations": 500, **options}
    return fedshed.optimize(federation, algorithm=algorithm, loss=loss, **options)


def of_family(loss, n=5, seed=3):
    """Three sites of a family, one of few rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n) / 3
    made = {}
    for site, rows in {"small": 12, "middle": 60, "large": 300}.items():
        X = rng.normal(size=(rows, n))
        made[site] = (X, response(loss, X @ truth, rng))
    return Federation.from_sites(made)


class Overheard(InProcess):
    """Keeps every exchange: the parts of the request, and the answers of each site."""

    def __init__(self, sites):
        super().__init__(sites)
        Overheard.heard = []

    def exchange(self, payloads):
        replies = list(super().exchange(payloads))
        codec = codec_of(NewtonSeldom(), next(iter(self.sites.values())).objective.dim)
        asked = [codec.decode_request(p).parts for p in payloads.values()]
        Overheard.heard.append((asked[0], [codec.decode_reply(r).parts for _, r in replies]))
        return replies


def updates(heard):
    """Each request for an update, with the answers to it."""
    for parts, replies in heard:
        for j, part in enumerate(parts):
            if isinstance(part, HessianUpdate):
                yield part, [reply[j] for reply in replies]


# --- the limit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", SEARCHES, ids=["two-exchange", "fused"])
@pytest.mark.parametrize("loss", FAMILIES)
def test_the_limit_is_newtons_in_every_family(loss, search):
    federation = of_family(loss)
    pair = (NewtonSeldom(line_search=search), Newton(line_search=search))
    ours, newtons = (optimize(federation, one, loss) for one in pair)
    assert ours.converged, ours.reason
    assert newtons.converged
    np.testing.assert_allclose(ours.theta, newtons.theta, rtol=0, atol=1e-8)
    assert ours.trace[-1].hessians < newtons.trace[-1].hessians or newtons.trace[-1].hessians <= 2


@pytest.mark.parametrize("scale", [0.0, 5.0, 40.0])
@pytest.mark.parametrize("search", SEARCHES, ids=["two-exchange", "fused"])
def test_the_cost_never_rises_from_wherever_it_starts(scale, search):
    federation = make_federation("logistic")
    start = scale * np.random.default_rng(1).normal(size=federation.dim)
    result = optimize(federation, NewtonSeldom(line_search=search), theta0=start)
    costs = np.array(result.trace.column("f"))
    assert result.converged, result.reason
    assert (np.diff(costs) <= 1e-14 * np.maximum(1, np.abs(costs[:-1]))).all()


def test_asked_for_in_every_iteration_it_is_newton_bit_for_bit():
    federation = make_federation("logistic")
    ours, newtons = (optimize(federation, one) for one in (NewtonSeldom(least=1, paying=0.0), Newton()))
    assert np.array_equal(ours.theta, newtons.theta)
    assert np.array_equal(ours.trace.column("f"), newtons.trace.column("f"))
    assert ours.trace[-1].hessians == newtons.trace[-1].hessians


def test_with_a_hessian_at_the_optimum_the_standard_errors_need_no_other():
    result = optimize(make_federation("logistic"), NewtonSeldom(least=1, paying=0.0))
    assert result.certificate.estimate is not None


# --- what travels, and when -----------------------------------------------------------------------------


@pytest.mark.parametrize("search", SEARCHES, ids=["two-exchange", "fused"])
def test_a_hessian_comes_where_it_is_asked_for_and_nowhere_else(search):
    start = np.full(6, 3.0)
    optimize(make_federation("logistic"), NewtonSeldom(line_search=search), transport=Overheard, theta0=start)
    asked = list(updates(Overheard.heard))
    assert {part.hessian for part, _ in asked} == {True, False}
    for part, answers in asked:
        assert {type(answer) for answer in answers} == {LocalHessian if part.hessian else Local}
        assert all(getattr(answer, "pairs", None) is None for answer in answers)


def test_an_update_without_a_hessian_is_one_cost_and_one_gradient():
    n = 30
    federation = make_federation("logistic", n=n, sizes={"a": 60, "b": 90})
    optimize(federation, NewtonSeldom(line_search=Fused()), l2=1e-1, transport=Overheard)
    sizes = {part.hessian: {scalars(a) for a in answers} for part, answers in updates(Overheard.heard)}
    assert sizes == {True: {1 + n + n * (n + 1) // 2}, False: {1 + n}}


@pytest.mark.parametrize("search", SEARCHES, ids=["two-exchange", "fused"])
def test_least_squares_needs_one_hessian(search):
    result = optimize(make_federation("least-squares"), NewtonSeldom(line_search=search), "least-squares")
    assert result.converged
    assert result.trace[-1].hessians == 1


def test_a_rejected_step_is_followed_by_a_hessian():
    """And in any case the same request follows from the same state."""
    start = 5 * np.random.default_rng(1).normal(size=6)
    optimize(make_federation("logistic"), NewtonSeldom(), transport=Overheard, theta0=start)
    rejected = 0
    for (asked, _), (after, _) in zip(Overheard.heard, Overheard.heard[1:], strict=False):
        if isinstance(asked[0], Search) and isinstance(after[0], HessianUpdate):
            full = np.array_equal(after[0].theta, asked[0].theta + asked[0].direction)
            rejected += not full
            assert full or after[0].hessian
    assert rejected > 0


def test_while_the_decrement_falls_fast_and_faster_no_hessian_is_asked_for():
    """To 0.3 of what it was three iterations after the last Hessian, to 0.3^2 after four."""
    algorithm = NewtonSeldom(least=3, paying=0.3)
    problem = Problem(np.ones(2), {"a": 1.0}, "logistic")
    start = algorithm.start(problem, np.zeros(2))
    assert algorithm.due(start)
    for age in range(1, 8):
        state = replace(start, t=2 + age, k=2)
        limit = 0.3 ** max(age - 2, 0)
        assert not algorithm.due(replace(state, decrements=(1.0, limit)))
        assert algorithm.due(replace(state, decrements=(1.0, 1.01 * limit))) == (age >= 3)
        assert algorithm.due(replace(state, damped=True))
    assert not algorithm.due(replace(start, t=2, k=2, damped=True))


def test_an_answer_of_the_other_kind_is_refused():
    federation = make_federation("logistic")
    (name, objective), *_ = local_objectives(federation, "logistic").items()
    algorithm, theta = NewtonSeldom(), np.zeros(6)
    problem = Problem(np.ones(6), {name: objective.weight}, "logistic")
    with_it, without = (HessianUpdate(2, theta, 0.0, hessian) for hessian in (True, False))
    agent = Agent(name, objective)
    whole, local = (algorithm.respond(agent, None, part, None)[1] for part in (with_it, without))
    np.testing.assert_array_equal(whole.hessian, pack(gram(objective.at(theta).factor)))
    assert algorithm.refusal(problem, with_it, None, whole) is None
    assert algorithm.refusal(problem, without, None, local) is None
    assert "not a Local" in algorithm.refusal(problem, without, None, whole)
    assert "not a LocalHessian" in algorithm.refusal(problem, with_it, None, local)


@pytest.mark.parametrize("settings", [{"least": 0}, {"least": 1001}, {"paying": 1.0}, {"paying": -0.1}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match="newton-seldom needs least between 1 and 1000"):
        NewtonSeldom(**settings)


# --- silence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_models_of_silent_agents_give_no_secants(seed):
    """A difference of a gradient and a model is no secant; the limit is the pooled optimum all the same."""
    federation = make_federation("logistic")
    transport = lambda sites: Faulty(InProcess(sites), lose=0.4, seed=seed)  # noqa: E731
    result = optimize(federation, NewtonSeldom(line_search=Fused()), transport=transport)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, fedshed.optimum(federation, l2=L2)[0], rtol=0, atol=1e-8)


def test_a_secant_needs_every_agent_at_both_ends():
    algorithm = NewtonSeldom()
    problem = Problem(np.ones(2), {"a": 1.0}, "logistic")
    state = replace(algorithm.start(problem, np.zeros(2)), t=3, k=1, last=(np.ones(2), np.ones(2)))
    silent = algorithm._remembering(problem, state, np.zeros(2))
    assert len(silent.s) == 0
    assert silent.last is None
