"""Section 5: Lemma 12 (corrected) and the three parts of Theorem 10, on logistic regression."""

from __future__ import annotations

from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshed.algorithms.channels import Constant
from fedshed.algorithms.linesearch import TwoExchange
from fedshed.algorithms.renewal import EveryRound, Fibonacci, GradientNorm, Periodic
from fedshed.algorithms.shed import Shed

from .problems import Instance, Round, axes, digits, examples, instances, norm, rounds, starts, unit

renewals = st.sampled_from([EveryRound(), Periodic(3), Fibonacci(), GradientNorm()])
alphas = st.sampled_from([0.1, 0.3, 0.45])
seeds = st.integers(0, 2**32 - 1)
mild = instances("logistic", l2=(0.02, 0.1, 0.3))


def until_rounding(instance: Instance, algorithm: Shed, theta: np.ndarray, iterations: int) -> list[Round]:
    """The rounds of a run whose error is above rounding."""
    run = islice(rounds(instance, algorithm, theta), iterations)
    return list(takewhile(lambda round_: round_.error() > instance.rounding(theta), run))


def farthest(round_: Round) -> float:
    """M(t) = max(|theta^t - theta*|, |theta^k - theta*|)."""
    return max(round_.error(), float(norm(round_.theta_k - round_.instance.theta_star)))


def unit_step_condition(round_: Round, alpha: float) -> bool:
    """3 kappa (M(t) + |e|) + K |e| <= 3 kappa^2 (1 - 2 alpha) / L, with kappa = sum_i p_i kappa_i."""
    instance, error = round_.instance, round_.error()
    kappa = instance.kappa_bar
    left = 3 * kappa * (farthest(round_) + error) + instance.K * error
    return left <= 3 * kappa**2 * (1 - 2 * alpha) / instance.L


def contraction_condition(round_: Round) -> bool:
    """3 L |e| / 2 + L M(t) < kappa."""
    instance = round_.instance
    return 1.5 * instance.L * round_.error() + instance.L * farthest(round_) < instance.kappa_bar


def region(instance: Instance, alpha: float) -> float:
    """The radius around theta* in which both conditions hold at a start."""
    kappa, L = instance.kappa_bar, instance.L
    return min(3 * kappa**2 * (1 - 2 * alpha) / L / (6 * kappa + instance.K), kappa / (2.5 * L)) * (1 - 1e-9)


def linear_factor(round_: Round) -> float:
    """c_t of equation (29): Theorem 9 with eta = 1."""
    distances = norm(round_.theta - round_.theta_k) + round_.error() / 2
    return float(round_.c + round_.instance.L * distances / round_.rho_bar)


def exact(round_: Round) -> bool:
    """Whether t is in X_t: every agent has sent all of its Hessian."""
    return all(held.complete for held in round_.held.values())


# --- Lemma 12, corrected ---------------------------------------------------------------------------


@examples(40)
@given(mild, renewals, alphas, seeds, st.floats(0.5, 30))
def test_lemma_12_full_step_where_the_condition_holds(instance, renewal, alpha, seed, times):
    """Starts in and around the region where it holds at once."""
    theta = instance.theta_star + times * region(instance, alpha) * unit(seed, instance.n)
    algorithm = Shed(renewal=renewal, line_search=TwoExchange(alpha=alpha))
    seen = until_rounding(instance, algorithm, theta, 100)
    near = [round_ for round_ in seen if unit_step_condition(round_, alpha)]
    assert near or times > 1
    assert all(round_.eta == 1.0 for round_ in near)


@examples(60)
@given(instances("logistic"), renewals, alphas, seeds, st.floats(-4, 1))
def test_lemma_12_full_step_where_its_proof_says_so(instance, renewal, alpha, seed, far):
    """H_hat >= rho_bar I, so the proof needs only, with sigma^2 = p'g,

    L |theta^t - theta^k| / (2 rho_bar) + L sigma / (6 rho_bar^(3/2)) <= 1/2 - alpha.
    """
    theta = instance.theta_star + 10**far * unit(seed, instance.n)
    algorithm = Shed(renewal=renewal, line_search=TwoExchange(alpha=alpha))
    for round_ in until_rounding(instance, algorithm, theta, 60):
        rho, stale = round_.rho_bar, norm(round_.theta - round_.theta_k)
        sigma = np.sqrt(round_.direction @ round_.g)
        if instance.L * (stale / (2 * rho) + sigma / (6 * rho**1.5)) <= 0.5 - alpha:
            assert round_.eta == 1.0


