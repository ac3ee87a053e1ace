"""Ordered classes: the pooled fit of statsmodels' OrderedModel, thresholds in order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from statsmodels.miscmodels.ordinal_model import OrderedModel

import fedshed
from fedshed import ConfigError, DataError, Federation, Study
from fedshed.exchange import Stateless
from fedshed.inference.plot import draw
from fedshed.linalg import tall
from fedshed.objectives import FAMILIES
from fedshed.objectives.ordinal import Ordinal
from fedshed.report.fitted import _coefficients

ORDER = ("low", "mid", "high", "top")  # which is not that of the alphabet
CUTS = (0, 3, 20, 200)


def fair():
    """200 rows of Fair's survey: the rating of a marriage, in four classes, by age, children and religion."""
    data = sm.datasets.fair.load_pandas().data[::31][:200]
    X = data[["age", "children", "religious"]].to_numpy()
    codes = np.clip(data["rate_marriage"].to_numpy().astype(int) - 2, 0, 3)
    return (X - X.mean(axis=0)) / X.std(axis=0), codes


def oracle(X, codes):
    model = OrderedModel(codes, X, distr="logit")
    found = model.fit(method="bfgs", disp=False, gtol=1e-9, maxiter=500)
    n = X.shape[1]
    thresholds = model.transform_threshold_params(found.params)[1:-1]
    # derivatives of the thresholds by the increments that statsmodels estimates
    J = np.eye(len(found.params))
    for k in range(1, len(thresholds)):
        J[n + k :, n + k] = np.exp(found.params[n + k])
    for k in range(len(thresholds)):
        J[n + k, n] = 1.0
    errors = np.sqrt(np.diag(J @ np.linalg.inv(-model.hessian(found.params)) @ J.T))
    return np.concatenate([found.params[:n], thresholds]), errors, found.llf


def tables(X, y):
    return {
        site: {"y": y[a:b], "age": X[a:b, 0], "children": X[a:b, 1], "religion": X[a:b, 2]}
        for site, a, b in zip("abc", CUTS[:-1], CUTS[1:], strict=True)
    }


def test_estimates_errors_and_likelihood_are_those_of_the_pooled_rows():
    X, codes = fair()
    y = np.array(ORDER)[codes]
    model = fedshed.fit(tables(X, y), Study(family="ordinal", target="y", classes=ORDER), tol=1e-11)
    theta, errors, llf = oracle(X, codes)
    assert model.converged, model.run.reason
    np.testing.assert_allclose(model.inference.coef, theta, atol=1e-7)
    np.testing.assert_allclose(model.inference.std_err(), errors, rtol=1e-4)  # its Hessian is numerical
    np.testing.assert_allclose(model.inference.log_likelihood, llf, rtol=1e-10)
    assert model.inference.names[3:] == (
        "threshold [low | mid]", "threshold [mid | high]", "threshold [high | top]"
    )  # fmt: skip
    ratios = model.summary(exp=True)
    assert "odds ratio" in str(ratios)
    assert (
        list(ratios.to_frame().index)
        == [row["name"] for row in ratios.to_rows()]
        == ["age", "children", "religion"]
    )
    assert "threshold [" not in str(ratios)  # their exponentials were printed below "odds ratio"
    assert "Thresholds are left out" in " ".join(str(ratios).split())
    left, _ = draw(model.inference, "", exp=True).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["age", "children", "religion"]
    assert [one.name for one in _coefficients(model, ratios)] == ["age", "children", "religion"]
    assert "low < mid < high < top" in str(model.summary())
    shares = np.bincount(codes) / len(codes)
    null = -2 * len(codes) * (shares * np.log(shares)).sum()
    np.testing.assert_allclose(model.inference.null_deviance, null, rtol=1e-9)


def test_predictions_are_probabilities_of_all_classes_in_their_order(tmp_path):
    X, codes = fair()
    model = fedshed.fit(tables(X, np.array(ORDER)[codes]), Study(family="ordinal", target="y", classes=ORDER))
    frame = {"age": X[:, 0], "children": X[:, 1], "religion": X[:, 2]}
    p = fedshed.Model.load(model.save(tmp_path / "model.json")).predict_proba(frame)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    pooled = OrderedModel(codes, X, distr="logit")
    theta, _, _ = oracle(X, codes)
    increments = np.concatenate([theta[:4], np.log(np.diff(theta[3:]))])
    np.testing.assert_allclose(p, pooled.predict(increments), atol=1e-6)
    assert set(model.predict(frame)) <= set(ORDER)
    with pytest.raises(ConfigError, match="ordinal family has several classes and no interval"):
        model.predict_interval(frame)


