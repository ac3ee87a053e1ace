"""Sums of eigenpairs in place of the pairs: positive definite, near SHED's matrix, each pair counted once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed import ConfigError, Fused, TwoExchange
from fedshed.algorithms import Shed, ShedAggregate
from fedshed.algorithms.linesearch import FullStep
from fedshed.algorithms.renewal import Fibonacci, GradientNorm, Periodic
from fedshed.exchange import Faulty, InProcess
from fedshed.exchange.site import Site
from fedshed.linalg import leading_eigenpairs
from fedshed.objectives import local_objectives
from fedshed.protocol.codec import encode
from fedshed.protocol.conversation import Problem
from fedshed.protocol.messages import Eigenpairs, Local
from fedshed.protocol.precision import Bits
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal


def replies_of(n: int, spectra: list[np.ndarray], q: list[int], rotations: list[np.ndarray]):
    """First answers of agents with these eigenvalues and eigenvectors: q of them, and rho = lambda_{q+1}."""
    return {
        f"{i}": [Local(0.0, np.zeros(n), Eigenpairs(1, 0, v[:m], Q[:m], float(v[m]), False))]
        for i, (v, Q, m) in enumerate(zip(spectra, rotations, q, strict=True))
    }


def matrices(n: int, replies, mu: float) -> dict[str, np.ndarray]:
    """H_hat of SHED and of the aggregate from the same answers; agents weigh 1, 2, 3, ..."""
    problem = Problem(np.full(n, mu), {i: 1.0 + int(i) for i in replies}, "logistic")
    found = {}
    for name, algorithm in {"shed": Shed(), "sums": ShedAggregate()}.items():
        state = algorithm.absorb(problem, algorithm.start(problem, np.zeros(n)), replies)
        H = algorithm.approximate_hessian(problem, state)
        found[name] = np.column_stack([H.matvec(e) for e in np.eye(n)])
    return found


def drawn(seed: int, n: int, agents: int):
    rng = np.random.default_rng(seed)
    spectra = [np.sort(10.0 ** rng.uniform(-6, 1, size=n))[::-1] for _ in range(agents)]
    rotations = [np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(agents)]
    return spectra, [int(q) for q in rng.integers(0, n, size=agents)], rotations


SHAPES = {"n": st.integers(1, 12), "agents": st.integers(1, 5), "seed": st.integers(0, 999)}


@settings(deadline=None, max_examples=60)
@given(**SHAPES)
def test_it_is_positive_definite_and_as_near_to_shed_as_the_rho_are_to_each_other(n, agents, seed):
    spectra, q, rotations = drawn(seed, n, agents)
    found = matrices(n, replies_of(n, spectra, q, rotations), mu=1e-8)
    assert np.linalg.eigvalsh(found["sums"])[0] >= 1e-8 - 1e-14
    rho = np.array([v[m] for v, m in zip(spectra, q, strict=True)])
    p = np.arange(1, agents + 1) / np.arange(1, agents + 1).sum()
    apart = np.abs(rho - p @ rho).max()
    assert np.linalg.norm(found["sums"] - found["shed"], 2) <= apart + 1e-13


@settings(deadline=None, max_examples=40)
@given(**SHAPES)
def test_it_is_sheds_matrix_where_all_rho_are_equal_or_all_vectors_span_one_space(n, agents, seed):
    spectra, q, rotations = drawn(seed, n, agents)
    alike = [np.append(v[:m] + 1e-3, np.full(n - m, 1e-3)) for v, m in zip(spectra, q, strict=True)]
    found = matrices(n, replies_of(n, alike, q, rotations), mu=1e-3)
    np.testing.assert_allclose(found["sums"], found["shed"], atol=1e-13)
    found = matrices(n, replies_of(n, spectra, q[:1] * agents, rotations[:1] * agents), mu=1e-3)
    np.testing.assert_allclose(found["sums"], found["shed"], atol=1e-13)


# --- what is in the sums ------------------------------------------------------------------------------


def states_of(algorithm, transport_of, theta0, iterations=60):
    """The problem, its local objectives, the transport, and every state of a run."""
    objectives = local_objectives(make_federation("logistic"), "logistic")
    problem = Problem(np.full(6, 1e-3), {i: o.weight for i, o in objectives.items()}, "logistic")
    transport = transport_of({i: Site(i, o, algorithm) for i, o in objectives.items()})
    start = Progress(algorithm.start(problem, theta0))
    run = iterate(algorithm, problem, transport, start, Goal(tol=1e-12, max_iterations=iterations))
    return problem, objectives, transport, [progress.state for progress in run]


def summed(problem, objectives, state):
    """S and B by their definition, from the rows: each agent's first q pairs at its theta_k."""
    S, B = np.zeros((6, 6)), np.zeros((6, 6))
    for i, known in state.known.items():
        counted = known.curvature
        if counted.q:
            values, vectors = leading_eigenpairs(objectives[i].at(state.anchors[counted.k]).factor)
            V = vectors[: counted.q]
            S += problem.p[i] * (V.T * values[: counted.q]) @ V
            B += problem.p[i] * V.T @ V
    return S, B


