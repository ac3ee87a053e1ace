"""FedAvg, FedProx, SCAFFOLD and DANE on least squares, where limits and rates are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from calls import call
from conftest import make_federation, well_conditioned
from fedshed import Federation
from fedshed.algorithms import Dane, FedAvg, FedProx, Scaffold
from fedshed.linalg.rows import gram
from fedshed.objectives import local_objectives

L2 = 1e-2
BIASED = [FedAvg(), FedAvg(local_steps=3, rate=0.5), FedProx(), FedProx(prox=1.0, local_steps=4)]


def quadratics(federation, l2=L2):
    """p_i, H_i and b_i of the local costs x'H_i x / 2 - b_i'x + l2 x'x / 2, by agent."""
    objectives = local_objectives(federation, "least-squares")
    n, N = federation.dim, sum(o.weight for o in objectives.values())
    zero = np.zeros(n)
    return [
        (o.weight / N, gram(o.at(zero).factor) + l2 * np.eye(n), -o.at(zero).gradient)
        for o in objectives.values()
    ]


def largest(federation):
    """K: the largest eigenvalue of a local Hessian."""
    return max(np.linalg.eigvalsh(H)[-1] for _, H, _ in quadratics(federation))


def solve(federation, algorithm, loss="least-squares", **options):
    options = {"l2": L2, "tol": 1e-12, "max_iterations": 4000, **options}
    return fedshed.optimize(federation, algorithm=algorithm, loss=loss, **options)


def fixed_point(federation, algorithm):
    """theta = sum_i p_i (A_i theta + (I - A_i) x_i), the limit of local steps of length s.

    An agent minimises f_i(y) + m ||y - theta||^2 / 2 by steps y <- y - s ((H_i + m) y - b_i - m theta), so
    after k of them it is at A_i theta + (I - A_i) (H_i + m)^-1 (b_i + m theta), A_i = (I - s (H_i + m))^k.
    """
    n, K, prox = federation.dim, largest(federation), getattr(algorithm, "prox", 0.0)
    m, s = prox * K, algorithm.rate / ((1 + prox) * K)
    slope, constant = np.zeros((n, n)), np.zeros(n)
    for p, H, b in quadratics(federation):
        A = np.linalg.matrix_power(np.eye(n) - s * (H + m * np.eye(n)), algorithm.local_steps)
        there = (np.eye(n) - A) @ np.linalg.inv(H + m * np.eye(n))
        slope, constant = slope + p * (A + m * there), constant + p * there @ b
    return np.linalg.solve(np.eye(n) - slope, constant)


# --- FedAvg and FedProx -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", BIASED, ids=repr)
def test_the_limit_of_local_steps_is_their_fixed_point_and_not_the_pooled_optimum(algorithm):
    federation = well_conditioned("least-squares")
    result = solve(federation, algorithm)
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    np.testing.assert_allclose(result.theta, fixed_point(federation, algorithm), rtol=0, atol=1e-11)
    assert np.linalg.norm(result.theta - optimum) > 1e-3
    assert not algorithm.pooled
    assert not result.converged
    assert "no longer moves" in result.reason
    assert result.trace[-1].grad_norm > 1e-3


@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_one_local_step_is_gradient_descent_and_its_limit_is_exact(kind):
    algorithm, federation = kind(local_steps=1), well_conditioned("least-squares")
    H = sum(p * H for p, H, _ in quadratics(federation))
    b = sum(p * b for p, _, b in quadratics(federation))
    s = 1 / ((1 + algorithm.proximal) * largest(federation))
    theta = np.zeros(federation.dim)
    for _ in range(5):
        theta = theta - s * (H @ theta - b)
    np.testing.assert_allclose(solve(federation, algorithm, max_iterations=5).theta, theta, atol=1e-13)
    assert algorithm.pooled
    result = solve(federation, algorithm)
    assert result.converged
    np.testing.assert_allclose(result.theta, np.linalg.solve(H, b), rtol=0, atol=1e-10)


def test_where_sites_hold_the_same_rows_the_limit_of_fedavg_is_the_pooled_optimum():
    table = well_conditioned("logistic").tables["middle"]
    federation = Federation.from_sites(dict.fromkeys("ab", (table.X, table.y)))
    assert solve(federation, FedAvg(), "logistic", tol=1e-11).converged


def test_a_stronger_proximal_term_moves_the_limit_towards_the_pooled_optimum():
    """As prox grows local steps shrink, and with them the drift."""
    federation = well_conditioned("least-squares")
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    away = [np.linalg.norm(solve(federation, FedProx(prox=prox)).theta - optimum) for prox in (0.0, 0.3, 3.0)]
    assert away == sorted(away, reverse=True)


