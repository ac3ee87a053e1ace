"""Section 4.2: Lemma 7, the exponent of SHED-LS with periodic renewals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshed.algorithms.renewal import Periodic

from .problems import EPS, Instance, axes, digits, examples, instances, norm, replay, shed_ls, starts


def factor(instance: Instance, q: int) -> float:
    """c(q) = 1 - mean lambda_n / mean rho*(q), with q the same for all agents."""
    spectra = {i: instance.eigenvalues(i, np.zeros(instance.n)) for i in instance.p}
    q = min(q, instance.n - 1)
    rho = instance.mean(lambda i: (spectra[i][q] + spectra[i][-1]) / 2)
    return float(1 - instance.mean(lambda i: spectra[i][-1]) / rho)


def a_bar(instance: Instance, T: int) -> float:
    """(c(1) ... c(T))^(1/T)."""
    return float(np.prod([max(factor(instance, q), 0.0) for q in range(1, T + 1)]) ** (1 / T))


def pairs_held(t: int, T: int) -> int:
    """q_t for I = {1, T, 2T, ...}: the first period has T - 1 steps, every other one T."""
    return t if t < T else t % T + 1


@examples(40)
@given(instances("least-squares"), st.data(), starts(3.0))
def test_lemma_7_product_of_factors_bounds_the_error(instance, data, start):
    """|theta^{t+1} - theta*| <= c_1 ... c_t |theta^1 - theta*|, with c_t = c(q_t) periodic after T."""
    T = data.draw(st.integers(1, instance.n + 1))
    theta = start(instance)
    small = 100 * EPS * instance.K_bar / instance.kappa_bar
    seen = replay(instance, shed_ls(renewal=Periodic(T)), theta, 3 * T)
    product = 1.0
    for round_ in seen:
        assert round_.c_star == pytest.approx(factor(instance, pairs_held(round_.t, T)), abs=small)
        product *= max(round_.c_star, 0.0)
        assert round_.error(after=True) <= product * seen[0].error() + round_.t * instance.rounding(theta)


@examples(40)
@given(instances("least-squares"), st.data())
def test_lemma_7_a_bar_bounds_the_exponent(instance, data):
    """The map of a period, Phi = A_{2T-1} ... A_T, has |Phi^m|^(1/mT) <= a_bar_T; its limit in m is a_*."""
    T = data.draw(st.integers(1, instance.n))
    seen = replay(instance, shed_ls(renewal=Periodic(T)), np.zeros(instance.n), 2 * T - 1)[T - 1 :]
    assert [round_.t for round_ in seen] == list(range(T, 2 * T))
    H, Phi = instance.hessian(instance.theta_star), np.eye(instance.n)
    small = 1000 * EPS * instance.K_bar / instance.kappa_bar
    for round_ in seen:
        A = np.eye(instance.n) - np.linalg.solve(round_.H_hat, H)
        assert norm(A, 2) <= round_.c_star + small
        moved = round_.after - instance.theta_star - A @ (round_.theta - instance.theta_star)
        assert norm(moved) <= instance.rounding(round_.theta)  # A is what the library's step does
        Phi = A @ Phi
    for m in (1, 2, 8):
        assert norm(np.linalg.matrix_power(Phi, m), 2) <= a_bar(instance, T) ** (m * T) + m * T * small


@examples(40)
@given(instances("least-squares", n=(3, 6)), starts(3.0))
def test_lemma_7_a_bar_falls_with_T_and_vanishes_at_n_minus_1(instance, start):
    """c(n - 1) = 0 already: renewals every T = n - 1 are exact once q has reached n - 1, at t = 2n - 3."""
    n = instance.n
    bounds = [a_bar(instance, T) for T in range(1, n + 1)]
    small = 100 * EPS * instance.K_bar / instance.kappa_bar
    assert all(np.diff(bounds) <= small)
    assert factor(instance, n - 1) <= small
    theta = start(instance)
    seen = replay(instance, shed_ls(renewal=Periodic(n - 1)), theta, 2 * n - 3)
    assert set(seen[-1].q.values()) <= set(range(n))
    assert seen[-1].error(after=True) <= seen[-1].t * instance.rounding(theta)


@examples(30)
@given(st.data())
def test_lemma_7_is_tight_when_agents_share_their_eigenvectors(data):
    """From theta* + v_n the error falls by exactly a_bar_T^T in every period after the first."""
    n = data.draw(st.integers(3, 6))
    T = data.draw(st.integers(1, n - 2))
    ladder = np.geomspace(1, 1 / 8, n)
    spectra = ladder * np.array([[1.0], [5.0], [0.3]])
    spectra[1] = np.sqrt(spectra[1])
    copies = data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
    instance = axes(spectra, copies, theta=np.ones(n))
    theta = instance.theta_star + np.eye(n)[-1]
    seen = replay(instance, shed_ls(renewal=Periodic(T)), theta, 4 * T)
    errors = {round_.t: round_.error() for round_ in seen}
    for start in (T, 2 * T, 3 * T):
        predicted = errors[start] * a_bar(instance, T) ** T
        reached = errors.get(start + T, seen[-1].error(after=True))
        assert abs(reached - predicted) <= T * instance.rounding(theta)


def test_lemma_7_on_digits():
    """T = 4: the error stays below the product of the c_k, and the c_k of a period give a_bar_T^T."""
    instance, T = digits("least-squares"), 4
    theta = np.random.default_rng(2).standard_normal(instance.n)
    seen = replay(instance, shed_ls(renewal=Periodic(T)), theta, 5 * T)
    product, rounding = 1.0, instance.rounding(theta)
    for round_ in seen:
        product *= round_.c_star
        assert round_.error(after=True) <= product * seen[0].error() + round_.t * rounding
    assert product * seen[0].error() > 100 * seen[-1].t * rounding  # still far above rounding
    small = 100 * EPS * instance.K_bar / instance.kappa_bar
    for start in range(T, 5 * T, T):
        period = np.prod([round_.c_star for round_ in seen[start - 1 : start + T - 1]])
        assert period == pytest.approx(a_bar(instance, T) ** T, abs=T * small)
    assert 0 < a_bar(instance, T + 1) < a_bar(instance, T) < a_bar(instance, T - 1) < 1