@pytest.mark.parametrize(
    "renewal", [Fibonacci(), Periodic(4), GradientNorm()], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("line_search", [TwoExchange(), Fused()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_every_pair_is_in_the_sums_once_whatever_was_lost_on_the_way(seed, line_search, renewal):
    """Lost, late, repeated, forgotten, and trials rejected from a start far away."""
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.25, "forget": 0.25, "seed": seed}
    problem, objectives, transport, states = states_of(
        ShedAggregate(renewal=renewal, line_search=line_search),
        lambda sites: Faulty(InProcess(sites), **faults),
        theta0=np.full(6, 3.0),
    )
    assert all(count > 0 for count in transport.happened.values())
    for state in states:
        S, B = summed(problem, objectives, state)
        np.testing.assert_allclose(state.S, S, atol=1e-10)
        np.testing.assert_allclose(state.B, B, atol=1e-7)
    held = [(state.epoch, known.curvature) for state in states for known in state.known.values()]
    assert any(one.renewal_missed for _, one in held), "no renewal was missed: the test must have some"
    assert all(one.renewal_missed != (one.k >= epoch) for epoch, one in held)


def test_pairs_that_do_not_follow_those_in_the_sums_never_enter_them():
    """The same pairs again, a hole, another Hessian: `refusal` stops them, and so do the sums themselves."""
    n, algorithm = 5, ShedAggregate(renewal=Periodic(9))
    problem = Problem(np.full(n, 1e-3), {"0": 1.0}, "logistic")
    spectrum = np.arange(n, 0, -1.0)
    state = algorithm.start(problem, np.zeros(n))
    state = algorithm.absorb(problem, state, replies_of(n, [spectrum], [2], [np.eye(n)]))
    later = replace(state, t=2)
    for k, start in ((1, 0), (1, 3), (2, 2)):
        pairs = Eigenpairs(k, start, spectrum[start : start + 1], np.eye(n)[start : start + 1], 0.5, False)
        after = algorithm.absorb(problem, later, {"0": [Local(0.0, np.zeros(n), pairs)]})
        assert np.array_equal(after.S, state.S)
        assert np.array_equal(after.B, state.B)
        assert (after.known["0"].curvature.q, after.known["0"].curvature.needs_anchor) == (2, True)


def test_who_missed_a_renewal_counts_as_lambda_1_until_it_answers():
    class MissesIt(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            return [r for r in super().exchange(payloads) if r[0] != "large" or self.count != 3]

    problem, objectives, _, states = states_of(
        ShedAggregate(renewal=Periodic(2)), MissesIt, np.zeros(6), iterations=3
    )
    missed = states[1].known["large"].curvature  # exchange 3 is the update of t = 2, a renewal
    values, _ = leading_eigenpairs(objectives["large"].at(np.zeros(6)).factor)
    assert (missed.renewal_missed, missed.q) == (True, 0)
    assert missed.rho == missed.top == pytest.approx(values[0])
    s = np.arange(6.0)
    assert s @ missed.matvec(s) >= np.linalg.norm(objectives["large"].at(np.zeros(6)).factor @ s) ** 2
    healed = states[2].known["large"].curvature
    assert (healed.renewal_missed, healed.k, healed.q) == (False, 3, 1)
    np.testing.assert_allclose(states[2].S, summed(problem, objectives, states[2])[0], atol=1e-12)


# --- runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "two-class"])
def test_on_digits_it_reaches_the_pooled_optimum_in_about_as_many_rounds_as_fib_shed(partition):
    federation = fedshed.datasets.load("digits", agents=10, partition=partition)
    options = {"l2": 1e-3, "tol": 1e-9}
    sums = fedshed.optimize(federation, algorithm="shed-aggregate", **options)
    pairs = fedshed.optimize(federation, algorithm="fib-shed", **options)
    assert sums.converged
    np.testing.assert_allclose(sums.theta, fedshed.optimum(federation, l2=1e-3)[0], rtol=0, atol=1e-6)
    assert sums.trace[-1].rounds <= 1.05 * pairs.trace[-1].rounds + 2


@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_vectors_leave_it_positive_definite(bits):
    """Rounding lifts B above I: the matrix stays above diag(l2) all the same."""
    algorithm = replace(ShedAggregate(), precision=Bits(bits=bits), channel=fedshed.Constant(5))
    problem, _, _, states = states_of(algorithm, InProcess, np.zeros(6), iterations=12)
    assert max(np.linalg.eigvalsh(state.B)[-1] for state in states) > 1 + 1e-6
    for state in states:
        H = algorithm.approximate_hessian(problem, state)
        assert np.linalg.eigvalsh(H.dense + np.diag(problem.l2))[0] >= 1e-3 - 1e-12


def bytes_after(algorithm, agents: int, iterations: int, n: int = 20) -> int:
    """The Master's state, encoded."""
    federation = make_federation("logistic", n=n, sizes={f"{i:03}": 30 for i in range(agents)})
    seen = []
    fedshed.optimize(
        federation, algorithm=algorithm, l2=1e-3, tol=0.0, max_iterations=iterations,
        watch=lambda progress: seen.append(len(encode(progress.state))),
    )  # fmt: skip
    return seen[-1]


def test_the_state_does_not_grow_with_pairs_and_by_two_vectors_an_agent():
    """theta and g of each agent are its last answer; all else is a few numbers, and 2 n^2."""
    n, slow, fast = 20, ShedAggregate(), ShedAggregate(channel=fedshed.Constant(19))
    few, many = bytes_after(slow, 5, 2), bytes_after(fast, 5, 2)
    assert abs(many - few) <= 5 * 20
    more = bytes_after(fast, 40, 2)
    assert (more - many) / 35 <= 8 * 2 * n + 150
    assert many <= 8 * (2 * n * n + 5 * 2 * n + 4 * n) + 5 * 150 + 500
    assert bytes_after(Shed(channel=fedshed.Constant(19)), 40, 2) > 40 * 8 * n * 19  # what it saves


class ByName:
    def __call__(self, history, agent):
        return agent == "a"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"renewal": ByName()}, "renew together, which ByName.*or Shed"),
        ({"line_search": FullStep()}, "TwoExchange"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_remedy(wrong, why):
    with pytest.raises(ConfigError, match=why):
        ShedAggregate(**wrong)
