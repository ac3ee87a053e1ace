"""QN-SHED: L-BFGS with budget 0, Newton without a limit, and robust in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed import Constant, Federation, Fused, TwoExchange
from fedshed.algorithms import QnShed, TailMean
from fedshed.algorithms.channels import ByteRate, PerAgent, Rayleigh, Recorded
from fedshed.algorithms.linked_agents import LinkCache
from fedshed.algorithms.qn_shed import LocalWhole
from fedshed.algorithms.renewal import EveryRound, GradientNorm, Once, Periodic, fibonacci_set
from fedshed.exchange import InProcess
from fedshed.exchange.site import Site
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives
from fedshed.protocol.codec import codec_of
from fedshed.protocol.conversation import Agent, Problem
from fedshed.protocol.links import encode_diagonal
from fedshed.protocol.messages import Local, Share, Update
from fedshed.protocol.precision import Bits, EntropyCoded, Exact
from fedshed.protocol.replies import Reply
from fedshed.solve.engine import Progress, iterate
from fedshed.solve.goal import Goal

L2 = 1e-3
UNLIMITED = Constant(10**6)
QUICK = settings(deadline=None, max_examples=100)


def setting(algorithm, federation, loss="logistic", l2=L2):
    objectives = local_objectives(federation, loss)
    problem = Problem(np.full(federation.dim, l2), {i: o.weight for i, o in objectives.items()}, loss)
    return objectives, problem, InProcess({i: Site(i, o, algorithm) for i, o in objectives.items()})


def states_of(algorithm, federation, loss="logistic", count=10, theta0=None):
    """The start and the state after every iteration."""
    _, problem, transport = setting(algorithm, federation, loss)
    theta = np.zeros(problem.n) if theta0 is None else theta0
    start = Progress(algorithm.start(problem, theta), rows=[])
    run = iterate(algorithm, problem, transport, start, Goal(tol=0.0, max_iterations=count))
    return [start.state, *(progress.state for progress in run)]


def pooled(federation, loss):
    """f, g, and each agent's p_i and Hessian, from the data."""
    objectives = local_objectives(federation, loss)
    N = sum(o.weight for o in objectives.values())

    def evaluate(theta):
        points = [(o.weight / N, o.at(theta)) for o in objectives.values()]
        f = sum(p * point.value for p, point in points) + L2 * theta @ theta / 2
        g = sum(p * point.gradient for p, point in points) + L2 * theta
        return f, g, [(p, gram(point.factor)) for p, point in points]

    return evaluate


def rounded_diagonal(hessians):
    """sum_i p_i diag H_i + l2, each diagonal and the sum to a quarter of an octave."""

    def quarters(x):
        return np.exp2(np.rint(4 * np.log2(x)) / 4)

    return quarters(sum(p * quarters(np.diag(H)) for p, H in hessians) + L2)


def armijo(evaluate, theta, direction):
    f, g, _ = evaluate(theta)
    eta = 1.0
    while evaluate(theta + eta * direction)[0] > f + 0.1 * eta * (g @ direction) + 4e-16 * max(1, abs(f)):
        eta /= 2
    return theta + eta * direction


def solved(federation, algorithm, loss="logistic", l2=L2, tol=1e-10, **options):
    """A run, held against the pooled optimum."""
    options = {"max_iterations": 500, **options}
    result = fedshed.optimize(federation, algorithm=algorithm, loss=loss, l2=l2, tol=tol, **options)
    expected, f_star = fedshed.optimum(federation, loss=loss, l2=l2)
    assert result.converged, result.reason
    assert abs(result.trace[-1].f - f_star) <= 1e-13 * max(1, abs(f_star))
    return result, np.abs(result.theta - expected).max()


