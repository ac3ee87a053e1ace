"""PEN: both ends hold the same copy, whatever was lost; streams are well-formed; the limit is exact."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed import Federation
from fedshed._utils.errors import SingularError
from fedshed.algorithms import Pen
from fedshed.algorithms.pen.agent import recall_copy
from fedshed.algorithms.pen.algorithm import _unwhiten
from fedshed.algorithms.pen.direction import direction
from fedshed.algorithms.pen.messages import Mine
from fedshed.exchange import Faulty, InProcess
from fedshed.exchange.site import Site
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.protocol.conversation import Problem
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-3
UNEQUAL = fedshed.PerAgent({"large": fedshed.ByteRate(112)}, fedshed.Constant(200))  # by 100 times


def states(federation, transport_of=InProcess, loss="logistic", iterations=40, tol=1e-10, **options):
    """Every state of a run, with the transport it ran over."""
    objectives = local_objectives(federation, loss)
    pen, n = Pen(**options), federation.dim
    problem = Problem(np.full(n, L2), {i: o.weight for i, o in objectives.items()}, loss)
    transport = transport_of({i: Site(i, o, pen) for i, o in objectives.items()})
    start = Progress(pen.start(problem, np.zeros(n)), rows=[])
    run = iterate(pen, problem, transport, start, Goal(tol=tol, max_iterations=iterations))
    return objectives, transport, [progress.state for progress in run]


# --- the copies ---------------------------------------------------------------------------------------


def test_the_copies_agree_bit_for_bit_and_approach_the_truth():
    federation = make_federation("logistic")
    objectives, transport, visited = states(federation)
    last = visited[-1]
    for i, known in last.known.items():
        copy, mine = known.curvature, transport.sites[i]._cache
        assert copy.digest == mine.now.copy.digest
        assert np.array_equal(copy.W, mine.now.copy.W)
        assert np.array_equal(copy.g, mine.now.copy.g)
        G, point = last.frame.G, objectives[i].at(last.theta)
        truth = G @ gram(point.factor) @ G.T
        steps = 1.5 * 0.12 * len(G)  # every entry within its dead zone or half a step
        assert np.linalg.norm(copy.W - truth) <= steps
        decrement = 0.01 * 1e-3
        assert np.linalg.norm(copy.g - G @ point.gradient) <= decrement


@pytest.mark.parametrize("seed", range(4))
def test_after_losses_repeats_and_restarts_the_master_and_the_agent_mean_the_same_copy(seed):
    """The Master's digest is the agent's newest copy or the one before, and then bit for bit the same."""
    federation = make_federation("logistic")
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.3, "forget": 0.2, "seed": seed}
    _, transport, visited = states(federation, lambda sites: Faulty(InProcess(sites), **faults))
    assert all(count > 0 for count in transport.happened.values())
    for i, known in visited[-1].known.items():
        cache = transport._inner.sites[i]._cache
        if cache is None:
            continue  # forgotten after its last answer
        held = recall_copy(cache, Mine(known.curvature.digest, None)).copy
        assert np.array_equal(held.W, known.curvature.W)
        assert np.array_equal(held.g, known.curvature.g)


def test_copies_that_differ_by_rounding_stay_together():
    """Another BLAS: every product at the agent differs in its last bits; the optimum is the same."""
    federation = make_federation("logistic")
    rng = np.random.default_rng(0)

    class OtherMachine(InProcess):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            for site in self.sites.values():
                cache = site._cache
                copy = cache.now.copy
                other = replace(copy, W=copy.W * (1 + 1e-15 * rng.normal(size=copy.W.shape)))
                site._cache = replace(cache, now=replace(cache.now, copy=other))
            return replies

    result = fedshed.optimize(federation, algorithm="pen", l2=L2, transport=OtherMachine)
    expected, _ = fedshed.optimum(federation, l2=L2)
    assert result.converged
    np.testing.assert_allclose(result.theta, expected, atol=1e-7)
    alone = fedshed.optimize(federation, algorithm="pen", l2=L2)
    assert abs(result.trace[-1].exchanges - alone.trace[-1].exchanges) <= 2


def test_a_corrupted_copy_is_detected_and_healed():
    """An agent whose history differs has another digest: it says so, and is sent the Master's copy."""
    federation = make_federation("logistic")

    class Corrupts(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            if self.count == 4:
                cache = self.sites["large"]._cache
                copy = cache.now.copy
                wrong = replace(copy, digest=copy.digest ^ 1, W=10 * copy.W)
                self.sites["large"]._cache = replace(cache, now=replace(cache.now, copy=wrong), previous=None)
            return super().exchange(payloads)

    healed = fedshed.optimize(federation, algorithm="pen", l2=L2, transport=Corrupts)
    quiet = fedshed.optimize(federation, algorithm="pen", l2=L2)
    assert np.array_equal(healed.theta, quiet.theta)
    assert healed.trace[-1].exchanges == quiet.trace[-1].exchanges + 1
    assert healed.trace[-1].downlink_bytes > quiet.trace[-1].downlink_bytes


# --- robust -------------------------------------------------------------------------------------------


def digits(partition, seed=0, agents=8):
    return fedshed.datasets.load("digits", agents=agents, partition=partition, seed=seed, target=1)


@pytest.mark.parametrize("partition", ["iid", "two-class"])
@pytest.mark.parametrize("seed", range(3))
def test_few_exchanges_and_bytes_on_digits(partition, seed):
    federation = digits(partition, seed)
    _, f_star = fedshed.optimum(federation, l2=1e-4)
    options = {"l2": 1e-4, "f_star": f_star, "gap_tol": 1e-11}
    pen = fedshed.optimize(federation, algorithm="pen", **options)
    newton = fedshed.optimize(federation, algorithm="newton", line_search=fedshed.Fused(), **options)
    assert pen.converged
    assert pen.trace[-1].exchanges <= 2.5 * newton.trace[-1].exchanges
    assert pen.trace[-1].uplink_bytes < newton.trace[-1].uplink_bytes / 5


@pytest.mark.parametrize(
    ("federation", "options"),
    [
        (make_federation("logistic", n=12, sizes={f"s{i}": 3 + i for i in range(6)}), {}),
        (make_federation("logistic", sizes={"one": 1, "two": 2, "rest": 200}), {}),
        (make_federation("logistic"), {"theta0": np.full(6, 20.0)}),
        (make_federation("least-squares"), {"loss": "least-squares"}),
        (make_federation("logistic"), {"l2": [0.0, 1e-3, 0.0, 1e-5, 1.0, 1e-3]}),
        (make_federation("logistic"), {"intercept": True}),
        (make_federation("logistic"), {"budget": UNEQUAL}),
    ],
    ids=[
        "rank-deficient", "one-row", "far-start", "least-squares", "ridge-each", "intercept", "budgets",
    ],
)  # fmt: skip
def test_the_limit_is_the_pooled_optimum(federation, options):
    options = {"l2": L2, "tol": 1e-10, "max_iterations": 300, **options}
    result = fedshed.optimize(federation, algorithm="pen", **options)
    problem = {key: options[key] for key in ("l2", "loss", "intercept") if key in options}
    expected, _ = fedshed.optimum(federation, **problem)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, expected, atol=1e-6)


