"""Section 3: Theorem 1, Corollary 2 and Theorem 3, on steps that the library takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedshed.algorithms.channels import Constant, Rayleigh, Recorded
from fedshed.algorithms.renewal import Once, Periodic
from fedshed.algorithms.rho import Midpoint, NextEigenvalue
from fedshed.algorithms.shed import Shed

from .problems import (
    EPS,
    FixedRho,
    FixedStep,
    Instance,
    axes,
    digits,
    examples,
    instances,
    norm,
    replay,
    shed_ls,
    starts,
)

# One agent with all the data: "centralised".
central = instances("least-squares", n=(2, 5), agents=(1, 1), full_rank=True, l2=(0.0,))
share = st.floats(0, 1)


def spectrum(instance: Instance) -> np.ndarray:
    (site,) = instance.p
    return instance.eigenvalues(site, instance.theta_star)


def step(instance: Instance, q: int, rho: float, eta: float, theta: np.ndarray) -> np.ndarray:
    """The error after one step of the library with q eigenpairs, rho and eta."""
    algorithm = Shed(renewal=Once(), channel=Constant(q), line_search=FixedStep(eta), rho=FixedRho(rho))
    (only,) = replay(instance, algorithm, theta, 1)
    assert set(only.q.values()) == {q}
    return only.after - instance.theta_star


def factor(instance: Instance, q: int, rho: float, eta: float) -> float:
    """r(rho, eta, q), the norm of A = I - eta H_hat^-1 H: A's columns are errors from theta* + e_j."""
    around = instance.theta_star + np.eye(instance.n)
    return float(norm([step(instance, q, rho, eta, theta) for theta in around], 2))


def tolerance(instance: Instance) -> float:
    return instance.rounding(instance.theta_star + 1.0)


# --- Theorem 1 -------------------------------------------------------------------------------------


@examples(40)
@given(central, st.data(), share)
def test_theorem_1_every_pair_in_S_star_achieves_the_best_factor(instance, data, share):
    """rho in [lambda_n, lambda_{q+1}] and eta = rho / rho* give 1 - lambda_n / rho*."""
    q = data.draw(st.integers(0, instance.n - 1))
    lambdas = spectrum(instance)
    rho_star = (lambdas[q] + lambdas[-1]) / 2
    rho = lambdas[-1] + share * (lambdas[q] - lambdas[-1])
    r_star = 1 - lambdas[-1] / rho_star
    assert factor(instance, q, rho, rho / rho_star) == pytest.approx(r_star, abs=tolerance(instance))


@examples(60)
@given(central, st.data(), share, st.floats(0.05, 2.5))
def test_theorem_1_no_pair_is_better_and_none_off_S_star_is_as_good(instance, data, share, eta):
    """With s = eta/rho and s* = 1/rho*: r - r* >= |s - s*| lambda_n.

    At s = s* the leading q directions shrink by |1 - rho/rho*| only, which exceeds r* by the distance of rho
    to [lambda_n, lambda_{q+1}], over rho*.
    """
    q = data.draw(st.integers(0, instance.n - 1))
    lambdas = spectrum(instance)
    highest = lambdas[q - 1] if q else 3 * lambdas[0]  # the library's H_hat is for rho <= lambda_q
    rho = highest * (lambdas[-1] / (3 * highest)) ** share
    rho_star = (lambdas[q] + lambdas[-1]) / 2
    r_star = 1 - lambdas[-1] / rho_star
    tuned = factor(instance, q, rho, rho / rho_star)  # the best eta for this rho, if rho is in the interval
    outside = max(rho - lambdas[q], lambdas[-1] - rho, 0) / rho_star if q else 0.0
    assert tuned >= r_star + outside - tolerance(instance)
    off = abs(eta / rho - 1 / rho_star) * lambdas[-1]
    assert factor(instance, q, rho, eta) >= r_star + off - tolerance(instance)


