"""Where the paper's text slips: each printed statement fails on an example, and its correction does not.

The corrected statements are tested in general by the other modules of this folder.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedshed import optimize
from fedshed.algorithms.channels import Constant
from fedshed.algorithms.linesearch import TwoExchange
from fedshed.algorithms.renewal import Once, Periodic
from fedshed.algorithms.rho import NextEigenvalue, RhoRule
from fedshed.algorithms.shed import Shed
from fedshed.tables import Federation

from .problems import EPS, FixedRho, FixedStep, Instance, Round, axes, norm, replay, shed_ls


def orthogonal(agents: int, big: float = 1.0, small: float = 1e-3) -> Instance:
    """Each agent steep along its own axis: the mean of their Hessians has a norm K far below sum p_i K_i."""
    spectra = np.full((agents, agents), small) + (big - small) * np.eye(agents)
    return axes(spectra, [1] * agents)


def cold(instance: Instance, search: TwoExchange, theta: np.ndarray) -> Round:
    """One step of SHED before any eigenvector came: rho = lambda_1."""
    algorithm = Shed(renewal=Once(), channel=Constant(0), line_search=search)
    return replay(instance, algorithm, theta, 1)[0]


# --- Section 3 -------------------------------------------------------------------------------------


def test_theorem_1_only_if_fails_without_eigenpairs():
    """At q = 0 only eta / rho counts: rho outside [lambda_n, lambda_1] is as good, with eta = rho / rho*."""
    instance = axes([[5.0, 3.0, 1.0]], [1], theta=[1.0, -1.0, 2.0])
    rho_star = 3.0
    for rho in (0.2, 30.0):
        assert not 1 <= rho <= 5
        columns = []
        for theta in instance.theta_star + np.eye(3):
            step, choice = FixedStep(rho / rho_star), FixedRho(rho)
            algorithm = Shed(renewal=Once(), channel=Constant(0), line_search=step, rho=choice)
            columns.append(replay(instance, algorithm, theta, 1)[0].after - instance.theta_star)
        assert norm(columns, 2) == pytest.approx(1 - 1 / rho_star, abs=1e-12)


def test_weights_are_shares_of_rows_not_one_over_M():
    """Section 5's 1/M: with 1 : 9 rows the factor of Theorem 3 with plain means is violated."""
    instance = axes([[1.0, 0.9, 0.8], [10.0, 5.0, 0.1]], [1, 9], theta=np.ones(3))
    theta = instance.theta_star + np.eye(3)[-1]
    round_ = replay(instance, shed_ls(), theta, 1)[0]
    plain = 1 - np.mean([v[-1] for v in round_.lambdas.values()]) / np.mean(list(round_.rho.values()))
    assert round_.error(after=True) > plain * round_.error() + 0.1
    assert round_.error(after=True) <= round_.c_star * round_.error() + instance.rounding(theta)


def test_hessians_are_means_over_rows_as_the_costs_are():
    """Algorithm 1 prints X_i X_i': sums with weights p_i solve another problem than the pooled one."""
    rng, truth = np.random.default_rng(0), np.array([1.0, 2.0, 3.0])
    X = {"few": rng.standard_normal((20, 3)), "many": rng.standard_normal((60, 3))}
    y = {"few": X["few"] @ truth, "many": -X["many"] @ truth}  # the sites do not agree
    fed = Federation.from_sites({site: (X[site], y[site]) for site in X})
    theta = optimize(fed, loss="least-squares", l2=0.0, algorithm="shed-ls", tol=1e-12).theta
    pooled = np.linalg.lstsq(fed.pooled().X, fed.pooled().y)[0]
    H = sum(len(X[site]) * X[site].T @ X[site] for site in X)
    printed = np.linalg.solve(H, sum(len(X[site]) * X[site].T @ y[site] for site in X))
    assert norm(theta - pooled) <= 1e-10 * norm(truth)
    assert norm(printed - pooled) > 0.1 * norm(truth)


def test_the_last_eigenpair_is_never_needed():
    """lambda_{n+1} does not exist: q stops at n - 1, where rho = lambda_n makes H_hat exact."""
    instance = axes([[4.0, 2.0, 1.0]], [1], theta=np.ones(3))
    for rho in (NextEigenvalue(), shed_ls().rho):
        last = replay(instance, shed_ls(Constant(2), rho=rho), np.zeros(3), 3)[-1]
        assert last.q == {"site-0": 2}
        np.testing.assert_allclose(last.H_hat, np.diag([4.0, 2.0, 1.0]), atol=1e-13)


# --- Section 4 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta", "eta"), [(0.1, 0.3, 0.3), (0.49, 0.9, 0.9**7)])
def test_corollary_5_half_is_no_bound_for_other_line_searches(alpha, beta, eta):
    """Along v_{q+1} steps up to about 1 - alpha pass; the first beta^j below that may be under 1/2."""
    instance = axes([[1.0, 1.0, 1e-6]], [1])
    search = TwoExchange(alpha=alpha, beta=beta)
    algorithm = Shed(renewal=Once(), channel=Constant(1), line_search=search, rho=shed_ls().rho)
    round_ = replay(instance, algorithm, np.eye(3)[1], 1)[0]
    assert round_.eta == eta < 0.5
    least = min(round_.rho[i] / round_.next_eigenvalue(i) for i in round_.held)
    assert round_.eta >= beta * least  # what Lemma 4 does give