# --- budget 0: L-BFGS ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize("memory", [1, 3, 20])
@pytest.mark.parametrize("renewal", [None, Once()], ids=["fibonacci", "once"])
def test_with_budget_0_it_is_lbfgs(loss, memory, renewal):
    """Against the dense update of (rho_bar D + l2)^-1 for the diagonal D at the start.

    rho_bar = sum_i p_i rho_i at the last renewal, rho_i = trace(D^-1 H_i) / n but for a small share.
    """
    federation = make_federation(loss)
    evaluate = pooled(federation, loss)
    algorithm = QnShed(precision=Exact(), channel=Constant(0), memory=memory)
    algorithm = algorithm if renewal is None else replace(algorithm, renewal=renewal)
    theta, secants, last, rho, D = np.zeros(6), [], None, 0.0, np.ones(6)
    for t, state in enumerate(states_of(algorithm, federation, loss, count=12)[1:], start=1):
        _, g, hessians = evaluate(theta)
        if t == 1 or (renewal is None and t in fibonacci_set(6, t)):
            D = D if t > 1 else rounded_diagonal(hessians)
            scaled = [(p, H / np.sqrt(np.outer(D, D))) for p, H in hessians]
            rho = sum(p * (0.975 * np.trace(H) / 6 + 0.025 * np.linalg.eigvalsh(H)[-1]) for p, H in scaled)
        if last is not None:
            secants.append((theta - last[0], g - last[1]))
        B = np.diag(1 / (rho * D + L2))
        for s, y in secants[-memory:]:
            left = np.eye(6) - np.outer(s, y) / (s @ y)
            B = left @ B @ left.T + np.outer(s, s) / (s @ y)
        last, theta = (theta, g), armijo(evaluate, theta, -B @ g)
        np.testing.assert_allclose(state.theta, theta, rtol=1e-7, atol=1e-9)
        theta = state.theta  # rounding would grow from step to step


def test_with_budget_0_agents_send_gradients_and_one_number():
    """Besides, the units cost a gradient and a coded diagonal at the start."""
    trace = fedshed.optimize(
        make_federation("logistic"), algorithm="qn-shed", budget=0, l2=L2, max_iterations=8
    ).trace
    assert len(trace) + 1 < trace[-1].uplink_vectors < len(trace) + 1.5
    assert all(row.q_max == 0 for row in trace)


@pytest.mark.parametrize("share", [0.0, 0.025, 1.0])
def test_rho_is_between_the_mean_and_the_largest_of_the_eigenvalues_that_follow(share):
    """From the trace as from all eigenvalues; at share 0 H_hat has the trace of H."""
    federation = make_federation("least-squares", n=8, sizes={"a": 50})
    algorithm = QnShed(precision=Exact(), channel=Constant(3), rho=TailMean(share=share))
    state = states_of(algorithm, federation, "least-squares", count=1)[1]
    held = state.known["a"].curvature
    H = gram(local_objectives(federation, "least-squares")["a"].at(np.zeros(8)).factor)
    scaled = H / np.outer(held.units, held.units)
    values = np.linalg.eigvalsh(scaled)[::-1]
    assert TailMean(share=share)(values, held.q) == pytest.approx(held.rho, rel=1e-9)
    np.testing.assert_allclose(held.values, values[: held.q], rtol=1e-9)
    if share == 0:
        trace = held.rho * 8 + held.excess.sum()
        assert trace == pytest.approx(np.trace(scaled), rel=1e-9)


# --- no limit: Newton -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 5.0])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize(
    "sizes", [{"a": 3, "b": 40, "c": 300}, {"a": 2, "b": 3, "c": 4}], ids=["mixed", "thin"]
)
def test_without_a_limit_it_is_newton(loss, scale, sizes):
    federation = make_federation(loss, sizes=sizes)
    start = scale * np.random.default_rng(1).normal(size=6)
    algorithm = QnShed(precision=Exact(), channel=UNLIMITED)
    ours, newtons = (
        states_of(a, federation, loss, count=6, theta0=start)
        for a in (algorithm, fedshed.ALGORITHMS["newton"].algorithm)
    )
    assert abs(len(ours) - len(newtons)) <= 1  # at rounding level one of them may stop first
    for one, two in zip(ours, newtons, strict=False):
        np.testing.assert_allclose(one.theta, two.theta, rtol=1e-10, atol=1e-10)
    result = fedshed.optimize(federation, algorithm=algorithm, loss=loss, l2=L2, theta0=start)
    assert [row.renewed for row in result.trace][1:] == [3] * (len(result.trace) - 1)
    assert result.certificate.estimate is not None