def test_theorem_1_the_best_of_a_grid_lies_on_S_star():
    """H_hat by equation (4) for any rho, also above lambda_q."""
    lambdas, q = np.array([5.0, 3.0, 2.0, 1.0]), 2
    rho_star = 1.5
    H, best = np.diag(lambdas), []
    held = replay(axes([lambdas], [1]), shed_ls(Constant(q)), np.ones(4), 1)[0].held["site-0"]
    for rho in np.arange(1, 49) / 8:
        inverse = np.linalg.inv([replace(held, rho=rho).matvec(e) for e in np.eye(4)])
        best += [
            (norm(np.eye(4) - eta * inverse @ H, 2), rho, eta)
            for eta in {*np.arange(1, 17) / 8, rho / rho_star}
        ]
    r_star = min(best)[0]
    assert r_star == pytest.approx(1 - 1 / rho_star, abs=100 * EPS)
    optimal = {(rho, eta) for r, rho, eta in best if r <= r_star + 100 * EPS}
    assert optimal == {(rho, rho / rho_star) for rho in np.arange(8, 17) / 8}


# --- Corollary 2 -----------------------------------------------------------------------------------


@examples(40)
@given(central, st.data(), share, starts())
def test_corollary_2_rho_star_with_a_full_step_has_the_least_error_in_S_star(instance, data, share, start):
    """|error(rho, eta)|^2 = |error(rho*, 1)|^2 + (1 - eta)^2 |leading q coordinates of the error|^2."""
    q = data.draw(st.integers(0, instance.n - 1))
    lambdas, theta = spectrum(instance), start(instance)
    rho_star = (lambdas[q] + lambdas[-1]) / 2
    rho = lambdas[-1] + share * (lambdas[q] - lambdas[-1])
    best = norm(step(instance, q, rho_star, 1.0, theta))
    other = norm(step(instance, q, rho, rho / rho_star, theta))
    rounding = instance.rounding(theta)
    assert best <= other + rounding
    vectors = np.linalg.eigh(instance.hessian(theta))[1][:, ::-1]
    leading = (vectors.T @ (theta - instance.theta_star))[:q]
    lost = (1 - rho / rho_star) ** 2 * leading @ leading
    assert other**2 == pytest.approx(best**2 + lost, abs=4 * rounding * (1 + other + norm(leading)))


def test_corollary_2_is_what_shed_ls_does():
    """The library's rho for least squares is rho*, with a full step."""
    instance = axes([[5.0, 3.0, 2.0, 1.0]], [1], theta=[1.0, 2.0, 3.0, 4.0])
    seen = replay(instance, shed_ls(), np.zeros(4), 3)
    assert [round_.rho["site-0"] for round_ in seen] == pytest.approx([2.0, 1.5, 1.0], rel=100 * EPS)
    assert [round_.eta for round_ in seen] == [1.0, 1.0, 1.0]


# --- Theorem 3 -------------------------------------------------------------------------------------


def check_contraction(instance: Instance, algorithm: Shed, theta: np.ndarray, iterations: int) -> list:
    seen = replay(instance, algorithm, theta, iterations)
    rounding = instance.rounding(theta)
    for round_ in seen:
        assert round_.error(after=True) <= round_.c_star * round_.error() + rounding
    return seen


@examples(40)
@given(instances("least-squares"), st.data(), starts(3.0))
def test_theorem_3_contraction_with_any_increments(instance, data, start):
    """|theta^{t+1} - theta*| <= (1 - mean lambda_n / mean rho_t) |theta^t - theta*|, means with p_i."""
    increments = st.lists(st.integers(0, 3), min_size=3, max_size=6)
    channel = Recorded({site: tuple(data.draw(increments)) for site in instance.p})
    seen = check_contraction(instance, shed_ls(channel), start(instance), 8)
    factors = [round_.c_star for round_ in seen]
    assert all(0 <= c < 1 for c in np.array(factors) + 100 * EPS * instance.K_bar / instance.l2)
    assert all(np.diff(factors) <= 100 * EPS * instance.K_bar / instance.l2)


