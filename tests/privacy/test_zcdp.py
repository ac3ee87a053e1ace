"""Accounting of differential privacy: costs, their sum, and what (epsilon, delta) they amount to."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm

from fedshed._utils.errors import ConfigError
from fedshed.privacy.zcdp import (
    composed,
    delta_of,
    epsilon_of,
    gaussian_delta,
    rho_for,
    rho_of,
    sigma_of,
    summed_rho,
)

RHO, EPSILON, DELTA = st.floats(1e-4, 20.0), st.floats(0.05, 30.0), st.floats(1e-10, 1e-2)


@settings(max_examples=50, deadline=None)
@given(RHO, DELTA)
def test_the_conversion_is_never_worse_than_the_simple_bound_and_never_better_than_the_truth(rho, delta):
    """exact Gaussian <= optimal conversion <= rho + 2 sqrt(rho log(1/delta)) (Bun and Steinke 2016)."""
    epsilon = epsilon_of(rho, delta)
    assert epsilon <= rho + 2 * sqrt(rho * log(1 / delta))
    assert gaussian_delta(sqrt(2 * rho), epsilon) <= delta * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(EPSILON, DELTA)
def test_a_budget_converts_there_and_back_and_is_never_exceeded(epsilon, delta):
    rho = rho_for(epsilon, delta)
    assert delta_of(rho, epsilon) <= delta
    assert epsilon_of(rho, delta) == pytest.approx(epsilon, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 5.0), EPSILON)
def test_the_conversion_is_the_least_over_all_orders(rho, epsilon):
    """No order on a fine grid gives a smaller delta."""
    alpha = 1 + np.logspace(-4, 4, 20_000)
    power = (alpha - 1) * (alpha * rho - epsilon) + alpha * np.log1p(-1 / alpha) - np.log(alpha - 1)
    least = exp(min(power.min(), 0.0))
    assert delta_of(rho, epsilon) <= least * (1 + 1e-9)
    assert delta_of(rho, epsilon) == pytest.approx(least, rel=1e-2, abs=1e-300)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 1.0), (0.8, 4.0), (2.0, 4.0)])
def test_the_exact_delta_of_a_gaussian_is_the_integral_of_what_exceeds_epsilon(mu, epsilon):
    """delta = integral of max(0, p - exp(epsilon) q), with p and q one sensitivity apart."""
    least = mu / 2 + epsilon / mu  # where p = exp(epsilon) q
    excess, _ = quad(lambda x: norm.pdf(x - mu) - exp(epsilon) * norm.pdf(x), least, least + 40, epsabs=1e-16)
    assert gaussian_delta(mu, epsilon) == pytest.approx(excess, rel=1e-6)


@pytest.mark.parametrize(
    ("rho", "epsilon"), [(0.02, 0.899935267660642), (0.05, 1.47159475053242), (0.3, 3.92005753694120)]
)
def test_dp_accounting_and_opendp_give_the_same_epsilon(rho, epsilon):
    """OpenDP 0.16.0, make_zCDP_to_approxDP at delta = 1e-6; dp-accounting 0.6.0 agrees to 1e-6."""
    assert epsilon_of(rho, 1e-6) == pytest.approx(epsilon, rel=1e-9)


@given(st.floats(1e-3, 1e3), RHO)
def test_noise_and_cost_are_each_others_inverse_and_costs_add_up(sensitivity, rho):
    assert rho_of(sensitivity, sigma_of(sensitivity, rho)) == pytest.approx(rho)
    parts = [sigma_of(sensitivity, rho * share) for share in (0.5, 0.3, 0.2)]
    assert composed(rho_of(sensitivity, sigma) for sigma in parts) == pytest.approx(rho)


def _privacy_loss(sigma, parties, alpha):
    """The exact Renyi divergence of order alpha between a sum of discrete Gaussians and the same plus 1."""
    x = np.arange(-60, 61)
    one = np.exp(-(x**2) / (2 * sigma**2))
    total = one / one.sum()
    for _ in range(parties - 1):
        total = np.convolve(total, one / one.sum())
    p, q = total[:-1], total[1:]
    kept = (p > 1e-290) & (q > 1e-290)
    return logsumexp(alpha * np.log(p[kept]) + (1 - alpha) * np.log(q[kept])) / (alpha - 1)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("parties", [1, 2, 5])
def test_the_bound_for_sums_of_discrete_gaussians_holds(sigma, parties):
    rho = summed_rho(1.0, sigma, parties, 1)
    for alpha in (1.5, 2.0, 4.0):
        assert _privacy_loss(sigma, parties, alpha) <= rho * alpha * (1 + 1e-9)
    assert rho >= rho_of(1.0, sigma * sqrt(parties)) * (1 - 1e-9)


def test_with_noise_of_many_units_a_sum_costs_what_one_gaussian_costs():
    for sigma in (9.0, 1e9):
        alone = rho_of(1.0, sigma * sqrt(50))
        assert summed_rho(1.0, sigma, 50, 100) == pytest.approx(alone, rel=1e-12)
    assert summed_rho(1.0, 0.5, 50, 100) > 2 * rho_of(1.0, 0.5 * sqrt(50))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (1.0, 0.0), (1.0, 1.0), (inf, -1)])
def test_a_budget_that_cannot_be_is_refused(epsilon, delta):
    with pytest.raises(ConfigError, match="epsilon must be above 0"):
        rho_for(epsilon, delta)
