"""Separation is decided as a linear program over all rows decides it, whatever units and collinearity."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from scipy.optimize import linprog

import fedshed
from fedshed import Federation, optimize
from fedshed.exchange.sites import LocalSites
from fedshed.linalg.solve import inverse_root
from fedshed.objectives.multinomial import contrasts
from fedshed.solve import separation
from fedshed.solve.inspection import newton_step
from fedshed.solve.optimize import build_problem
from fedshed.solve.separation import separating
from fedshed.solve.stages import decreases_without_bound, inspect

LOSSES = ("logistic", "poisson", "multinomial")


def fitted(X, y, loss, **options):
    sites = np.arange(len(y)) % 3
    return optimize(Federation.from_arrays(X, y, sites), loss=loss, l2=0.0, intercept=True, **options)


def is_separated(result):
    assert result.converged != result.reason.startswith("separated: ")
    return not result.converged


def really_separated(X, y, loss):
    """Whether max sum(A v) over A v >= 0, |v| <= 1 is positive, A written down row by row."""
    rows = np.column_stack([X, np.ones(len(X))])
    if loss == "logistic":
        A = np.where(y == 1, 1.0, -1.0)[:, None] * rows
    elif loss == "poisson":
        A = np.vstack([-rows, rows[y > 0]])
    else:
        Q = contrasts(3)
        A = np.array([np.kron(Q[c] - Q[k], x) for x, c in zip(rows, y, strict=True) for k in range(3)])
    found = linprog(-A.sum(axis=0), A_ub=-A, b_ub=np.zeros(len(A)), bounds=(-1, 1))
    return -found.fun > 1e-6


def small(loss, seed):
    """So few rows that about half of the draws are separated."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(24, 3)).round(1)
    X[:, 2] = rng.random(24) < 0.2
    rate = np.exp(1.5 * X[:, 0] - 1)
    y = rng.poisson(rate) if loss == "poisson" else (rng.logistic(size=24) < 2 * X[:, 0]).astype(int)
    return X, y + (rng.random(24) < 0.3) if loss == "multinomial" else y


@pytest.mark.parametrize("loss", LOSSES)
def test_separation_is_what_a_linear_program_of_all_rows_says(loss):
    found = {}
    for seed in range(12):
        X, y = small(loss, seed)
        if len(np.unique(y)) >= 2 + (loss == "multinomial"):
            found[seed] = is_separated(fitted(X, y, loss)), really_separated(X, y, loss)
    assert all(ours == theirs for ours, theirs in found.values()), found
    assert {theirs for _, theirs in found.values()} == {True, False}  # both were tried


def ordinary(loss, rows=300):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, 2))
    z = 0.5 * X[:, 0]
    y = rng.poisson(np.exp(z)) if loss == "poisson" else (rng.logistic(size=rows) < z).astype(int)
    return X, y + (rng.random(rows) < 0.4) if loss == "multinomial" else y


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("spread", [1e-3, 1e-5])
def test_nearly_collinear_columns_are_not_separated(loss, spread):
    X, y = ordinary(loss)
    assert not is_separated(fitted(np.column_stack([X[:, 0], X[:, 0] + spread * X[:, 1]]), y, loss))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("beside", ["nothing", "a nearly collinear column"])
def test_a_level_of_one_row_is_separated_and_named_alone(loss, beside):
    X, y = ordinary(loss)
    level = np.arange(len(y)) == int(np.flatnonzero(y == 0)[0])
    extra = [X[:, 0] + 1e-4 * X[:, 1]] if beside != "nothing" else []
    result = fitted(np.column_stack([level, X[:, 0], *extra]), y, loss)
    assert is_separated(result)
    assert "along x0, so" in result.reason


@pytest.mark.parametrize("overlap", [1e-2, 1e-5])
def test_classes_that_overlap_by_little_have_an_optimum(overlap):
    """Two rows are on the wrong side, by `overlap` of the spread."""
    x = np.concatenate([np.linspace(-1, -0.1, 50), [-overlap, overlap], np.linspace(0.1, 1, 50)])
    y = np.concatenate([np.zeros(50), [1, 0], np.ones(50)]).astype(int)
    assert not is_separated(fitted(x[:, None], y, "logistic"))


def test_counts_that_are_all_zero_are_not_cured_by_a_ridge_so_none_is_advised():
    X, y = ordinary("poisson")
    reason = fitted(X, 0 * y, "poisson").reason
    assert "add rows" in reason
    assert "l2" not in reason