def test_remark_6_the_gradient_is_rho_star_times_the_unit_vector():
    """g = lambda_{q+1} e_{q+1}, as printed, gives p = (lambda_{q+1} / rho*) e_{q+1}, not e_{q+1}."""
    instance, q = axes([[4.0, 3.0, 1.0]], [1]), 1
    rho_star, e = 2.0, np.eye(3)[q]
    for g, p, decrease in ((3.0, 1.5, 9 / 8), (rho_star, 1.0, 1 / 2)):
        round_ = replay(instance, shed_ls(Constant(q)), e * g / 3, 1)[0]
        np.testing.assert_allclose(round_.direction, p * e, atol=1e-13)
        fall = instance.f(round_.theta) - instance.f(round_.theta - round_.direction)
        assert fall == pytest.approx(decrease, abs=1e-13)  # the Remark says lambda_n / 2 = 1/2


def test_lemma_7_the_first_period_has_one_step_less():
    """With I = {1, T, 2T, ...} c_{1+T} is not c_1: read c_k as c(q = k); a_bar_T is still the exponent."""
    instance, T = axes([[5.0, 4.0, 2.0, 1.0, 0.5]], [1], theta=np.ones(5)), 3
    seen = replay(instance, shed_ls(renewal=Periodic(T)), np.zeros(5), 8)
    assert [round_.q["site-0"] for round_ in seen] == [1, 2, 1, 2, 3, 1, 2, 3]
    c = [round_.c_star for round_ in seen]
    assert c[T] < c[0] - 0.1  # c_{1+T} against c_1
    assert c[2:5] == pytest.approx(c[5:8], abs=100 * EPS)
    assert np.prod(c[:T]) > np.prod(c[2:5]) * 1.1  # the first T factors are not those of a period


def test_lemma_7_a_bar_vanishes_at_n_minus_1_not_only_at_n():
    instance, n = axes([[5.0, 4.0, 2.0, 1.0]], [1], theta=np.ones(4)), 4
    theta = np.zeros(4)
    seen = replay(instance, shed_ls(renewal=Periodic(n - 1)), theta, 2 * n - 3)
    assert seen[-1].q == {"site-0": n - 1}
    assert seen[-1].c_star <= 100 * EPS
    assert seen[-1].error(after=True) <= instance.rounding(theta)


def test_the_cost_falls_with_the_square_of_a_bar():
    """Figure 5 plots the cost beside a_bar_T^t: along v_n the error falls by a_bar_T^T a period, the cost

    by its square, so a_bar_T is the slope of the error only.
    """
    T = 2
    instance = axes([[5.0, 4.0, 2.0, 1.0], [3.0, 2.0, 1.0, 0.5]], [1, 3])
    seen = replay(instance, shed_ls(renewal=Periodic(T)), np.eye(4)[-1], 4 * T)
    period = seen[T - 1].c_star * seen[T].c_star
    for start in range(T - 1, 2 * T, T):
        now, later = seen[start], seen[start + T]
        assert later.error() / now.error() == pytest.approx(period, rel=1e-9)
        fall = instance.f(later.theta) / instance.f(now.theta)  # f* = 0
        assert fall == pytest.approx(period**2, rel=1e-9)
        assert fall < 0.5 * period


# --- Section 5 and Appendix A ------------------------------------------------------------------------


def test_H_hat_is_not_below_K_but_below_the_mean_of_the_K_i():
    instance = orthogonal(3)
    top = np.linalg.eigvalsh(cold(instance, TwoExchange(), np.ones(3)).H_hat)[-1]
    assert top > 2.9 * instance.K
    assert top <= instance.K_bar * (1 + 10 * EPS)


@pytest.mark.parametrize(
    ("alpha", "beta", "printed"),
    [
        (0.49, 0.5, lambda r, i: 0.49 * min(1, 0.5 * r.rho_bar / i.K) / i.K),  # K twice, the step right
        (0.4, 0.9, lambda r, i: 0.4 * 0.9 * r.rho_bar / (i.K * i.K_bar)),  # the step beta rho/K > 1
        (0.4, 0.9, lambda r, i: 0.4 * 0.9 * r.rho_bar / i.K**2),  # as printed
    ],
)
def test_lemma_11_promises_too_much(alpha, beta, printed):
    """Corrected: alpha min(1, beta rho_bar / K) / sum_i p_i K_i, times |g|^2."""
    instance = orthogonal(3)
    round_ = cold(instance, TwoExchange(alpha=alpha, beta=beta), np.ones(3))
    fall = (instance.f(round_.theta) - instance.f(round_.after)) / (round_.g @ round_.g)
    assert fall < 0.9 * printed(round_, instance)
    assert fall >= alpha * min(1, beta * round_.rho_bar / instance.K) / instance.K_bar