# --- Theorem 10, part 1 ----------------------------------------------------------------------------


def check_linear(seen: list[Round], alpha: float) -> bool:
    """From the first round where both conditions hold: they go on to hold, eta = 1, and c_t < 1."""
    near = False
    for round_ in seen:
        holds = unit_step_condition(round_, alpha) and contraction_condition(round_)
        assert holds or not near
        near = near or holds
        if near:
            rounding = round_.instance.rounding(round_.theta)
            assert round_.eta == 1.0
            assert linear_factor(round_) < 1
            assert round_.error(after=True) <= linear_factor(round_) * round_.error() + rounding
            assert round_.error(after=True) < round_.error() + rounding
    return near


@examples(50)
@given(mild, renewals, alphas, seeds, st.floats(0.2, 1))
def test_theorem_10_1_linear_for_ever_once_both_conditions_hold(instance, renewal, alpha, seed, share):
    theta = instance.theta_star + share * region(instance, alpha) * unit(seed, instance.n)
    algorithm = Shed(renewal=renewal, line_search=TwoExchange(alpha=alpha))
    seen = until_rounding(instance, algorithm, theta, 100)
    assert unit_step_condition(seen[0], alpha)
    assert contraction_condition(seen[0])
    check_linear(seen, alpha)


@examples(30)
@given(mild, renewals, alphas, starts())
def test_theorem_10_1_the_conditions_hold_sooner_or_later(instance, renewal, alpha, start):
    algorithm = Shed(renewal=renewal, line_search=TwoExchange(alpha=alpha))
    seen = until_rounding(instance, algorithm, start(instance), 300)
    assert check_linear(seen, alpha) or len(seen) < 300  # the last steps may jump over the region


@pytest.mark.parametrize(
    "renewal", [Periodic(20), Fibonacci(), GradientNorm()], ids=lambda r: type(r).__name__
)
def test_theorem_10_1_on_digits(renewal):
    instance = digits("logistic", l2=0.1)
    seen = until_rounding(instance, Shed(renewal=renewal), np.zeros(instance.n), 300)
    assert check_linear(seen, alpha=0.1)


# --- Theorem 10, part 2 ----------------------------------------------------------------------------


def factors_at_optimum(instance: Instance, T: int) -> list[float]:
    """1 - mean lambda_n / mean lambda_{q+1} for q = 1, ..., T, from the spectra at theta*."""
    spectrum = instance.mean(lambda i: instance.eigenvalues(i, instance.theta_star))
    return [float(1 - spectrum[-1] / spectrum[q]) for q in range(1, T + 1)]


def period_at_optimum(instance: Instance, T: int) -> np.ndarray:
    """The derivative at theta* of the T steps of a period: its spectral radius is a_*^T."""
    H, Phi = instance.hessian(instance.theta_star), np.eye(instance.n)
    local = {i: np.linalg.eigh(instance.hessian(instance.theta_star, i)) for i in instance.p}
    for q in range(1, T + 1):
        H_hat = 0.0
        for i, p in instance.p.items():
            values, vectors = local[i][0][::-1], local[i][1][:, ::-1]
            hat = np.append(values[:q], np.full(instance.n - q, values[q]))
            H_hat = H_hat + p * (vectors * hat) @ vectors.T
        Phi = (np.eye(instance.n) - np.linalg.solve(H_hat, H)) @ Phi
    return Phi