def test_where_rows_lose_their_curvature_pen_ends_and_separation_is_named():
    """Separated levels: the frame grows without bound while their part of the Hessian goes to 0."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 40, 120)
    X = np.eye(40)[levels][:, 1:]
    federation = Federation.from_arrays(X[:, X.any(axis=0)], rng.random(120) < 0.5, np.arange(120) % 4)
    result = optimize(federation, l2=0.0, intercept=True, algorithm="pen", max_iterations=60)
    assert not result.converged
    assert result.reason.startswith("separated: ")


@pytest.mark.parametrize("seed", range(60))
def test_slopes_tell_separated_data_as_the_linear_program_does(seed):
    """Small random tables, with weights, odd units and rare events: the two tests never disagree."""
    rng = np.random.default_rng(seed)
    loss = ("logistic", "poisson", "multinomial")[seed % 3]
    rows, columns = int(rng.integers(8, 60)), int(rng.integers(1, 4))
    X = rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-3, 3, size=columns)
    z = (X / X.std(axis=0)) @ rng.normal(size=columns) * rng.uniform(0.5, 4)
    y = {
        "logistic": lambda: np.where(z + rng.logistic(size=rows) * rng.uniform(0, 1) > 0, 1.0, 0.0),
        "poisson": lambda: rng.poisson(np.exp(z - rng.uniform(0, 3))).astype(float),
        "multinomial": lambda: np.digitize(z + rng.logistic(size=rows) * rng.uniform(0, 1), [-0.5, 0.5]),
    }[loss]()
    if len(np.unique(y)) < (3 if loss == "multinomial" else 2):
        y[:3] = [0, 1, 2]
    federation = Federation.from_arrays(X, y, np.arange(rows) % 3)
    result = fedshed.optimize(
        federation, loss=loss, l2=0.0, intercept=True, algorithm="newton", theta0="null", max_iterations=200
    )
    objectives, problem = build_problem(federation, loss, 0.0, True)
    sites = LocalSites(objectives)
    inspected, traffic = inspect(sites, problem, result.theta)
    H, step = newton_step(problem, result.theta, inspected)
    found, _ = decreases_without_bound(sites, problem, result.theta, step, H, traffic)
    assert found == bool(separating(objectives, problem, result.theta)), result.reason


def unbounded_at(federation, loss, theta):
    """What the slopes say at a point."""
    objectives, problem = build_problem(federation, loss, 0.0, True)
    sites = LocalSites(objectives)
    inspected, traffic = inspect(sites, problem, theta)
    H, step = newton_step(problem, theta, inspected)
    return decreases_without_bound(sites, problem, theta, step, H, traffic)[0]


def test_at_an_optimum_to_the_last_bit_the_sign_of_a_slope_says_nothing():
    """The gradient is rounding there: the cost may seem to fall at four steps, not at a standard error."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(80, 3))
        y = np.where(X @ [1.0, -1.0, 0.5] + rng.logistic(size=80) > 0, 1.0, 0.0)
        federation = Federation.from_arrays(X, y, np.arange(80) % 3)
        theta, _ = fedshed.optimum(federation, loss="logistic", l2=0.0, intercept=True)
        assert not unbounded_at(federation, "logistic", theta)


