"""Lost, late and repeated replies and forgetful agents: the Master's copy never has a hole or a mixture."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import POOLED, federation_for, make_federation
from fedshed.algorithms import build
from fedshed.algorithms.base import SiteModel, State, advance, cost
from fedshed.algorithms.linesearch import TwoExchange
from fedshed.algorithms.shed_curvature import SharedCurvature
from fedshed.exchange import Faulty, InProcess
from fedshed.exchange.site import Site
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Costs, Eigenpairs
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = np.full(6, 1e-3)


def run_states(name, federation, transport_of, iterations=60, **options):
    """All states of a run, and the problem they belong to."""
    objectives = local_objectives(federation, "logistic")
    algorithm = build(name, **options)
    problem = Problem(L2, {i: o.weight for i, o in objectives.items()}, "logistic")
    transport = transport_of({i: Site(i, o, algorithm) for i, o in objectives.items()})
    start = Progress(algorithm.start(problem, np.zeros(6)))
    run = iterate(algorithm, problem, transport, start, Goal(tol=1e-12, max_iterations=iterations))
    return objectives, transport, [progress.state for progress in run]


@pytest.mark.parametrize("line_search", [None, fedshed.Fused()])
@pytest.mark.parametrize("name", ["shed-periodic", "fib-shed", "fib-shed+", "gn-shed", "mont-dec"])
@pytest.mark.parametrize("seed", range(3))
def test_every_copy_is_the_leading_part_of_one_true_hessian(name, seed, line_search):
    """H_hat_i is what Algorithm 4 builds from the first q pairs at theta^k, whatever was lost on the way."""
    federation = make_federation("logistic")
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.25, "forget": 0.25, "seed": seed}
    objectives, transport, states = run_states(
        name, federation, lambda sites: Faulty(InProcess(sites), **faults), line_search=line_search
    )
    assert all(count > 0 for count in transport.happened.values())
    for state in states:
        for i, known in state.known.items():
            held = known.curvature
            values, vectors = leading_eigenpairs(objectives[i].at(held.theta_k).factor)
            assert held.rho == pytest.approx(values[held.q], abs=1e-15)
            np.testing.assert_allclose(held.values, values[: held.q], rtol=1e-12)
            overlap = np.abs(np.sum(held.vectors * vectors[: held.q], axis=1))
            np.testing.assert_allclose(overlap, 1, atol=1e-9)


def test_forgetful_agents_alone_cost_rounds_but_heal():
    federation = make_federation("logistic")
    forgetful = lambda sites: Faulty(InProcess(sites), forget=0.5, seed=2)  # noqa: E731
    healed = fedshed.optimize(federation, algorithm="fib-shed", l2=1e-3, transport=forgetful)
    quiet = fedshed.optimize(federation, algorithm="fib-shed", l2=1e-3)
    assert healed.converged
    np.testing.assert_allclose(healed.theta, quiet.theta, atol=1e-6)
    assert healed.trace[-1].hessians > quiet.trace[-1].hessians  # rebuilt ones are counted


def test_convergence_is_declared_only_where_everyone_answered():
    """One agent falls silent after its first answer: the model converges, the run must not say so."""

    class FallsSilent(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            return [r for r in super().exchange(payloads) if r[0] != "large" or self.count == 1]

    result = fedshed.optimize(
        make_federation("logistic"), algorithm="fib-shed", l2=1e-3, transport=FallsSilent, max_iterations=40
    )
    assert not result.converged
    assert result.certificate.bound is None


# --- quorum and patience -----------------------------------------------------------------------------


def silent_in(exchanges, site="large"):
    """A transport on which one site does not answer in these exchanges."""

    class Silent(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            return [r for r in super().exchange(payloads) if r[0] != site or self.count not in exchanges]

    return Silent


@pytest.mark.parametrize("case", POOLED, ids="-".join)
def test_a_site_that_falls_silent_ends_the_run_by_name_and_the_result_is_kept(case, tmp_path):
    name, loss = case
    federation, path = federation_for(case), tmp_path / "run"
    options = {"algorithm": name, "loss": loss, "l2": 1e-3, "max_iterations": 3000}
    gone = silent_in(range(3, 10_000))
    result = fedshed.optimize(federation, **options, transport=gone, patience=5, tol=0.0, checkpoint=path)
    assert not result.converged
    assert "'large'" in result.reason
    assert "5 exchanges" in result.reason
    assert result.sites["large"].last == 2
    assert result.sites["large"].silent == 5
    assert result.sites["small"].silent == 0
    assert np.isfinite(result.theta).all()
    back = fedshed.resume(path, federation, tol=1e-9)
    assert back.converged, back.reason
    np.testing.assert_allclose(
        back.theta, fedshed.optimum(federation, loss=loss, l2=1e-3)[0], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("case", POOLED, ids="-".join)
def test_a_site_that_comes_back_in_time_costs_nothing_but_rounds(case):
    name, loss = case
    federation = federation_for(case)
    options = {"algorithm": name, "loss": loss, "l2": 1e-3, "max_iterations": 3000, "tol": 1e-10}
    result = fedshed.optimize(federation, **options, transport=silent_in(range(4, 16)), patience=13)
    assert result.converged, result.reason
    assert result.refusals == ()  # a model in place of an answer contradicts nothing
    np.testing.assert_allclose(
        result.theta, fedshed.optimum(federation, loss=loss, l2=1e-3)[0], rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_no_round_goes_on_with_fewer_than_a_quorum(quorum):
    """Every site that answered an update is known at theta^t: there are never fewer than the quorum."""
    federation = make_federation("logistic")
    result = []
    fedshed.optimize(
        federation, algorithm="fib-shed", l2=1e-3, line_search=fedshed.Fused(), quorum=quorum, patience=100,
        transport=lambda sites: Faulty(InProcess(sites), lose=0.5, seed=4), max_iterations=60, tol=0.0,
        watch=lambda progress: result.append(progress.state),
    )  # fmt: skip
    answered = [sum(a.at(s.theta) for a in s.known.values()) for s in result if s.fresh]
    assert min(answered) == quorum  # and one that is smaller is not waited for


def test_everyone_absent_is_not_a_round():
    """Where nobody answers nothing can be learnt, so no step is taken on models alone."""
    federation, seen = make_federation("logistic"), []

    class Nobody(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            return [] if 4 <= self.count <= 9 else super().exchange(payloads)

    disturbed = fedshed.optimize(
        federation, algorithm="fib-shed", l2=1e-3, transport=Nobody, watch=lambda p: seen.append(p)
    )
    quiet = fedshed.optimize(federation, algorithm="fib-shed", l2=1e-3)
    assert np.array_equal(disturbed.theta, quiet.theta)
    assert disturbed.trace[-1].exchanges == quiet.trace[-1].exchanges + 6


def test_bytes_by_site_add_up_to_all_bytes():
    federation = make_federation("logistic")
    noisy = lambda sites: Faulty(InProcess(sites), lose=0.2, repeat=0.3, delay=0.2, seed=1)  # noqa: E731
    result = fedshed.optimize(federation, algorithm="fib-shed", l2=1e-3, transport=noisy)
    for way in ("uplink_bytes", "downlink_bytes"):
        assert sum(getattr(site, way) for site in result.sites.values()) == getattr(result.trace[-1], way)
    assert max(site.last for site in result.sites.values()) == result.trace[-1].exchanges


@pytest.mark.parametrize("wrong", [{"quorum": 0}, {"quorum": 4}, {"patience": 0}, {"quorum": 1.5}], ids=str)
def test_a_quorum_that_cannot_be_is_refused(wrong):
    with pytest.raises(fedshed.ConfigError, match=next(iter(wrong))):
        fedshed.optimize(make_federation("logistic"), **wrong)


# --- copies --------------------------------------------------------------------------------------------


def held_of(pairs: int, n: int = 6) -> SharedCurvature:
    eye = np.eye(n)
    return SharedCurvature(
        3, np.zeros(n), np.arange(n, n - pairs, -1.0), eye[:pairs], float(n - pairs), False, t=5
    )


def pairs_of(start: int, count: int, k: int = 3, n: int = 6) -> Eigenpairs:
    values = np.arange(n - start, n - start - count, -1.0)
    return Eigenpairs(k, start, values, np.eye(n)[start : start + count], float(n - start - count), False)


def test_pairs_extend_only_what_they_fit():
    held = held_of(2)
    assert held.add_pairs(pairs_of(2, 1), 6).q == 3
    assert held.add_pairs(pairs_of(0, 3), 6).q == 3  # from an agent that starts anew
    assert held.add_pairs(pairs_of(2, 0), 6).q == 2
    for other in (pairs_of(3, 1), pairs_of(2, 1, k=4), pairs_of(0, 1)):  # a hole, another Hessian, the past
        unchanged = held.add_pairs(other, 6)
        assert (unchanged.q, unchanged.rho, unchanged.t) == (2, held.rho, held.t)
        assert unchanged.needs_anchor


# --- promise 5: the line search compares one function ------------------------------------------------


def quadratic_state(answered: dict[str, bool]) -> tuple[Problem, State[SharedCurvature]]:
    """Two agents with H_hat = I; where `answered` is false the last answer is from another point."""
    problem = Problem(np.zeros(6), {"a": 1.0, "b": 1.0}, "logistic")
    theta = np.ones(6)
    held = SharedCurvature(1, np.zeros(6), np.zeros(0), np.zeros((0, 6)), 1.0, False, t=1)
    known = {i: SiteModel(theta if answered[i] else theta + 1, 1.0, np.ones(6), held) for i in "ab"}
    return problem, State(2, theta, known, (1.0,), updated=2)


def accepted(problem, state, replies):
    """Step size that TwoExchange takes along -g when the agents report these costs at eta = 1, 1/2, ..."""
    g = np.full(6, 0.5)
    flow = TwoExchange(candidates=3)(build("fib-shed"), problem, state, g, -g)
    next(flow)
    try:
        flow.send({i: [Costs(np.array(values))] for i, values in replies.items()})
    except StopIteration as done:
        return done.value.eta
    return None


def test_an_absent_agent_counts_with_its_model_on_both_sides():
    """b is silent in the search: its model falls along -g, so a's small rise is outweighed."""
    problem, state = quadratic_state({"a": True, "b": True})
    assert cost(problem, state) == 1.0
    model = state.known["b"].cost(state.theta - 0.5)  # m_b falls by 3 - 0.75
    assert model == pytest.approx(1 - 3 + 0.75)
    assert accepted(problem, state, {"a": [2.0, 2.0, 2.0]}) == 1.0
    assert accepted(problem, state, {"a": [2.0, 2.0, 2.0], "b": [2.0, 2.0, 2.0]}) is None