@pytest.mark.parametrize("how", ["standardised", "stateless", "protected", "numbers", "formula"])
def test_other_ways_give_the_same_estimates(how):
    X, codes = fair()
    y = codes if how == "numbers" else np.array(ORDER)[codes]
    scaled = X * [10.0, 1.0, 0.1] + [50.0, 0.0, 1.0] if how == "standardised" else X
    study = Study(
        family="ordinal", target="y", classes=() if how == "numbers" else ORDER,
        standardize=how == "standardised", protected=how == "protected",
        columns=None if how == "formula" else ("age", "children", "religion"),
        formula="y ~ age + children + religion" if how == "formula" else None,
    )  # fmt: skip
    options = {"over": Stateless} if how == "stateless" else {}
    model = fedshed.fit(tables(scaled, y), study, tol=1e-10, **options)
    assert model.converged, model.run.reason
    theta, _, _ = oracle(X, codes)
    if how == "standardised":
        beta = theta[:3] / [10.0, 1.0, 0.1]
        theta = np.concatenate([beta, theta[3:] + beta @ [50.0, 0.0, 1.0]])
    np.testing.assert_allclose(model.inference.coef, theta, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm", ["newton", "auto", "fib-shed", "qn-shed", "pen", "lbfgs", "newton-seldom"]
)
def test_algorithms_that_search_along_a_step_reach_the_pooled_optimum(algorithm):
    X, codes = fair()
    federation = Federation.from_arrays(X, codes, np.repeat(["a", "b", "c"], np.diff(CUTS)))
    result = fedshed.optimize(federation, loss="ordinal", l2=1e-3, algorithm=algorithm, tol=1e-9)
    theta, _ = fedshed.optimum(federation, loss="ordinal", l2=1e-3)
    assert result.converged, result.reason
    np.testing.assert_allclose(result.theta, theta, atol=1e-7)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_derivatives_and_the_factor_are_those_of_the_loss(seed, K, weighted):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, 12)
    model = Ordinal(rng.normal(size=(12, 2)), y, rng.uniform(0.5, 2, 12) if weighted else None, classes=K)
    theta = np.concatenate([rng.normal(size=2), np.sort(rng.normal(size=K - 1)) + np.arange(K - 1)])
    point, h = model.at(theta), 1e-6
    for j, step in enumerate(h * np.eye(len(theta))):
        low, high = model.at(theta - step), model.at(theta + step)
        assert abs((high.value - low.value) / (2 * h) - point.gradient[j]) < 1e-7
        column = (point.factor.T @ point.factor)[:, j]
        np.testing.assert_allclose((high.gradient - low.gradient) / (2 * h), column, atol=1e-6)


@given(st.floats(-800, 800), st.floats(1e-12, 50), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_far_out_nothing_is_nan_and_out_of_order_the_cost_is_infinite(shift, gap, label):
    model = Ordinal(np.ones((1, 1)), np.array([label]), classes=3)
    with np.errstate(divide="ignore", over="ignore"):
        assert model.at(np.array([shift, 0.0, gap])).value >= 0
        assert np.isfinite(model.at(np.array([shift, 0.0, gap])).gradient).all()
        out = model.at(np.array([shift, gap, 0.0])).value
    assert out == np.inf if label == 1 else np.isfinite(out)


def test_separated_classes_are_reported_with_their_column():
    X, codes = fair()
    federation = Federation.from_arrays(np.column_stack([X, codes]), codes)
    result = fedshed.optimize(federation, loss="ordinal", l2=0.0, algorithm="newton", tol=1e-8)
    assert not result.converged
    assert result.reason.startswith("separated: ")
    assert "x3" in result.reason


def test_two_classes_are_logistic_regression():
    X, codes = fair()
    two = (codes > 2).astype(int)
    ordinal = fedshed.optimize(Federation.from_arrays(X, two), loss="ordinal", l2=0.0, algorithm="newton")
    logistic = fedshed.optimize(
        Federation.from_arrays(X, two), loss="logistic", l2=0.0, intercept=True, algorithm="newton"
    )
    np.testing.assert_allclose(ordinal.theta, logistic.theta * [1, 1, 1, -1], atol=1e-8)


def test_what_ordinal_cannot_have_is_refused():
    X, codes = fair()
    y = np.array(ORDER)[codes]
    with pytest.raises(DataError, match="order of classes that are text is not known"):
        fedshed.fit(tables(X, y), Study(family="ordinal", target="y"))
    with pytest.raises(ConfigError, match="thresholds in place of an intercept"):
        Study(family="ordinal", target="y", intercept=False)
    with pytest.raises(ConfigError, match="no offset"):
        Study(family="ordinal", target="y", offset="age")
    with pytest.raises(ConfigError, match="classes lists 'none', which no site has"):
        fedshed.fit(tables(X, y), Study(family="ordinal", target="y", classes=("none", *ORDER)))
    assert FAMILIES["ordinal"].classes == "ordered"


@pytest.mark.parametrize("data", ["fair", "diabetes"])
def test_rows_that_stay_in_a_file_have_the_fit_of_rows_in_memory(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tall, "BLOCK", 64)  # many blocks
    X, codes = fair() if data == "fair" else diabetes()
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    sites = np.repeat(["a", "b"], [len(X) // 3, len(X) - len(X) // 3])
    here, there = (
        fedshed.FederatedClassifier("ordinal", l2=0.0, tol=1e-11).fit(rows, codes, sites=sites)
        for rows in (X, mapped)
    )
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-9)
    np.testing.assert_allclose(there.thresholds_, here.thresholds_, atol=1e-9)
    np.testing.assert_allclose(there.predict_proba(mapped), here.predict_proba(X), atol=1e-9)


def diabetes():
    """Thirds of scikit-learn's measure of progress, by age, sex, weight and blood pressure."""
    X, y = load_diabetes(return_X_y=True)
    return 20 * X[:, :4], np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
