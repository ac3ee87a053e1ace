"""When Hessians are renewed: the sets I of the paper, as docs/paper.md 1 to 3 read them; their purity."""

from __future__ import annotations

import inspect

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshed
from fedshed import optimize
from fedshed._utils.errors import ConfigError
from fedshed.algorithms.renewal import (
    EveryRound,
    Fibonacci,
    GradientNorm,
    GradientNormAsPrinted,
    History,
    Once,
    Periodic,
    fibonacci_set,
)
from fedshed.algorithms.shed import Shed
from fedshed.datasets import load
from fedshed.tables import Federation

steady = settings(max_examples=100, deadline=None)
POLICIES = [
    Once(),
    EveryRound(),
    Periodic(),
    Periodic(5),
    Fibonacci(),
    Fibonacci(start=0),
    GradientNorm(),
    GradientNormAsPrinted(),
]
norms = st.lists(st.floats(1e-12, 1e6), max_size=12).map(tuple)


def histories() -> st.SearchStrategy[History]:
    return st.builds(
        lambda norms, n, ago: History(len(norms) + 1, n, norms, max(0, len(norms) + 1 - ago)),
        norms, st.integers(1, 40), st.integers(1, 60),
    )  # fmt: skip


def renewals(policy: object, n: int, until: int, norms: tuple[float, ...] = ()) -> list[int]:
    """I up to an iteration, by asking the policy round by round as the Master does."""
    indices: list[int] = []
    for t in range(1, until + 1):
        history = History(t, n, norms[: t - 1], indices[-1] if indices else 0)
        if policy(history, "agent"):
            indices.append(t)
    return indices


# --- sets known beforehand -------------------------------------------------------------------------


def test_once_and_every_round():
    assert renewals(Once(), 9, 50) == [1]
    assert renewals(EveryRound(), 9, 50) == list(range(1, 51))


def test_fibonacci_set_of_the_paper():
    """C_j = F_1 + ... + F_j, from C_1 = 1: twelve renewals in the first 450 iterations for n = 300."""
    known = [1, 2, 4, 7, 12, 20, 33, 54, 88, 143, 232, 376]
    assert renewals(Fibonacci(), 300, 450) == known
    F = [1, 1]
    while len(F) < 12:
        F.append(F[-1] + F[-2])
    assert np.cumsum(F).tolist() == known


def test_a_fibonacci_set_that_starts_at_0():
    """Algorithm 4 counts from t = 0, our iteration 1: {0, 1, 2, 4, 7, ...}, whose 12th Hessian is at 232."""
    known = [0, 1, 2, 4, 7, 12, 20, 33, 54, 88, 143, 232, 376]
    assert [t - 1 for t in renewals(Fibonacci(start=0), 300, 450)] == known
    assert len([t for t in known if t <= 232]) == 12
    assert renewals(Fibonacci(start=0), 1, 5) == [1, 2, 3, 4, 5]


def test_a_set_that_starts_at_1_is_encoded_as_it_was_before_there_was_a_start():
    """Checkpoints of earlier versions are resumed: the same bytes, and they are read."""
    assert msgspec.json.encode(Fibonacci()) == b'{"type":"Fibonacci"}'
    assert msgspec.json.decode(b'{"type":"Fibonacci"}', type=Fibonacci) == Fibonacci()
    assert msgspec.json.decode(msgspec.json.encode(Fibonacci(0)), type=Fibonacci) == Fibonacci(0)


@pytest.mark.parametrize("start", [-1, 2, True])
def test_a_fibonacci_set_starts_at_0_or_1(start):
    with pytest.raises(ConfigError, match=f"starts at 0 or 1, not {start}"):
        Fibonacci(start)


@steady
@given(st.integers(1, 60), st.integers(1, 300))
def test_fibonacci_goes_on_in_steps_of_n_minus_1(n, until):
    """C_{j+1} = C_j + F_{j+1} while C_j < n - 1, then C_j + n - 1 (at least 1 further)."""
    expected, steps = [1], [1, 1]
    while expected[-1] < until:
        steps.append(steps[-1] + steps[-2])
        step = steps[len(expected)] if expected[-1] < n - 1 else max(1, n - 1)
        expected.append(expected[-1] + step)
    assert renewals(Fibonacci(), n, until) == [c for c in expected if c <= until]