def corrected(round_: Round, factor: float) -> float:
    """A bound of the contraction at t from the factor at theta*, before the limit is taken.

    Eigenvalues move by at most L_i |theta^k - theta*|, so mean rho and mean lambda_n by L |theta^k - theta*|,
    and Theorem 9 adds L (|theta^t - theta^k| + |e| / 2) / rho_bar.
    """
    instance = round_.instance
    shift = instance.L * norm(round_.theta_k - instance.theta_star)
    rest = instance.L * (norm(round_.theta - round_.theta_k) + round_.error() / 2)
    return float(factor + (2 * shift + rest) / round_.rho_bar)


def check_exponent(seen: list[Round], T: int) -> list[float]:
    """The error falls as the spectra at theta* say, corrected; returns the correction of each whole period.

    A period that starts with a renewal takes E to at most a_bar_T^T E times its correction.
    """
    c, errors, relative = factors_at_optimum(seen[0].instance, T), {}, {}
    for round_ in seen:
        factor = c[(round_.t if round_.t < T else round_.t % T + 1) - 1]
        bound = corrected(round_, factor)
        rounding = round_.instance.rounding(seen[0].theta)
        assert round_.eta == 1.0
        assert not exact(round_)
        assert round_.error(after=True) <= bound * round_.error() + rounding
        errors[round_.t], relative[round_.t] = round_.error(), bound / factor
    whole = [start for start in range(T, seen[-1].t, T) if start + T in errors]
    corrections = [float(np.prod([relative[t] for t in range(start, start + T)])) for start in whole]
    for start, correction in zip(whole, corrections, strict=True):
        assert errors[start + T] <= np.prod(c) * errors[start] * correction + T * rounding
    return corrections


full_rank = instances("logistic", n=(3, 6), full_rank=True, l2=(0.02, 0.1))


@examples(40)
@given(full_rank, st.data(), seeds)
def test_theorem_10_2_exponent_from_the_spectra_at_the_optimum(instance, data, seed):
    """Renewals every T <= n - 2 with d = 1: no exact step; a_* <= a_bar_T, from the spectra at theta*.

    a_*^T itself is the spectral radius of the derivative of a period at theta*.
    """
    T = data.draw(st.integers(1, instance.n - 2))
    theta = instance.theta_star + region(instance, 0.1) * unit(seed, instance.n)
    check_exponent(until_rounding(instance, Shed(renewal=Periodic(T)), theta, 150), T)
    Phi, bound = period_at_optimum(instance, T), np.prod(factors_at_optimum(instance, T))
    assert norm(Phi, 2) <= bound * (1 + 1e-9)
    assert np.abs(np.linalg.eigvals(Phi)).max() <= norm(Phi, 2) * (1 + 1e-9)


def test_theorem_10_2_on_digits():
    """T = 4: periods enough before rounding to see the corrections vanish."""
    instance, T = digits("logistic", l2=0.1), 4
    theta = instance.theta_star + region(instance, 0.1) * unit(5, instance.n)
    corrections = check_exponent(until_rounding(instance, Shed(renewal=Periodic(T)), theta, 60), T)
    assert len(corrections) >= 3
    assert corrections[-1] < 1.01


def shared_eigenvectors(n: int) -> Instance:
    """Three unequal agents whose Hessians are diagonal everywhere, v_n the last axis for all of them."""
    spectra = np.geomspace(1, 0.2, n) * np.array([[1.0], [3.0], [0.5]])
    return axes(spectra, [1, 2, 9], loss="logistic", l2=0.02)


def check_attained(seen: list[Round], T: int) -> int:
    """After each whole period the error is a_bar_T^T of what it was, up to second order; their number.

    mean lambda_n, mean rho and the mean of H between theta and theta* differ from their values at theta* by
    at most L E each, so 1 - h/rho differs from c by at most 5 L E / rho, rho = lambda_n / (1 - c) at theta*.
    """
    instance, c = seen[0].instance, np.array(factors_at_optimum(seen[0].instance, T))
    lowest = instance.mean(lambda i: instance.eigenvalues(i, instance.theta_star))[-1]
    errors = {round_.t: round_.error() for round_ in seen}
    whole = [start for start in range(T, seen[-1].t, T) if start + T in errors]
    for start in whole:
        second = np.prod(1 + 5 * instance.L * errors[start] * (1 - c) / (lowest * c)) - 1
        rounding = T * instance.rounding(seen[0].theta) / errors[start]
        assert second < 0.1
        assert abs(errors[start + T] / errors[start] - np.prod(c)) <= second * np.prod(c) + rounding
        assert rounding < 0.1 * np.prod(c)
    return len(whole)