def test_separable_data_with_a_tiny_penalty():
    X = np.random.default_rng(0).normal(size=(80, 4))
    federation = Federation.from_arrays(X, X[:, 0] > 0, sites=np.arange(80) % 4)
    result = fedshed.optimize(federation, algorithm="pen", l2=1e-8, tol=1e-9, max_iterations=200)
    _, f_star = fedshed.optimum(federation, l2=1e-8)
    assert result.converged, result.reason
    assert result.trace[-1].f - f_star < 1e-8


def test_hessians_are_skipped_while_the_decrement_falls_fast():
    federation = digits("two-class")
    options = {"l2": 1e-4, "tol": 1e-9}
    every = fedshed.optimize(federation, algorithm=Pen(skip=False), **options)
    some = fedshed.optimize(federation, algorithm=Pen(), **options)
    assert some.converged
    assert some.trace[-1].hessians < every.trace[-1].hessians
    assert some.trace[-1].exchanges <= every.trace[-1].exchanges + 2
    np.testing.assert_allclose(some.theta, every.theta, atol=1e-4)


def test_seldom_hessians_cost_fewer_of_them_and_lead_to_the_same_limit(tmp_path):
    federation, path = digits("two-class"), tmp_path / "run.ckpt"
    options = {"l2": 1e-4, "tol": 1e-9}
    often = fedshed.optimize(federation, algorithm=Pen(skip=False), **options)
    seldom = fedshed.optimize(federation, algorithm=Pen(every=2, skip=False), **options)
    assert seldom.converged
    per_exchange = [run.trace[-1].hessians / run.trace[-1].exchanges for run in (often, seldom)]
    assert per_exchange[1] < 0.75 * per_exchange[0]
    np.testing.assert_allclose(seldom.theta, often.theta, atol=1e-4)
    fedshed.optimize(
        federation, algorithm=Pen(every=2, skip=False), max_iterations=4, checkpoint=path, **options
    )
    assert np.array_equal(fedshed.resume(path, federation, max_iterations=100).theta, seldom.theta)