@pytest.mark.parametrize(
    ("n", "known"),
    [(1, [1, 2, 3, 4, 5]), (2, [1, 2, 3, 4, 5]), (5, [1, 2, 4, 8, 12, 16]), (8, [1, 2, 4, 7, 14, 21])],
)
def test_fibonacci_in_small_dimensions(n, known):
    """n = 5: 4 >= n - 1, so 8, 12, ...; n = 8: 7 >= n - 1, so 14, 21, ..."""
    assert renewals(Fibonacci(), n, known[-1]) == known


@steady
@given(st.integers(1, 100), st.integers(1, 2000))
def test_fibonacci_has_bounded_delay_and_never_looks_ahead(n, t):
    """Assumption 2: no gap above n - 1; whether t is in I does not depend on how far the set was built."""
    indices = sorted(fibonacci_set(n, t))
    assert indices[0] == 1
    assert indices[-1] >= t
    assert max(np.diff(indices), default=0) <= max(n - 1, 1)
    assert fibonacci_set(n, t) <= fibonacci_set(n, 8 * t)
    assert (t in fibonacci_set(n, t)) == (t in fibonacci_set(n, 8 * t))


def test_periodic_as_printed():
    """I = {1, T, 2T, ...}: the first period is one iteration shorter."""
    assert renewals(Periodic(5), 99, 22) == [1, 5, 10, 15, 20]
    assert renewals(Periodic(1), 99, 4) == [1, 2, 3, 4]
    assert renewals(Periodic(), 4, 10) == renewals(Periodic(3), 4, 10) == [1, 3, 6, 9]
    assert renewals(Periodic(), 1, 3) == [1, 2, 3]


@pytest.mark.parametrize("every", [0, -3])
def test_a_period_below_one_is_refused(every):
    with pytest.raises(ConfigError, match=f">= 1, not {every}"):
        Periodic(every)


# --- sets that follow the gradient norm --------------------------------------------------------------


@steady
@given(norms, st.integers(1, 12), st.integers(1, 6), st.floats(0.1, 0.9))
def test_gradient_norm_keeps_its_distances(norms, n, apart, b):
    """At least `apart` between two renewals, at most n, whatever the norms do; n wins where it is smaller."""
    until = len(norms) + 1
    indices = renewals(GradientNorm(b, apart), n, until, norms)
    assert indices[0] == 1
    assert all(min(apart, n) <= gap <= n for gap in np.diff(indices))
    assert until - indices[-1] < n


@steady
@given(norms, st.integers(2, 12))
def test_gradient_norm_as_printed_waits_n_rounds_at_most(norms, n):
    indices = renewals(GradientNormAsPrinted(), n, len(norms) + 1, norms)
    assert indices[0] == 1
    assert max(np.diff(indices), default=1) <= n


def test_gradient_norm_renews_in_the_round_after_the_stall():
    """||g_t|| is known after round t's replies; decreases 4, 4, 1 with b = 0.3: the last is a stall."""
    norms = (16.0, 12.0, 8.0, 7.0, 6.9)
    assert renewals(GradientNorm(0.3), 50, 4, norms) == [1]
    assert renewals(GradientNorm(0.3), 50, 5, norms) == [1, 5]
    assert renewals(GradientNorm(0.2), 50, 5, norms) == [1]  # 1 is not below 0.2 * 4


def test_a_rising_gradient_norm_is_a_stall():
    assert renewals(GradientNorm(), 50, 5, (9.0, 8.0, 7.0, 7.5)) == [1, 5]


@steady
@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.floats(1e-9, 1e9))
def test_on_a_geometric_decrease_the_two_rules_are_opposite(b, rate, scale):
    """||g_t|| = rate^t: the decrease falls to `rate` of the one before.

    As printed, all but the fastest convergence (rate <= b) renews in every round; read as a stall, a steady
    decrease renews only if it is faster than b.
    """
    if abs(rate - b) < 1e-6:
        return
    norms = tuple(scale * rate ** np.arange(1.0, 12.0))
    stall = renewals(GradientNorm(b, apart=1), 50, 12, norms)
    printed = renewals(GradientNormAsPrinted(b), 50, 12, norms)
    in_every_round = [1, *range(4, 13)]
    assert stall == ([1] if rate > b else in_every_round)
    assert printed == (in_every_round if rate > b else [1])