def test_without_a_limit_bytes_are_at_most_newtons():
    federation = make_federation("logistic", n=20)
    ours, newton = (
        fedshed.optimize(federation, algorithm=a, l2=L2, line_search=Fused()).trace
        for a in (QnShed(precision=Exact(), channel=UNLIMITED), "newton")
    )
    assert ours[-1].exchanges == newton[-1].exchanges + 1  # the units
    first = 3 * (8 * 20 + 64)  # a gradient and a diagonal of each agent
    assert ours[-1].uplink_bytes <= 1.02 * newton[-1].uplink_bytes + first


def test_without_a_limit_it_is_newton_where_an_agent_has_no_curvature():
    tables = {s: (t.X, t.y) for s, t in make_federation("logistic").tables.items()}
    federation = Federation.from_sites({**tables, "blank": (np.zeros((50, 6)), np.array(["no", "yes"] * 25))})
    ours, newtons = (
        states_of(a, federation, count=5)
        for a in (QnShed(precision=Exact(), channel=UNLIMITED), fedshed.ALGORITHMS["newton"].algorithm)
    )
    for one, two in zip(ours, newtons, strict=True):
        np.testing.assert_allclose(one.theta, two.theta, rtol=1e-10, atol=1e-10)


# --- the message that buys the most -----------------------------------------------------------------


def first_answer(algorithm, objective, n):
    """What an agent sends when it renews at theta = 0, and its size on the wire."""
    zero = np.zeros(n)
    held = LinkCache(zero, encode_diagonal(np.ones(n))) if isinstance(algorithm, QnShed) else None
    _, message = algorithm.respond(Agent("a", objective), held, Update(1, zero), Share(1, 0, True, None))
    return message, len(codec_of(algorithm, n).encode_reply(Reply(b"run!", 1, 1, [message]), -0.1))


@pytest.mark.parametrize("precision", [Exact(), Bits(bits=4), EntropyCoded()], ids=["exact", "bits", "coded"])
@pytest.mark.parametrize("budget", [1, 5, 6, 7, 8, 11, 12, 1000])
def test_the_packed_hessian_is_sent_where_it_is_smaller_than_the_pairs(budget, precision):
    n = 12
    objective = local_objectives(make_federation("least-squares", n=n), "least-squares")["large"]
    algorithm = QnShed(precision=precision, channel=Constant(budget))
    message, size = first_answer(algorithm, objective, n)
    pairs = fedshed.ALGORITHMS["fib-shed"].algorithm
    _, as_pairs = first_answer(replace(pairs, precision=precision, channel=Constant(budget)), objective, n)
    assert isinstance(message, LocalWhole if min(budget, n - 1) > (n + 1) / 2 else Local)
    assert size <= as_pairs + 8


def test_an_agent_of_low_rank_sends_its_few_pairs():
    n = 12
    objective = local_objectives(make_federation("least-squares", n=n, sizes={"a": 3}), "least-squares")["a"]
    message, _ = first_answer(QnShed(channel=UNLIMITED), objective, n)
    assert len(message.pairs.values) == 3
    assert message.pairs.last


@pytest.mark.parametrize("rows", [3, 12, 200])
def test_a_whole_hessian_is_held_as_it_is(rows):
    n = 9
    federation = make_federation("least-squares", n=n, sizes={"a": rows})
    H = gram(local_objectives(federation, "least-squares")["a"].at(np.zeros(n)).factor)
    state = states_of(QnShed(precision=Exact(), channel=UNLIMITED), federation, "least-squares", count=1)[1]
    held = state.known["a"].curvature
    assert held.complete
    np.testing.assert_allclose([held.matvec(e) for e in np.eye(n)], H, atol=1e-13 * np.abs(H).max())