# --- SCAFFOLD ---------------------------------------------------------------------------------------


def test_with_one_local_step_scaffold_is_gradient_descent():
    federation = well_conditioned("logistic")
    one, two = (
        solve(federation, kind(local_steps=1), "logistic", max_iterations=20) for kind in (Scaffold, FedAvg)
    )
    np.testing.assert_allclose(one.theta, two.theta, rtol=0, atol=1e-12)


def scaffold_round(theta, controls, costs, s, k, eta):
    """Algorithm 1 of Karimireddy et al. with option II, for quadratics."""
    c = sum(p * controls[i] for i, (p, _, _) in enumerate(costs))
    ends, new = [], []
    for (_, H, b), c_i in zip(costs, controls, strict=True):
        y = theta
        for _ in range(k):
            y = y - s * (H @ y - b - c_i + c)
        ends.append(y)
        new.append(c_i - c + (theta - y) / (k * s))
    mean = sum(p * y for (p, _, _), y in zip(costs, ends, strict=True))
    return theta + eta * (mean - theta), new


@pytest.mark.parametrize("eta", [1.0, 0.7])
@pytest.mark.parametrize("k", [2, 7])
def test_scaffold_is_algorithm_1_with_option_2_and_rests_at_the_pooled_optimum(k, eta):
    federation = well_conditioned("least-squares")
    costs = quadratics(federation)
    algorithm = Scaffold(local_steps=k, rate=0.5, global_rate=eta)
    s, theta = 0.5 / largest(federation), np.zeros(federation.dim)
    controls = [H @ theta - b for _, H, b in costs]
    for _ in range(6):
        theta, controls = scaffold_round(theta, controls, costs, s, k, eta)
    np.testing.assert_allclose(solve(federation, algorithm, max_iterations=6).theta, theta, atol=1e-12)
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    rest, _ = scaffold_round(optimum, [H @ optimum - b for _, H, b in costs], costs, s, k, eta)
    np.testing.assert_allclose(rest, optimum, rtol=0, atol=1e-12)
    result = solve(federation, algorithm)
    assert result.converged
    np.testing.assert_allclose(result.theta, optimum, rtol=0, atol=1e-10)


def test_scaffold_sends_two_vectors_a_round_and_gets_two():
    federation = well_conditioned("logistic")
    trace = solve(federation, Scaffold(), "logistic", max_iterations=9).trace
    assert trace[-1].uplink_vectors == 1 + 2 * 10 - 1 + 1  # one gradient, then gradient and mean gradient
    down = trace[8].downlink_bytes - trace[7].downlink_bytes
    assert 2 * 8 * federation.dim < down / 3 < 2 * 8 * federation.dim + 80


# --- DANE -------------------------------------------------------------------------------------------


def iteration_matrix(federation, algorithm):
    """I - eta sum_i p_i (H_i + mu I)^-1 H."""
    costs, n = quadratics(federation), federation.dim
    mu = algorithm.mu * sum(p * np.linalg.eigvalsh(H)[-1] for p, H, _ in costs)
    inverse = sum(p * np.linalg.inv(H + mu * np.eye(n)) for p, H, _ in costs)
    return np.eye(n) - algorithm.eta * inverse @ sum(p * H for p, H, _ in costs)