# --- points that are too far away ------------------------------------------------------------------------


def far_away():
    """A gamma model that starts where one step of Newton overshoots by more than 32 bits can say."""
    rng, tables = np.random.default_rng(1), {}
    for site in "abc":
        X = rng.normal(size=(90, 4))
        z = 0.4 * X[:, 0] - 0.3 * X[:, 1]
        tables[site] = (np.column_stack([X, np.ones(90)]), rng.gamma(2, np.exp(z) / 2))
    return Federation.from_sites(tables), 2 * np.random.default_rng(3).normal(size=5)


@pytest.mark.parametrize("faults", [{}, {"lose": 0.2, "repeat": 0.2, "forget": 0.2, "seed": 1}])
def test_where_an_answer_cannot_be_coded_the_step_is_shortened(faults):
    federation, start = far_away()
    options = {"loss": "gamma", "l2": L2, "theta0": start, "tol": 1e-8}
    result = fedshed.optimize(
        federation, algorithm="pen", transport=lambda s: Faulty(InProcess(s), **faults), **options
    )
    assert result.converged, result.reason
    assert not result.refusals
    newton = fedshed.optimize(federation, algorithm="newton", **options)
    assert abs(result.trace[-1].f - newton.trace[-1].f) < 1e-12


def test_the_tensor_step_solves_the_model_that_it_is_made_for():
    """g - A d + a (s'd)^2 / 2 = 0 with a = (A - A_last) s / (s's)^2; without a change of A it is Newton's."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        A = np.eye(5) + 0.1 * np.diag(rng.random(5))
        before, s, g = A + 0.2 * np.diag(rng.random(5)), 0.5 * rng.normal(size=5), 0.3 * rng.normal(size=5)
        none = np.zeros((0, 5))
        d = direction(g, A, (before, s), none, none)
        a = (A - before) @ s / (s @ s) ** 2
        np.testing.assert_allclose(g - A @ d + a * (s @ d) ** 2 / 2, 0, atol=1e-12)
        np.testing.assert_allclose(A @ direction(g, A, (A, s), none, none), g, atol=1e-12)


def test_a_lost_answer_costs_no_copy():
    """The agent goes on from the copy before its last answer, which the Master never saw."""
    federation = make_federation("logistic")

    class Loses(InProcess):
        count = 0

        def exchange(self, payloads):
            self.count += 1
            lost = "large" if self.count in (3, 5) else None
            return [(i, data) for i, data in super().exchange(payloads) if i != lost]

    quiet, lossy = (
        fedshed.optimize(federation, algorithm="pen", l2=L2, transport=t).trace[-1]
        for t in (InProcess, Loses)
    )
    assert lossy.exchanges == quiet.exchanges + 2
    assert lossy.downlink_bytes - quiet.downlink_bytes < 2 * 300  # a copy alone has 8 (36 + 21 + 12) bytes


def test_a_frame_without_curvature_is_an_error_with_a_remedy():
    """A random study (92: separated Poisson counts) ended in an error of NumPy."""
    with pytest.raises(SingularError, match="separated; look at the table, standardise it"):
        _unwhiten(np.diag([1.0, 0.0]), np.ones((2, 3)))