def with_spectrum(values, seed=0):
    """One agent whose least-squares Hessian has these eigenvalues, in a random basis."""
    n = len(values)
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]
    X = np.vstack([np.sqrt(40 * np.array(values))[:, None] * Q.T, np.zeros((40 - n, n))])
    return Federation.from_sites({"a": (X, np.arange(40.0))})


@pytest.mark.parametrize(
    "values",
    [
        np.geomspace(9, 0.1, 10),
        [5.0, *[1.0] * 8, 0.5],
    ],
    ids=["distinct", "repeated"],
)
def test_a_whole_hessian_after_some_pairs_is_held_as_it_is(values):
    """3 pairs, then a link that carries everything."""
    federation, n = with_spectrum(values), len(values)
    algorithm = QnShed(precision=Exact(), channel=Recorded({"a": (3, 100)}), renewal=Once())
    held = states_of(algorithm, federation, "least-squares", count=3)[2].known["a"].curvature
    H = gram(local_objectives(federation, "least-squares")["a"].at(np.zeros(n)).factor)
    assert held.complete
    np.testing.assert_allclose([held.matvec(e) for e in np.eye(n)], H, atol=1e-10)


@pytest.mark.parametrize("precision", [Bits(bits=1), Bits(bits=3), EntropyCoded(step=1.0)])
def test_rounded_eigenvectors_are_made_unit_again(precision):
    federation = make_federation("logistic", n=12, sizes={"a": 30, "b": 200})
    for state in states_of(QnShed(precision=precision, channel=Constant(2)), federation, count=12)[1:]:
        for known in state.known.values():
            norms = np.linalg.norm(known.curvature.vectors, axis=1)
            assert np.all((np.abs(norms - 1) < 1e-12) | (norms == 0))


def test_bytes_of_a_round_follow_the_links_budget():
    """Twice the pairs, twice the bytes of curvature; a link of so many bytes never carries more."""
    federation = make_federation("logistic", n=40, sizes={"a": 200, "b": 200})

    def first(channel):
        algorithm = QnShed(precision=Exact(), channel=channel)
        return fedshed.optimize(federation, algorithm=algorithm, max_iterations=0).trace[-1].uplink_bytes / 2

    base = first(Constant(0))
    assert first(Constant(4)) - base == pytest.approx(2 * (first(Constant(2)) - base), rel=0.05)
    for rate in (400, 2000, 10_000):
        assert first(ByteRate(rate)) - base <= rate + 8


# --- secants ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [Exact(), EntropyCoded(), EntropyCoded(step=2.0), Bits(bits=1)])
@pytest.mark.parametrize("memory", [1, 5, 50])
def test_costs_fall_in_every_step_whatever_is_remembered(precision, memory):
    federation = make_federation("logistic", n=12, sizes={"a": 5, "b": 40, "c": 200})
    algorithm = QnShed(precision=precision, memory=memory, channel=Constant(1))
    result, _ = solved(federation, algorithm, tol=1e-9)
    assert (np.diff(result.trace.column("f")) <= 1e-15).all()
    assert (result.trace.column("eta")[1:] > 0).all()
    state = states_of(algorithm, federation, count=15)[-1]
    assert len(state.s) == len(state.y) <= min(memory, 14)


def test_secants_save_rounds():
    """With them the same eigenpairs converge in fewer iterations than SHED needs."""
    federation = make_federation("logistic", n=20, sizes={"a": 60, "b": 60, "c": 300})
    with_secants, _ = solved(federation, QnShed(precision=Exact(), channel=Constant(1)), l2=1e-5, tol=1e-9)
    without = fedshed.optimize(federation, algorithm="fib-shed", l2=1e-5, tol=1e-9)
    assert len(with_secants.trace) < 0.7 * len(without.trace)


# --- robust -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("partition", ["iid", "two-class"])
def test_digits_dealt_three_ways(partition, seed):
    federation = fedshed.datasets.load("digits", agents=10, partition=partition, seed=seed)
    result, error = solved(federation, "qn-shed", l2=1e-4, tol=1e-9)
    assert error <= 1e-5
    assert result.trace[-1].exchanges < 120