def test_lemma_12_kappa_bar_is_a_mean_not_a_sum():
    """Copies of an agent change nothing in the run but make a sum of kappa_i as large as one likes."""
    alpha, agents, l2 = 0.1, 60, 0.05
    rows, labels = np.vstack([np.eye(2)] * 2), np.array([1, 1, -1, -1])
    sites = {f"site-{i:02d}": (rows, labels) for i in range(agents)}
    instance = Instance(Federation.from_sites(sites), "logistic", l2)
    theta = np.array([4.0, 4.0])  # theta* = 0; the loss is flat here, and Newton's step far too long
    round_ = replay(instance, Shed(channel=Constant(2), line_search=TwoExchange(alpha=alpha)), theta, 1)[0]
    error = round_.error()

    def condition(kappa: float) -> bool:
        return 3 * kappa * 2 * error + instance.K * error <= 3 * kappa**2 * (1 - 2 * alpha) / instance.L

    assert condition(agents * l2)
    assert not condition(l2)
    assert round_.eta < 1


def test_lemma_12_rho_is_the_next_eigenvalue_not_the_last_one_sent():
    """The sketch's rho = lambda_q is above lambda_{q+1} too, but is not exact at q = n - 1."""

    class LastSent(RhoRule, frozen=True):
        def __call__(self, values: np.ndarray, q: int) -> float:
            return float(values[q - 1])

    instance = axes([[4.0, 2.0, 1.0]], [1], theta=np.ones(3))
    H = np.diag([4.0, 2.0, 1.0])
    for rho, exact in ((NextEigenvalue(), True), (LastSent(), False)):
        round_ = replay(instance, shed_ls(Constant(2), rho=rho), np.zeros(3), 1)[0]
        assert np.linalg.eigvalsh(round_.H_hat - H)[0] >= -1e-13
        assert bool(norm(round_.H_hat - H) < 1e-12) is exact
        assert (round_.error(after=True) < 1e-12) is exact


def test_theorem_10_the_second_condition_must_be_strict():
    """At equality, 3 L |e| / 2 + L M(t) = kappa, equation (29) gives c_t = 1: no contraction follows.

    Powers of two, so that both sides are exact.
    """
    kappa, L, rho = 0.5, 1.0, 2.0
    error = 0.125
    M = kappa / L - 1.5 * error
    assert error <= M
    assert 1.5 * L * error + L * M <= kappa  # as printed
    lowest = kappa  # mean lambda_n is at least kappa, and may be equal
    assert 1 - lowest / rho + L * M / rho + 1.5 * L * error / rho == 1.0
    shorter = error * (1 - 2**-20)
    assert 1 - lowest / rho + L * M / rho + 1.5 * L * shorter / rho < 1.0


def test_theorem_10_3_is_superlinear_by_the_root_not_by_the_quotient():
    """T = n - 1 and d = 1: one exact step in n - 1, all others only linear however near theta* is."""
    n = 4
    spectra = np.geomspace(1, 0.2, n) * np.array([[1.0], [3.0]])
    instance = axes(spectra, [1, 5], loss="logistic", l2=0.02)
    theta = instance.theta_star + 0.01 * np.eye(n)[-1]
    seen = replay(instance, Shed(renewal=Periodic(n - 1)), theta, 2 * n - 2)
    quotients = {(r.k, q): r.error(after=True) / r.error() for r in seen for q in r.q.values()}
    bound = 2.5 * instance.L / instance.kappa_bar
    assert quotients[3, n - 1] <= bound * seen[2].error()  # exact: falls with the error
    start = [seen[0].error(), seen[2].error(), seen[5].error()]
    assert start[2] < 0.01 * start[1] < 0.01 * start[0]
    for k in (1, 3, 6):  # nearer and nearer, and always the quotient of the spectra
        q_1 = next(round_ for round_ in seen if round_.k == k)
        assert quotients[k, 1] == pytest.approx(q_1.c, abs=bound * q_1.error())
        assert quotients[k, 1] > 0.5


# --- Section 6 ---------------------------------------------------------------------------------------


def test_giant_suffers_from_a_higher_condition_number_not_a_lower_one():
    """Where agents differ, the harmonic mean errs by max_j (mean h_j)(mean 1/h_j), which grows as mu falls.

    SHED, by contrast, is done in n - 1 iterations at any condition number.
    """
    conditions, iterations = [], []
    for l2 in (1.0, 0.1, 0.01):
        instance = axes([[1.0, 0.0, 0.3, 0.0], [0.0, 1.0, 0.3, 0.0]], [1, 1], theta=np.ones(4), l2=l2)
        options = {"loss": "least-squares", "l2": l2, "tol": 1e-6, "theta0": np.full(4, 3.0)}
        result = optimize(instance.federation, algorithm="giant", **options)
        assert result.converged
        conditions.append(np.linalg.cond(instance.hessian(instance.theta_star)))
        iterations.append(len(result.trace) - 1)
        assert len(optimize(instance.federation, algorithm="shed-ls", **options).trace) - 1 <= 3
    assert conditions == sorted(conditions)
    assert all(later > 2 * earlier for earlier, later in pairwise(iterations))
