"""Paths of penalties and their cross-validation, against fits of the pooled rows with the same folds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import enet_path

import fedshed
from fedshed import Study
from fedshed._utils.errors import ConfigError, ProtocolError
from fedshed.algorithms.newton import Newton
from fedshed.exchange import InProcess, Stateless
from fedshed.fitting.parts import part_of
from fedshed.fitting.path import conduct_path
from fedshed.fitting.process_sites import TableHost
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import PROTOCOL, Play
from fedshed.fitting.terms import Terms
from fedshed.objectives.folds import fold_of_each
from fedshed.preparation import DesignPlan
from fedshed.protocol.codec import raw
from fedshed.solve.path import PathSettings
from fedshed.solve.stages import FOLDS

SITES = np.repeat(["a", "b", "c"], [20, 89, 460])
CANCER = load_breast_cancer(as_frame=True).frame.rename(columns=lambda name: name.replace(" ", "_"))
COLUMNS = tuple(CANCER.columns[:8])
STUDY = Study(family="logistic", target="target", columns=COLUMNS, standardize=True)
TABLES = {site: CANCER[site == SITES] for site in "abc"}


def standardised(frame):
    X = frame.to_numpy()
    return (X - X.mean(axis=0)) / X.std(axis=0)


def drawn(folds: int, seed: int) -> np.ndarray:
    """The folds that the sites draw."""
    fold = np.empty(len(SITES), dtype=int)
    for site in "abc":
        model = SimpleNamespace(y=np.zeros((site == SITES).sum()), clusters=None)
        fold[site == SITES] = fold_of_each(model, site, folds, seed)
    return fold


def pooled(X, y, size: float, l1_ratio: float):
    """The elastic net of all rows as a smooth problem: theta = p - q with p, q >= 0, by L-BFGS-B."""
    n, N = X.shape[1], len(y)

    def cost(x):
        theta, b = x[:n] - x[n : 2 * n], x[-1]
        z = X @ theta + b
        r = (1 / (1 + np.exp(-z)) - y) / N
        l1, l2 = size * l1_ratio, size * (1 - l1_ratio)
        g = X.T @ r + l2 * theta
        f = (np.logaddexp(0, z) - y * z).mean() + l1 * x[:-1].sum() + l2 * theta @ theta / 2
        return f, np.concatenate([g + l1, -g + l1, [r.sum()]])

    bounds = [(0, None)] * (2 * n) + [(None, None)]
    options = {"ftol": 0, "gtol": 1e-9, "maxiter": 5000, "maxfun": 20_000}
    x = minimize(cost, np.zeros(2 * n + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return x[:n] - x[n : 2 * n], x[-1]


def deviance(fit, X, y) -> np.ndarray:
    z = X @ fit[0] + fit[1]
    return 2 * (np.logaddexp(0, z) - y * z)


def test_the_cross_validated_path_is_that_of_the_pooled_rows():
    """Deviances of rows left out, both choices and all coefficients, at each penalty and fold."""
    found = fedshed.path(TABLES, STUDY, values=8, ratio=1e-2, folds=3, seed=1, l1_ratio=0.8)
    X, y, fold = standardised(CANCER[list(COLUMNS)]), CANCER.target.to_numpy(dtype=float), drawn(3, 1)
    means, errors = [], []
    for k, step in enumerate(found.steps):
        whole = pooled(X, y, step.penalty, 0.8)
        assert found.scaled[k, :-1] == pytest.approx(whole[0], abs=2e-4)
        assert np.array_equal(found.scaled[k, :-1] != 0, np.abs(whole[0]) > 1e-9)
        each = [pooled(X[fold != j], y[fold != j], step.penalty, 0.8) for j in (1, 2, 3)]
        left = [deviance(fit, X[fold == j], y[fold == j]).mean() for j, fit in enumerate(each, 1)]
        w = np.bincount(fold)[1:] / len(fold)
        means.append(w @ left)
        errors.append(np.sqrt(w @ np.square(left - means[-1]) / 2))
    assert [step.cv_mean for step in found.steps] == pytest.approx(means, rel=1e-4)
    assert [step.cv_error for step in found.steps] == pytest.approx(errors, rel=1e-3)
    best = int(np.argmin(means))
    assert found.minimum == best
    assert found.one_se == next(k for k in range(8) if means[k] <= means[best] + errors[best])


def test_a_linear_path_is_scikit_learns():
    frame = load_diabetes(as_frame=True).frame
    site = np.repeat(["a", "b", "c"], [7, 100, len(frame) - 107])
    tables = {name: frame[site == name] for name in "abc"}
    study = Study(family="linear", target="target", standardize=True)
    found = fedshed.path(tables, study, values=15, ratio=1e-3, folds=0, tol=1e-8)
    X, y = standardised(frame.drop(columns="target")), frame.target.to_numpy()
    sizes = np.abs(X.T @ (y - y.mean())).max() / len(y) * np.geomspace(1, 1e-3, 15)
    _, coefficients, _ = enet_path(X, y - y.mean(), l1_ratio=1.0, alphas=sizes, tol=1e-12, max_iter=10**6)
    assert [step.penalty for step in found.steps] == pytest.approx(sizes)
    assert found.scaled[:, :-1] == pytest.approx(coefficients.T, abs=1e-5)
    assert found.minimum is None
    with pytest.raises(ConfigError, match="without folds has no chosen penalty"):
        found.chosen  # noqa: B018


def test_all_folds_share_the_exchanges_of_one_path():
    alone = fedshed.path(TABLES, STUDY, values=20, folds=0)
    validated = fedshed.path(TABLES, STUDY, values=20, folds=8)
    assert np.array_equal(alone.coefficients, validated.coefficients)
    assert validated.traffic.exchanges <= 1.2 * alone.traffic.exchanges
    assert validated.traffic.exchanges <= 4 * 20


@pytest.mark.parametrize("family", ["poisson", "gamma"])
def test_other_families_fulfil_the_conditions_of_an_optimum_at_every_penalty(family):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5))
    mean = np.exp(0.5 * X[:, 0] - 0.5 * X[:, 1])
    y = rng.poisson(mean).astype(float) if family == "poisson" else mean * rng.gamma(2.0, 0.5, size=150)
    names = "abcde"
    rows = {"north": slice(0, 11), "south": slice(11, 150)}
    tables = {s: {"y": y[r], **{n: X[r, j] for j, n in enumerate(names)}} for s, r in rows.items()}
    found = fedshed.path(tables, Study(family=family, target="y"), values=10, folds=0, l1_ratio=0.7)
    for step, theta in zip(found.steps, found.coefficients, strict=True):
        mu = np.exp(X @ theta[:-1] + theta[-1])
        slopes = mu - y if family == "poisson" else 1 - y / mu
        g = X.T @ slopes / 150 + step.l2 * theta[:-1]
        zero = theta[:-1] == 0
        assert abs(slopes.mean()) < 2e-6
        assert (np.abs(g[zero]) <= step.l1 + 2e-6).all()
        assert np.abs(g[~zero] + step.l1 * np.sign(theta[:-1][~zero])).max(initial=0.0) < 2e-6


def test_sites_that_forget_and_hosts_elsewhere_give_the_same_path():
    here = fedshed.path(TABLES, STUDY, values=4, folds=2)
    forgetful = fedshed.path(TABLES, STUDY, values=4, folds=2, over=Stateless)
    hosts = HostedTables(InProcess({site: TableHost(site, TABLES[site]) for site in TABLES}), tuple(TABLES))
    hosted = conduct_path(STUDY, hosts, PathSettings(np.zeros(0), values=4, folds=2))
    for there in (forgetful, hosted):
        assert here.coefficients.tobytes() == there.coefficients.tobytes()
        assert here.steps == there.steps


def test_the_model_at_the_choice_is_the_path_at_that_step_and_the_files_tell_it(tmp_path):
    found = fedshed.select(TABLES, STUDY, values=15, folds=3, rule="1se")
    assert found.model.converged
    assert found.choice == found.one_se <= found.minimum
    assert found.model.inference.coef == pytest.approx(found.coefficients[found.choice], rel=1e-3, abs=1e-3)
    assert found.selected == tuple(name for name in found.model.inference.selected if name != "intercept")
    lines = found.to_csv().splitlines()
    assert len(lines) == 16
    assert lines[0].startswith("penalty,l1,l2,nonzero,deviance_explained,cv_mean,cv_error,mean_radius")
    left, right = found.plot().axes
    assert left.get_xscale() == right.get_xscale() == "log"
    assert "one standard error *" in repr(found)


def test_penalties_by_name_leave_the_others_in():
    study = Study(
        family="logistic", target="target", columns=COLUMNS[:3], standardize=True, l1={COLUMNS[1]: 1.0}
    )
    found = fedshed.path(TABLES, study, values=5, folds=0)
    assert (found.coefficients[:, 0] != 0).all()
    assert found.coefficients[0, 1] == 0
    assert found.steps[0].nonzero == 0


def test_rows_of_a_cluster_are_in_one_fold_and_folds_are_of_almost_the_same_size():
    model = SimpleNamespace(y=np.zeros(100), clusters=np.arange(100) // 4)
    fold = fold_of_each(model, "north", 5, 0)
    assert all(len(set(fold[4 * k : 4 * k + 4])) == 1 for k in range(25))
    assert set(np.bincount(fold)[1:]) == {20}
    assert not np.array_equal(fold, fold_of_each(model, "south", 5, 0))
    assert not np.array_equal(fold, fold_of_each(model, "north", 5, 1))


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"family": "multinomial"}, {}, "one linear predictor"),
        ({"l2": 0.1}, {}, "a path sets l2 itself"),
        ({"protected": True, "classes": (0, 1)}, {}, "protected and private studies do not allow"),
        ({}, {"folds": 1}, "folds must be 0, or from 2"),
        ({}, {"l1_ratio": 0.0}, "l1_ratio must be above 0"),
        ({}, {"ratio": 2.0}, "ratio must be between"),
        ({}, {"penalties": (0.1, -1.0)}, "penalties must be positive"),
        ({}, {"rule": "best"}, "rule must be"),
        ({}, {"folds": 100, "rows": 40}, "40 rows cannot be split into 100 folds"),
    ],
)
def test_what_has_no_path_is_refused_in_words(changes, settings, message):
    study = Study(**{"family": "logistic", "target": "target", "columns": COLUMNS[:2], **changes})
    rows = settings.pop("rows", 569)
    tables = {"a": CANCER[:20], "b": CANCER[20:rows]}
    with pytest.raises(ConfigError, match=message):
        fedshed.path(tables, study, **settings)


def test_a_site_that_approves_studies_answers_no_path():
    terms = Terms(
        protocol=PROTOCOL, study=STUDY, sites=("a",), algorithm="newton", tolerance=1e-9, max_iterations=50
    )
    plan = DesignPlan(STUDY, COLUMNS, {})
    assert part_of(FOLDS.number, Play(plan, raw(Newton())), 9, COLUMNS) is FOLDS
    with pytest.raises(ProtocolError, match="no approved study allows"):
        part_of(FOLDS.number, Play(plan, raw(Newton()), terms), 9, COLUMNS)


def test_a_row_of_weight_two_is_the_row_twice():
    rng = np.random.default_rng(3)
    frame = {"a": rng.normal(size=40), "b": rng.normal(size=40), "w": rng.integers(1, 4, size=40)}
    frame["y"] = frame["a"] + rng.normal(size=40)
    twice = {name: np.repeat(values, frame["w"]) for name, values in frame.items()}
    study = Study(family="linear", target="y", columns=("a", "b"), weight="w")
    weighted = fedshed.path({"north": frame}, study, values=5, folds=0)
    repeated = fedshed.path(
        {"north": twice}, Study(family="linear", target="y", columns=("a", "b")), values=5, folds=0
    )
    assert weighted.coefficients == pytest.approx(repeated.coefficients, abs=1e-9)
    assert [s.deviance_explained for s in weighted.steps] == pytest.approx(
        [s.deviance_explained for s in repeated.steps]
    )