@examples(40)
@given(instances("least-squares"), starts(3.0), st.integers(1, 3))
def test_theorem_3_is_exact_once_all_pairs_but_one_are_in(instance, start, d):
    theta = start(instance)
    needed = -(-(instance.n - 1) // d)
    seen = check_contraction(instance, shed_ls(Constant(d)), theta, needed)
    assert seen[-1].c_star <= 100 * EPS * instance.K_bar / instance.l2
    assert seen[-1].error(after=True) <= instance.rounding(theta)
    assert norm(instance.gradient(seen[-1].after)) <= instance.K * instance.rounding(theta)


@examples(30)
@given(st.data())
def test_theorem_3_is_tight_when_agents_share_their_eigenvectors(data):
    """From theta* + v_n every step shrinks the error by c_t exactly; with 1/M for p_i it would not."""
    n = data.draw(st.integers(2, 6))
    positive = st.lists(st.floats(0.1, 10), min_size=n, max_size=n).map(lambda v: sorted(v, reverse=True))
    spectra = data.draw(st.lists(positive, min_size=1, max_size=4))
    copies = data.draw(st.lists(st.integers(1, 9), min_size=len(spectra), max_size=len(spectra)))
    instance = axes(spectra, copies, theta=np.arange(1.0, n + 1), l2=data.draw(st.sampled_from([0.0, 0.1])))
    theta = instance.theta_star + np.eye(n)[-1]
    for round_ in replay(instance, shed_ls(), theta, n):
        assert abs(round_.error(after=True) - round_.c_star * round_.error()) <= instance.rounding(theta)


@pytest.mark.parametrize("channel", [Constant(1), Constant(7), Rayleigh(seed=3)])
def test_theorem_3_on_digits(channel):
    instance = digits("least-squares")
    assert len(set(instance.p.values())) == len(instance.p)
    theta = np.random.default_rng(0).standard_normal(instance.n)
    seen = check_contraction(instance, shed_ls(channel), theta, instance.n - 1)
    assert all(np.diff([round_.c_star for round_ in seen]) <= 100 * EPS * instance.K_bar / instance.l2)
    assert seen[-1].error(after=True) <= instance.rounding(theta) < 1e-6 * seen[0].error()


# --- what the theorems speak of is what the Master holds ---------------------------------------------


@pytest.mark.parametrize("loss", ["least-squares", "logistic"])
@pytest.mark.parametrize("rho", [Midpoint(), NextEigenvalue()])
def test_the_master_holds_leading_eigenpairs_and_rho_of_the_local_hessians(loss, rho):
    """H_hat = sum_i p_i (sum_j (lambda_j - rho) v_j v_j' + rho I), at theta^k, of X_i'W X_i/N_i + l2 I."""

    @examples(15)
    @given(instances(loss), starts())
    def check(instance, start):
        algorithm = Shed(renewal=Periodic(4), rho=rho)
        small = 100 * EPS * instance.n * instance.K_bar
        seen = replay(instance, algorithm, start(instance), 7)
        at = {round_.t: round_.theta for round_ in seen}
        for round_ in seen:
            assert round_.k == (4 if round_.t >= 4 else 1)
            np.testing.assert_array_equal(round_.theta_k, at[round_.k])
            H_hat = 0.0
            for i, p in instance.p.items():
                values, vectors = np.linalg.eigh(instance.hessian(round_.theta_k, i))
                values, vectors, q = values[::-1], vectors[:, ::-1], round_.q[i]
                upper, lower = values[q], values[-1]
                expected = (upper + lower) / 2 if isinstance(rho, Midpoint) else upper
                rank = np.linalg.matrix_rank(instance.federation.tables[i].X)
                assert q == min(round_.t - round_.k + 1, instance.n - 1, rank)
                assert round_.rho[i] == pytest.approx(expected, abs=small)
                hat = np.append(values[:q], np.full(instance.n - q, expected))
                H_hat = H_hat + p * (vectors * hat) @ vectors.T
            np.testing.assert_allclose(round_.H_hat, H_hat, atol=small * instance.n)

    check()
