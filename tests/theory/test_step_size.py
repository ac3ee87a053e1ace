"""Section 4.1: Lemma 4, Corollary 5 and Remark 6, on the library's own line search."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedshed.algorithms.channels import Constant, Recorded
from fedshed.algorithms.linesearch import TwoExchange
from fedshed.algorithms.renewal import Once
from fedshed.algorithms.rho import Midpoint, NextEigenvalue
from fedshed.algorithms.shed import Shed

from .problems import (
    EPS,
    Between,
    Instance,
    Round,
    axes,
    digits,
    examples,
    instances,
    norm,
    replay,
    shed_ls,
    starts,
)

alphas = st.floats(0.01, 0.49)


def sufficient_step(round_: Round) -> float:
    """min_i rho_i / lambda_{q+1}^(i) (equation 21)."""
    return min(round_.rho[i] / round_.next_eigenvalue(i) for i in round_.held)


def chosen(instance: Instance, algorithm: Shed, theta: np.ndarray, alpha: float, beta: float) -> float:
    """The step size of the library's line search in its first round."""
    searching = replace(algorithm, line_search=TwoExchange(alpha=alpha, beta=beta))
    return replay(instance, searching, theta, 1)[0].eta


# --- Lemma 4 ---------------------------------------------------------------------------------------


@examples(50)
@given(instances("least-squares"), st.data(), st.floats(0, 1), starts(3.0))
def test_lemma_4_the_step_satisfies_armijo_for_every_alpha(instance, data, share, start):
    """f(theta - eta p) <= f(theta) - eta p'g / 2, the limit alpha -> 1/2; also for any smaller step."""
    channel = Recorded({site: (data.draw(st.integers(0, 3)), 1) for site in instance.p})
    theta = start(instance)
    for round_ in replay(instance, shed_ls(channel, rho=Between(share)), theta, 5):
        p, f = round_.direction, instance.f(round_.theta)
        for eta in sufficient_step(round_) * np.array([1, 0.7, 0.1]):
            bound = f - eta * (p @ round_.g) / 2
            assert instance.f(round_.theta - eta * p) <= bound + instance.cost_rounding(round_.theta)


@examples(50)
@given(instances("least-squares"), st.integers(0, 3), st.floats(0, 1), starts(3.0), alphas)
def test_lemma_4_backtracking_that_tries_the_step_stops_there_at_the_latest(instance, d, share, start, alpha):
    algorithm = shed_ls(Constant(d), rho=Between(share))
    theta = start(instance)
    eta = sufficient_step(replay(instance, algorithm, theta, 1)[0])
    eta = min(1.0, eta) * (1 - 1000 * EPS * instance.K_bar / instance.l2)  # eigenvalues are known to eps K
    assert chosen(instance, algorithm, theta, alpha, beta=eta) >= eta


@examples(30)
@given(st.integers(0, 3), st.floats(0, 0.9), st.floats(0.02, 0.5))
def test_lemma_4_no_larger_step_satisfies_armijo_for_every_alpha(q, share, extra):
    """Along v_{q+1} the cost falls by eta p'g (1 - eta lambda_{q+1} / (2 rho)) exactly."""
    instance = axes([[8.0, 6.0, 5.0, 3.0, 1.0]], [1])
    round_ = replay(instance, shed_ls(Constant(q), rho=Between(share)), np.eye(5)[q], 1)[0]
    eta = sufficient_step(round_) * (1 + extra)
    slope = round_.direction @ round_.g
    decrease = instance.f(round_.theta) - instance.f(round_.theta - eta * round_.direction)
    assert decrease == pytest.approx(eta * slope * (1 - (1 + extra) / 2), rel=1e-12)
    alpha = (1 - extra / 2) / 2
    assert decrease < alpha * eta * slope


# --- Corollary 5 -----------------------------------------------------------------------------------


def steps(instance: Instance, rho: object, theta: np.ndarray, alpha: float, iterations: int) -> list[float]:
    """The step sizes of a run with backtracking, beta = 1/2, while the gradient is above rounding."""
    search = TwoExchange(alpha=alpha, beta=0.5)
    seen = replay(instance, Shed(renewal=Once(), line_search=search, rho=rho), theta, iterations)
    limit = instance.K * instance.rounding(theta)
    return [round_.eta for round_ in takewhile(lambda round_: norm(round_.g) > limit, seen)]


@examples(40)
@given(instances("least-squares"), starts(3.0), alphas)
def test_corollary_5_step_at_least_half_with_rho_star_and_one_with_the_next_eigenvalue(
    instance, start, alpha
):
    theta = start(instance)
    assert all(eta in (1.0, 0.5) for eta in steps(instance, Midpoint(), theta, alpha, 10))
    assert all(eta == 1.0 for eta in steps(instance, NextEigenvalue(), theta, alpha, 10))


@pytest.mark.parametrize("alpha", [0.1, 0.49])
def test_corollary_5_on_digits(alpha):
    instance = digits("least-squares")
    theta = np.random.default_rng(1).standard_normal(instance.n)
    halves = steps(instance, Midpoint(), theta, alpha, 40)
    full = steps(instance, NextEigenvalue(), theta, alpha, 40)
    assert len(halves) >= 20
    assert len(full) >= 20
    assert set(halves) <= {1.0, 0.5}
    assert set(full) == {1.0}


# --- Remark 6 --------------------------------------------------------------------------------------


@examples(40)
@given(st.integers(0, 3), st.lists(st.floats(0.01, 5), min_size=5, max_size=5, unique=True))
def test_remark_6_rho_star_may_not_get_a_full_step_however_small_alpha_is(q, spectrum):
    """With g = rho* e_{q+1} the step is p = e_{q+1}, the cost falls by lambda_n / 2, and eta = 1 needs
    alpha <= lambda_n / (lambda_{q+1} + lambda_n), which the spectrum makes as small as it likes.
    """
    lambdas = np.sort(spectrum)[::-1]
    instance = axes([lambdas], [1])
    rho_star = (lambdas[q] + lambdas[-1]) / 2
    theta = np.eye(5)[q] * rho_star / lambdas[q]  # so that g = H theta = rho* e_{q+1}
    algorithm = shed_ls(Constant(q))
    round_ = replay(instance, algorithm, theta, 1)[0]
    np.testing.assert_allclose(round_.g, rho_star * np.eye(5)[q], rtol=1e-13, atol=0)
    np.testing.assert_allclose(round_.direction, np.eye(5)[q], rtol=1e-13, atol=0)
    decrease = instance.f(theta) - instance.f(theta - round_.direction)
    assert decrease == pytest.approx(lambdas[-1] / 2, rel=1e-10)
    limit = lambdas[-1] / (lambdas[q] + lambdas[-1])
    if limit < 0.49:
        assert chosen(instance, algorithm, theta, limit * (1 - 1e-8), beta=0.5) == 1.0
        assert chosen(instance, algorithm, theta, limit * (1 + 1e-8), beta=0.5) == 0.5