def test_costs_of_an_agent_that_missed_the_update_are_not_mixed_with_its_model():
    """b's f at theta^t is only modelled, so its reported costs, on another scale, must not decide."""
    problem, state = quadratic_state({"a": True, "b": False})
    with_b = accepted(problem, state, {"a": [-1.0, -1.0, -1.0], "b": [1e6, 1e6, 1e6]})
    without = accepted(problem, state, {"a": [-1.0, -1.0, -1.0]})
    assert with_b == without == 1.0


def test_no_step_down_to_2_to_the_minus_40_stops_with_a_reason():
    """A cost that rises in every direction it is told to go: the run ends regularly, saying why."""
    problem, state = quadratic_state({"a": True, "b": True})
    flow = build("fib-shed").step(problem, replace(state, known=state.known))
    next(flow)
    costs = Costs(np.full(8, 2.0))
    for _ in range(4):  # 8 candidates at a time: 2^0 .. 2^-39
        flow.send({"a": [costs], "b": [costs]})
    (last,) = flow.send({"a": [costs], "b": [costs]}).parts
    assert last.etas.tolist() == [2.0**-40]  # and nothing below
    with pytest.raises(StopIteration) as ended:
        flow.send({"a": [Costs(np.array([2.0]))], "b": [Costs(np.array([2.0]))]})
    after, info = ended.value.value
    assert info.eta == 0.0
    assert "2^-40" in info.stopped
    assert np.array_equal(after.theta, state.theta)


def test_the_model_of_an_absent_agent_moves_with_theta():
    problem, state = quadratic_state({"a": True, "b": True})
    moved = advance(state, state.theta + 0.1, np.ones(6))
    known = moved.known["b"]
    s = np.full(6, 0.1)
    assert known.cost(moved.theta) == pytest.approx(1.0 + s.sum() + 0.5 * s @ s)
    np.testing.assert_allclose(known.gradient(moved.theta), 1.1)
    assert problem.agents == moved.silent(problem)
