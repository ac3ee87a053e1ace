"""PEN's dither: unbiased over the draws, asked for where errors are alike, and only a cache at the agents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from conftest import make_federation
from fedshed.algorithms import Pen
from fedshed.algorithms.pen.direction import LONGEST, SHORTEST, minimize_cubic
from fedshed.algorithms.pen.dither import Dither, coherence
from fedshed.algorithms.pen.frame import encode_move
from fedshed.algorithms.pen.innovation import Copy, Steps, correct_copy, innovation
from fedshed.exchange import Faulty, InProcess, Stateless
from made_matrices import spd, symmetric

QUICK = settings(deadline=None, max_examples=25)
ALWAYS = Pen(coherent=0.0)  # dithered from the first accepted move on
STEPS = Steps(entries=0.1, dithered=0.1, first=0.1, first_dithered=0.1, pairs=0.0)
MOVE = encode_move(3, b"", np.array([0.3, -0.2]), 1.0, dither=True)


# --- rounding -----------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0.01, 5.0))
@QUICK
def test_the_mean_over_the_agents_of_what_is_decoded_is_the_change(seed, step):
    """Multiples of the golden ratio: the mean of K agents is within 3/K steps, not 1/(2 K^0.5)."""
    change = np.random.default_rng(seed).normal(size=50)
    K = 144
    decoded = [step * Dither(i, 0).symbols(change, 1.0, step, MOVE.step) for i in range(K)]
    assert np.abs(np.mean(decoded, axis=0) - change).max() <= 3 / K * step
    assert all(np.abs(each - change).max() <= step * (1 + 1e-6) for each in decoded)


def test_the_mean_over_the_moves_of_what_one_agent_sends_is_the_change():
    change, K = np.random.default_rng(0).normal(size=200), 1000
    moves = [encode_move(3, b"", np.array([k, 1.0]), 1.0, dither=True) for k in range(K)]
    decoded = np.mean([0.5 * Dither(5, 0).symbols(change, 1.0, 0.5, move.step) for move in moves], axis=0)
    assert np.abs(decoded - change).max() <= 5 * 0.25 / np.sqrt(K)  # a draw's deviation is at most step / 2


def test_only_the_change_is_dithered_and_only_large_errors_are_sent_again():
    step, error = 0.1, np.array([0.0, 0.09, -0.09, 0.25, -0.25])
    symbols = np.array([Dither(i, i, error).symbols(error, 1.0, step, MOVE.step) for i in range(400)])
    assert (symbols[:, :3] == 0).all()  # nothing changed: nothing is sent
    assert set(np.unique(symbols[:, 3])) == {2.0, 3.0}
    np.testing.assert_allclose(symbols[:, 3:].mean(axis=0), [2.5, -2.5], atol=0.15)


@given(st.integers(2, 10), st.integers(0, 10**6))
@QUICK
def test_a_dithered_innovation_is_decoded_as_any_other(n, seed):
    rng = np.random.default_rng(seed)
    prediction = Copy(7, spd(n, seed, 0.5), np.zeros(n))
    move, W = encode_move(3, b"", rng.normal(size=n), 1.0, dither=True), spd(n, seed + 1, 0.5)
    answer = innovation(1.0, np.zeros(n), W, prediction, move, STEPS, np.inf, Dither(4, 9))
    new = correct_copy(prediction, move, answer)
    assert np.abs(new.W - W).max() <= 0.1 * (1 + 1e-6)
    assert answer.error == pytest.approx(np.sum((new.W - W) ** 2), rel=1e-6, abs=1e-12)


def test_entries_that_all_agents_would_round_to_0_are_in_the_mean_of_dithered_ones():
    """The bias that the coherence test finds: alike agents, entries of one sign below the dead zone."""
    n, K = 12, 40
    prediction, W = Copy(7, np.eye(n), np.zeros(n)), np.eye(n) + 0.04
    move = encode_move(3, b"", np.ones(n), 1.0, dither=True)  # which sets the step, whoever dithers

    def mean_error(dither):
        answers = [
            innovation(0.0, np.zeros(n), W, prediction, move, STEPS, np.inf, dither(i)) for i in range(K)
        ]
        mean = sum(correct_copy(prediction, move, answer).W for answer in answers) / K
        return np.linalg.norm(mean - W, 2)

    biased, unbiased = mean_error(lambda i: None), mean_error(lambda i: Dither(i, i))
    assert biased > 0.4  # 0.04 n, but for what the factor c explains
    assert unbiased < biased / 10


# --- the test of coherence ----------------------------------------------------------------------------


@pytest.mark.parametrize("agents", [5, 100])
def test_rho_is_about_1_for_independent_errors_and_grows_with_the_agents_for_equal_ones(agents):
    rng, n = np.random.default_rng(agents), 80
    u, p = rng.normal(size=n), 1 / agents
    errors = [symmetric(n, rng) for _ in range(agents)]
    noise = 2 * np.sqrt(sum(p**2 * np.sum(E**2) for E in errors) / n)
    assert coherence(sum(p * E @ u for E in errors), noise, u) == pytest.approx(1.0, abs=0.35)
    assert coherence(errors[0] @ u, noise, u) == pytest.approx(np.sqrt(agents), rel=0.35)


# --- only a cache -------------------------------------------------------------------------------------


def fitted(algorithm=ALWAYS, **options):
    return fedshed.optimize(make_federation("logistic"), algorithm=algorithm, l2=1e-3, tol=1e-10, **options)


def same(one, two):
    return np.array_equal(one.theta, two.theta) and one.trace[-1].uplink_bytes == two.trace[-1].uplink_bytes


def test_dithering_changes_the_path_and_not_the_limit():
    dithered, nearest = fitted(), fitted(Pen())
    assert dithered.converged
    assert [row.f for row in dithered.trace] != [row.f for row in nearest.trace]
    np.testing.assert_allclose(dithered.theta, nearest.theta, atol=1e-7)


def test_stateless_agents_dither_the_same():
    """They are sent the point of the last Hessian, and compute its error again."""
    assert same(fitted(), fitted(transport=Stateless))


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_run_dithers_the_same(stop, tmp_path):
    path = tmp_path / "run.ckpt"
    fitted(max_iterations=stop, checkpoint=path)
    assert same(fitted(), fedshed.resume(path, make_federation("logistic"), max_iterations=100))


@pytest.mark.parametrize("seed", range(3))
def test_lost_late_and_forgotten_answers_change_no_draw(seed):
    """Every answer is a function of the request and the agent's rows."""
    faults = {"lose": 0.25, "delay": 0.2, "repeat": 0.3, "forget": 0.25, "seed": seed}
    faulty = fitted(transport=lambda sites: Faulty(InProcess(sites), **faults))
    assert np.array_equal(faulty.theta, fitted().theta)