def test_tiny_counts_far_from_their_optimum_are_not_separated():
    """A standard error is so long there that the slope hardly rises; but four Newton steps are too far."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 1))
    y = 1e-11 * rng.poisson(np.exp(0.5 * X[:, 0]))
    federation = Federation.from_arrays(X, y, np.arange(120) % 3)
    assert not unbounded_at(federation, "poisson", np.array([0.0, np.log(y.mean()) + 1]))


def levels(rng, loss, rows, count, events=0.3):
    """A column of levels as indicators, some with one class only, beside a number."""
    level = rng.integers(0, count, rows)
    X = np.column_stack([np.eye(count)[level], rng.normal(size=rows)])[:, 1:]
    happened = rng.random(rows) < events
    y = happened.astype(int) + (rng.random(rows) < 0.5) if loss == "multinomial" else happened.astype(float)
    y[:3] = [0, 1, 2 if loss != "logistic" else 1]
    return X[:, X.any(axis=0)], y


def old_way(monkeypatch):
    """Without the proof by a Newton step, and with a dense basis."""
    monkeypatch.setattr(separation, "sparse_inverse_root", inverse_root)
    flat = lambda *given: np.linalg.eigvalsh(given[3])[0] > 1e-3 * max(1, np.linalg.eigvalsh(given[3])[-1])  # noqa: E731
    monkeypatch.setattr(separation, "_has_optimum", flat)


@pytest.mark.parametrize("loss", LOSSES)
def test_levels_are_judged_as_by_the_dense_program_and_by_that_of_all_rows(loss, monkeypatch):
    verdicts, programs = [], []
    decide = separation._recession
    monkeypatch.setattr(separation, "_recession", lambda *given: programs.append(1) or decide(*given))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X, y = levels(rng, loss, int(rng.integers(20, 120)), int(rng.integers(2, 8)), rng.uniform(0.1, 0.5))
        objectives, problem = build_problem(
            Federation.from_arrays(X, y, np.arange(len(y)) % 3), loss, 0.0, True
        )
        theta = fitted(X, y, loss, algorithm="newton", max_iterations=40).theta
        found = bool(separating(objectives, problem, theta))
        assert found == really_separated(X, y, loss), seed
        with monkeypatch.context() as before:
            old_way(before)
            assert found == bool(separating(objectives, problem, theta)), seed
        verdicts.append(found)
    assert {True, False} == set(verdicts)
    assert len(programs) < 2 * 40  # where it could, a Newton step decided


@pytest.mark.parametrize("one_class", [20, 0])
def test_four_hundred_levels_are_judged_in_seconds(one_class):
    """The dense program took 40 s, and up to 460 s under load; a reference level is named with the others."""
    rng = np.random.default_rng(0)
    level, x = np.tile(np.arange(400), 25), rng.normal(size=10_000)
    y = np.where(level < one_class, level % 2, np.arange(10_000) // 400 % 2)
    federation = Federation.from_arrays(
        np.column_stack([np.eye(400)[level][:, 1:], x]), y, np.arange(10_000) % 5
    )
    start = time.process_time()
    result = optimize(federation, loss="logistic", l2=0.0, intercept=True, algorithm="newton")
    assert time.process_time() - start < 30  # 7 s on a quiet machine
    assert result.reason.startswith("separated: ") == (one_class > 0)
    assert "no row has an event" not in result.reason


def test_a_reference_level_without_events_is_not_said_to_be_no_event_at_all():
    rng = np.random.default_rng(0)
    level = rng.integers(0, 100, 3000)
    y = np.where(level == 0, 0, rng.integers(0, 2, 3000))
    result = fitted(np.eye(100)[level][:, 1:], y, "logistic", algorithm="newton")
    assert is_separated(result)
    assert "along intercept, x" in result.reason
    assert "set l2 > 0" in result.reason


def test_a_last_step_of_zero_bends_nothing():
    """PEN compares two Hessians along its last step, which may have been rounded to 0."""
    from fedshed.algorithms.pen.direction import direction

    g, A, none = np.array([1.0, 2.0]), np.diag([1.0, 2.0]), np.zeros((0, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(direction(g, A, (np.eye(2), np.zeros(2)), none, none), [1.0, 1.0])


@pytest.mark.parametrize("algorithm", ["newton", "lbfgs", "qn-shed"])
@pytest.mark.parametrize("seed", range(4))
def test_over_links_a_rare_level_of_one_class_is_never_an_optimum(algorithm, seed, monkeypatch):
    """What a run leaves along ordinary columns must not hide that one coefficient has no end."""
    from fedshed.fitting import fit_problem as fitting

    monkeypatch.setattr(fitting, "LocalSites", type("Elsewhere", (), {}))  # no rows at hand
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 200)
    level = np.where(rng.random(200) < 0.5, "a", "b").astype(object)
    tables = {}
    for rare in (False, True):
        if rare:
            level[np.flatnonzero(y)[: 2 + seed]] = "c"
        frame = {"x": rng.normal(size=200), "g": level.copy(), "y": y}
        tables[rare] = {str(i): {name: v[i::3] for name, v in frame.items()} for i in range(3)}
    study = fedshed.Study(family="logistic", target="y")
    assert fedshed.fit(tables[False], study, algorithm=algorithm).converged
    assert not fedshed.fit(tables[True], study, algorithm=algorithm).converged