def test_with_identical_agents_and_no_damping_one_round_of_dane_is_the_optimum():
    table = make_federation("least-squares").tables["large"]
    federation = Federation.from_sites(dict.fromkeys("abc", (table.X, table.y)))
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    np.testing.assert_allclose(
        solve(federation, Dane(mu=0.0), max_iterations=1).theta, optimum, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("algorithm", [Dane(), Dane(mu=0.5, eta=0.8), Dane(mu=0.0)], ids=repr)
def test_the_error_of_dane_on_least_squares_is_its_iteration_matrix(algorithm):
    federation = well_conditioned("least-squares")
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    error = -np.linalg.matrix_power(iteration_matrix(federation, algorithm), 3) @ optimum
    np.testing.assert_allclose(
        solve(federation, algorithm, max_iterations=3).theta - optimum, error, rtol=0, atol=1e-11
    )


def unlike_sites():
    """Each of two sites knows of one coefficient what the other hardly knows."""
    rng = np.random.default_rng(5)
    tables = {}
    for site, scales in {"a": (1.0, 0.05, 1.0), "b": (0.05, 1.0, 1.0)}.items():
        X = rng.normal(size=(80, 3)) * scales
        tables[site] = (X, X @ np.ones(3) + rng.normal(size=80))
    return Federation.from_sites(tables)


RADII = {0.0: "above", 1e-3: "above", 0.03: "above", 0.3: "below", 1.0: "below"}


@pytest.mark.parametrize("mu", RADII)
def test_the_spectral_radius_says_whether_dane_converges(mu):
    federation, algorithm = unlike_sites(), Dane(mu=mu)
    radius = np.abs(np.linalg.eigvals(iteration_matrix(federation, algorithm))).max()
    result = solve(federation, algorithm, tol=1e-8, max_iterations=400)
    assert RADII[mu] == ("above" if radius > 1.05 else "below" if radius < 0.95 else "too near to 1")
    assert result.converged == (radius < 1)
    assert np.isfinite(result.theta).all()
    assert radius < 1 or ("diverged" in result.reason and "raise mu" in result.reason)


def test_dane_that_jumps_to_and_fro_stops_although_its_cost_is_bounded():
    """The logistic loss grows slowly: on sites that are unlike the iterates cycle instead of growing."""
    tables = unlike_sites().tables.items()
    federation = Federation.from_sites({i: (4 * t.X, np.where(t.y > 0, "yes", "no")) for i, t in tables})
    result = solve(federation, Dane(mu=0.0), "logistic", max_iterations=200)
    assert 20 < len(result.trace) < 30
    assert "diverged" in result.reason


def test_a_start_at_the_optimum_is_no_divergence():
    federation = well_conditioned("logistic")
    start, _ = fedshed.optimum(federation, l2=L2)
    for algorithm in (Dane(), Scaffold()):
        result = solve(federation, algorithm, "logistic", tol=0.0, theta0=start, max_iterations=40)
        assert "diverged" not in result.reason


def test_a_local_minimum_of_dane_has_the_gradient_it_should():
    """At the minimum g_i(x) + l2 x - (g_i(theta) + l2 theta - eta g) + mu (x - theta) = 0."""
    from fedshed.algorithms.rivals.dane import Subproblem, local_minimum

    objective = local_objectives(make_federation("logistic"), "logistic")["middle"]
    rng = np.random.default_rng(3)
    theta, pull = rng.normal(size=6), rng.normal(size=6)
    part = Subproblem(theta, pull, np.array([L2]), 0.03)
    s = local_minimum(objective, part)
    left = objective.at(theta + s).gradient - objective.at(theta).gradient + (L2 + 0.03) * s + pull
    assert np.linalg.norm(left) <= 1e-9 * np.linalg.norm(pull)


def test_momentum_of_aide_is_the_recursion_on_extrapolated_points():
    """x = y + M (y - theta*) - (y - theta*), y+ = x + m (x - x before)."""
    federation, algorithm = well_conditioned("least-squares"), Dane(momentum=0.3)
    optimum, _ = fedshed.optimum(federation, loss="least-squares", l2=L2)
    M, y, before = iteration_matrix(federation, algorithm), np.zeros(5), None
    for _ in range(6):
        x = optimum + M @ (y - optimum)
        y, before = x + 0.3 * (x - (x if before is None else before)), x
    np.testing.assert_allclose(solve(federation, algorithm, max_iterations=6).theta, y, rtol=0, atol=1e-11)


# --- what is said of them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: FedAvg(local_steps=0), "local_steps must be"),
        (lambda: FedAvg(rate=2.0), "rate must be"),
        (lambda: FedProx(prox=-1.0), "prox must be"),
        (lambda: Scaffold(global_rate=0.0), "global_rate must be"),
        (lambda: Dane(mu=-1.0), "DANE needs"),
        (lambda: Dane(momentum=1.0), "DANE needs"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(fedshed.ConfigError, match=message):
        wrong()


def test_scaffold_that_diverges_says_what_to_do():
    federation = make_federation("least-squares")
    algorithm = replace(Scaffold(), global_rate=60.0)
    result = solve(federation, algorithm, max_iterations=200)
    assert "diverged" in result.reason
    assert "lower" in result.reason
    assert np.isfinite(result.theta).all()


def test_the_listing_and_the_comparison_say_whose_limit_is_not_the_pooled_optimum(capsys):
    from fedshed.cli.compare import _print_summary

    listed = call("algorithms").stdout
    assert "not the pooled optimum (docs/rivals.md): fedavg, fedprox" in " ".join(listed.split())
    assert "studies refuse them): " in listed
    _print_summary(fedshed.compare(well_conditioned("logistic"), ["fedavg", "newton"]), True)
    said = " ".join(capsys.readouterr().out.split())
    assert "not the pooled optimum (docs/rivals.md): fedavg" in said
    assert "(docs/rivals.md): newton" not in said


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "dane"])
def test_studies_refuse_them(name):
    from fedshed.algorithms.registry import check_for_studies

    with pytest.raises(fedshed.ConfigError, match=f"{name} is for comparisons"):
        check_for_studies(fedshed.ALGORITHMS[name].algorithm)