def test_another_blas_at_the_agents_leads_to_the_same_limit():
    rng = np.random.default_rng(0)

    class OtherMachine(InProcess):
        def exchange(self, payloads):
            replies = list(super().exchange(payloads))
            for site in self.sites.values():
                cache = site._cache
                if cache.H is not None:
                    noise = 1 + 1e-15 * rng.normal(size=cache.H.shape)
                    site._cache = replace(cache, H=cache.H * noise)
            return replies

    other = fitted(transport=OtherMachine)
    assert other.converged
    np.testing.assert_allclose(other.theta, fitted().theta, atol=1e-7)


# --- after a rejected trial ---------------------------------------------------------------------------


@given(st.floats(0.11, 0.69), st.floats(0.1, 10), st.floats(0, 5))
@QUICK
def test_the_next_trial_is_the_minimiser_of_the_cubic(x, a, b):
    """f(t) = a (t - x)^2 / 2 + b (t - x)^2 (t + 2x) has its minimum at x."""

    def f(t):
        return a * (t - x) ** 2 / 2 + b * (t - x) ** 2 * (t + 2 * x)

    def slope(t):
        return a * (t - x) + b * (2 * (t - x) * (t + 2 * x) + (t - x) ** 2)

    assert minimize_cubic(f(0), slope(0), f(1), slope(1)) == pytest.approx(x, rel=1e-6)


@given(st.floats(-10, -1e-3), st.floats(-10, 10), st.floats(-10, 10))
@QUICK
def test_the_next_trial_is_always_shorter_and_never_0(slope0, f1, slope1):
    assert SHORTEST <= minimize_cubic(0.0, slope0, f1, slope1) <= LONGEST
    assert SHORTEST <= minimize_cubic(0.0, slope0, float("inf"), slope1) <= LONGEST