@pytest.mark.parametrize("T", [1, 2, 3])
def test_theorem_10_2_is_attained_when_agents_share_their_eigenvectors(T):
    instance = shared_eigenvectors(5)
    theta = instance.theta_star + 1e-4 * np.eye(5)[-1]
    seen = until_rounding(instance, Shed(renewal=Periodic(T)), theta, 4 * T)
    assert check_attained(seen, T) == 3


# --- Theorem 10, part 3 ----------------------------------------------------------------------------


@examples(40)
@given(mild, seeds, st.integers(0, 3))
def test_theorem_10_3_every_period_with_an_exact_step_squares_the_error(instance, seed, longer):
    """T >= n - 1: where q reaches n - 1, c = 0 and Theorem 9 leaves L (|theta^t - theta^k| + |e|/2)|e| / rho.

    Both distances are at most those at the renewal, and no other step enlarges the error, so a period turns
    E into at most (5/2) L E^2 / kappa: |theta^t - theta*|^(1/t) tends to 0.
    """
    T = max(1, instance.n - 1) + longer
    theta = instance.theta_star + region(instance, 0.1) * unit(seed, instance.n)
    run = islice(rounds(instance, Shed(renewal=Periodic(T)), theta), 6 * T)
    seen, rounding = list(run), instance.rounding(theta)
    for round_ in filter(exact, seen):
        distances = norm(round_.theta - round_.theta_k) + round_.error() / 2
        bound = instance.L * distances / round_.rho_bar * round_.error()
        assert round_.error(after=True) <= bound + rounding
    at = {round_.t: round_.error() for round_ in seen}
    at_rounding_level = len(seen) < 6 * T  # the engine ended the run there
    assert at_rounding_level or sum(map(exact, seen)) >= 5  # one in every period but the first, at least
    for start in (t for t in range(T, 5 * T, T) if t + T in at):
        assert at[start + T] <= 2.5 * instance.L / instance.kappa_bar * at[start] ** 2 + T * rounding


@examples(30)
@given(mild, seeds)
def test_theorem_10_3_with_all_pairs_in_every_round_it_is_newton(instance, seed):
    """X_t = {1, ..., t}: |e_{t+1}| <= L |e_t|^2 / (2 rho_bar)."""
    theta = instance.theta_star + region(instance, 0.1) * unit(seed, instance.n)
    algorithm = Shed(renewal=EveryRound(), channel=Constant(instance.n))
    for round_ in until_rounding(instance, algorithm, theta, 10):
        assert exact(round_)
        bound = instance.L / (2 * round_.rho_bar) * round_.error() ** 2
        assert round_.error(after=True) <= bound + instance.rounding(theta)


def test_theorem_10_3_superlinear_with_exact_steps_and_linear_without():
    """From theta* + v_n: with T = n - 1 the factor of a period falls with the error itself, so that

    error^(1/t) falls from period to period; with T = n - 2 the factor is a_bar_T^T in every period.
    """
    instance = shared_eigenvectors(4)
    theta = instance.theta_star + 0.5 * np.eye(4)[-1]
    errors = [round_.error() for round_ in until_rounding(instance, Shed(renewal=Periodic(3)), theta, 30)]
    renewed = np.array(errors[2::3])  # t = 3, 6, 9, ...
    assert len(renewed) >= 3
    factors = renewed[1:] / renewed[:-1]
    assert all(factors <= 2.5 * instance.L / instance.kappa_bar * renewed[:-1])
    assert all(np.diff(np.log(factors)) < np.log(0.1))
    assert all(np.diff(renewed ** (1 / np.arange(3, 3 * len(renewed) + 1, 3))) < 0)
    theta = instance.theta_star + 1e-4 * np.eye(4)[-1]
    assert check_attained(until_rounding(instance, Shed(renewal=Periodic(2)), theta, 12), 2) >= 3