def test_as_printed_the_trigger_arrives_with_b_above_1_and_not_below():
    """Digits, n = 64: with b < 1 the Master restarts too early; with b = 2, and reversed, it arrives."""
    federation = load("digits", agents=5)
    policies = (GradientNorm(), GradientNormAsPrinted(), GradientNormAsPrinted(0.3))
    renewed, reached = {}, {}
    for policy in policies:
        result = optimize(federation, l2=1e-3, algorithm=Shed(renewal=policy), max_iterations=130, tol=1e-8)
        renewed[policy] = np.flatnonzero(result.trace.column("renewed")).tolist()
        reached[policy] = result.converged
        assert renewed[policy] == renewals(policy, 64, len(result.trace) - 1, norms_of(result))
    assert reached == dict(zip(policies, (True, True, False), strict=True))
    assert min(np.diff(renewed[GradientNorm()])) >= 3
    assert len(renewed[GradientNormAsPrinted(0.3)]) > 0.9 * 130
    assert fedshed.ALGORITHMS["gn-shed"].algorithm == Shed(renewal=GradientNormAsPrinted(2.0))


def test_as_printed_a_decrease_more_than_b_times_the_last_renews():
    """Decreases 4, 4, 9: the third is more than twice the second, and the round after it renews."""
    assert renewals(GradientNormAsPrinted(), 50, 5, (20.0, 16.0, 12.0, 3.0)) == [1, 5]
    assert renewals(GradientNormAsPrinted(2.5), 50, 5, (20.0, 16.0, 12.0, 3.0)) == [1]


def test_as_printed_the_round_after_a_rise_renews_unless_it_goes_on():
    assert renewals(GradientNormAsPrinted(), 50, 4, (5.0, 6.0, 6.5)) == [1, 4]
    assert renewals(GradientNormAsPrinted(), 50, 4, (5.0, 6.0, 8.5)) == [1]


@pytest.mark.parametrize("b", [float("nan"), float("inf")])
def test_the_printed_rule_needs_a_finite_share(b):
    with pytest.raises(ConfigError, match="needs a finite b"):
        GradientNormAsPrinted(b)


def norms_of(result: object) -> tuple[float, ...]:
    """||g_1||, ||g_2||, ...: row j of a trace is the state before iteration j + 1."""
    return tuple(result.trace.column("grad_norm"))


# --- purity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_policy_is_a_function_of_the_history(policy):
    """Same question, same answer, whatever was asked in between, of whichever copy, for whichever agent."""
    copy = type(policy)(*(getattr(policy, name) for name in policy.__struct_fields__))

    @settings(max_examples=50, deadline=None)
    @given(st.lists(histories(), min_size=1, max_size=8), st.randoms(use_true_random=False))
    def check(asked, random):
        first = [policy(history, "a") for history in asked]
        order = list(range(len(asked)))
        random.shuffle(order)
        assert [copy(asked[j], "b") for j in order] == [first[j] for j in order]
        assert all(type(answer) is bool for answer in first)
        assert policy == copy

    check()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_policy_starts_with_a_renewal_and_cannot_be_changed(policy):
    assert policy(History(1, 7, (), 0), "agent")
    assert not hasattr(policy, "__dict__")
    for name in policy.__struct_fields__:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(policy, name, 1)
    assert list(inspect.signature(policy).parameters) == ["history", "agent"]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_run_renews_where_the_policy_says(policy):
    """The trace of a run shows I: the iterations at which every agent renewed, and how many did."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5)) * [3, 2, 1, 0.5, 0.1]
    y = np.where(X @ np.ones(5) + rng.standard_normal(60) > 0, 1, -1)
    federation = Federation.from_arrays(X, y, ["a"] * 40 + ["b"] * 15 + ["c"] * 5)
    result = optimize(federation, l2=1e-3, algorithm=Shed(renewal=policy), max_iterations=15, tol=0.0)
    counts = result.trace.column("renewed")  # row t is written after iteration t
    assert set(counts) <= {0.0, 3.0}
    assert np.flatnonzero(counts).tolist() == renewals(policy, 5, len(counts) - 1, norms_of(result))