@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize(
    "sizes",
    [
        {f"agent-{i}": 4 + i for i in range(5)},
        {f"row-{i}": 1 for i in range(30)},
        {"one": 1, "two": 2, "many": 2000},
    ],
    ids=["rank-deficient", "rows", "unequal"],
)
def test_agents_of_few_rows(sizes, loss):
    federation = make_federation(loss, n=12, sizes=sizes)
    _, error = solved(federation, "qn-shed", loss)
    assert error <= 1e-6


@pytest.mark.parametrize("precision", [Exact(), EntropyCoded(), Bits(bits=4)], ids=["exact", "coded", "bits"])
@pytest.mark.parametrize(
    "channel",
    [
        PerAgent({"a": Constant(1), "b": Constant(100)}, Constant(10)),
        PerAgent({"a": ByteRate(100), "b": ByteRate(10_000)}, Constant(0)),
        PerAgent({"a": Recorded({"a": (0, 0, 0, 30)}), "b": Rayleigh()}, UNLIMITED),
    ],
    ids=["pairs", "bytes", "bursts"],
)
def test_budgets_unequal_by_a_hundred(channel, precision):
    federation = make_federation("logistic", n=20, sizes={"a": 300, "b": 60, "c": 100})
    _, error = solved(federation, QnShed(precision=precision, channel=channel))
    assert error <= 1e-6


@pytest.mark.parametrize("scale", [5.0, 40.0, 1000.0])
@pytest.mark.parametrize("budget", [0, 2, 6])
def test_from_far_away(scale, budget):
    start = scale * np.random.default_rng(1).normal(size=6)
    _, error = solved(
        make_federation("logistic"), "qn-shed", budget=budget, theta0=start, max_iterations=1500
    )
    assert error <= 1e-6


@pytest.mark.parametrize("l2", [1e-6, 1e-8])
def test_separable_data_with_hardly_a_penalty(l2):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(90, 5))
    y = np.where(X[:, 0] > 0, "yes", "no")
    X[:, 0] += np.sign(X[:, 0])  # a margin
    federation = Federation.from_sites({c: (X[k::3], y[k::3]) for k, c in enumerate("abc")})
    result, _ = solved(federation, "qn-shed", l2=l2, tol=1e-10)
    assert np.linalg.norm(result.theta) > 9


@pytest.mark.parametrize("budget", [0, 1, 4, 1000])
def test_least_squares_of_badly_scaled_columns(budget):
    federation = make_federation("least-squares", n=15, sizes={"a": 8, "b": 40, "c": 200})
    _, error = solved(federation, "qn-shed", "least-squares", l2=1e-6, budget=budget)
    assert error <= 1e-5


@pytest.mark.parametrize("renewal", [Once(), EveryRound(), Periodic(4), GradientNorm()])
@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
def test_any_renewal(renewal, loss):
    federation = make_federation(loss, n=12, sizes={"a": 30, "b": 100})
    _, error = solved(federation, QnShed(renewal=renewal, channel=Constant(2)), loss)
    assert error <= 1e-6


# --- exchange patterns --------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [Exact(), EntropyCoded(), Bits(bits=2)], ids=["exact", "coded", "bits"])
@pytest.mark.parametrize("budget", [0, 1, 6])
@pytest.mark.parametrize("scale", [0.0, 5.0, 40.0])
def test_fused_and_two_exchange_give_the_same_iterates_bit_for_bit(precision, budget, scale):
    federation = make_federation("logistic")
    start = scale * np.random.default_rng(1).normal(size=6)
    two, fused = (
        fedshed.optimize(
            federation, algorithm=QnShed(precision=precision), budget=budget, l2=L2, theta0=start,
            line_search=search, max_iterations=25, tol=0.0,
        )
        for search in (TwoExchange(), Fused())
    )  # fmt: skip
    assert np.array_equal(two.theta, fused.theta)
    assert two.trace.column("eta").tolist()[1:] == fused.trace.column("eta").tolist()[1:]
    assert fused.trace[-1].exchanges < two.trace[-1].exchanges
