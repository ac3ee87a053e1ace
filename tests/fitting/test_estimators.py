"""The estimators keep scikit-learn's contract, and are its pooled models whatever the sites."""

from __future__ import annotations

import json

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, check_cv, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedshed
from fedshed import (
    FederatedClassifier,
    FederatedGammaRegressor,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedRegressor,
)
from made_rows import FAMILIES, response

ESTIMATORS = [
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedGammaRegressor,
]


# Constant labels within a fold and separated toy classes do end without an optimum, and say so.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [estimator() for estimator in [*ESTIMATORS, FederatedRegressor, FederatedClassifier]]
)
def test_scikit_learn_contract(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it the check of array API inputs is skipped
    check(estimator)


SITES = np.repeat(["a", "b", "c", "d"], [1, 30, 169, 300])
LOSS = dict(zip(["linear", "binary", "poisson", "gamma", "classes"], FAMILIES, strict=True))


def rows(kind, seed=0):
    """X, y and weights of four very unequal sites."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(500, 4)) + 0.5 * (SITES == "c")[:, None]
    z = X @ [0.4, -0.5, 0.2, 0.0] + 0.3
    y = response(LOSS[kind], z, rng, cuts=(-0.3, 0.3, 1.0))
    return X, y, rng.uniform(0.5, 2.0, 500)


TIGHT = {"tol": 1e-12, "max_iter": 10_000}


def rival(kind, l2, weight):
    """scikit-learn's estimator with the same penalty; W is the total weight."""
    return {
        "linear": lambda: Ridge(alpha=l2 * weight, tol=1e-12),
        "binary": lambda: LogisticRegression(C=1 / (l2 * weight), **TIGHT),
        "classes": lambda: LogisticRegression(C=1 / (l2 * weight), solver="newton-cg", **TIGHT),
        "poisson": lambda: PoissonRegressor(alpha=l2, solver="newton-cholesky", **TIGHT),
        "gamma": lambda: GammaRegressor(alpha=l2, solver="newton-cholesky", **TIGHT),
    }[kind]()


OURS = dict(zip(["linear", "binary", "poisson", "gamma"], ESTIMATORS, strict=True))
OURS["classes"] = FederatedLogisticRegression


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_penalty_converts_to_scikit_learn_as_the_docstring_says(kind, weighted):
    X, y, weights = rows(kind)
    total = weights.sum() if weighted else len(y)
    given = weights if weighted else None
    ours = OURS[kind](l2=1e-2, tol=1e-11).fit(X, y, sites=SITES, sample_weight=given)
    theirs = rival(kind, 1e-2, total).fit(X, y, sample_weight=given)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ours.score(X, y), theirs.score(X, y), rtol=1e-7)
    if hasattr(ours, "predict_proba"):
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    else:
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6)


def test_without_a_penalty_it_is_ordinary_least_squares():
    X, y, _ = rows("linear")
    ours, theirs = FederatedLinearRegression(l2=0.0).fit(X, y, sites=SITES), LinearRegression().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)


@pytest.mark.parametrize("kind", OURS)
def test_where_the_rows_are_moves_nothing(kind):
    X, y, weights = rows(kind)
    pooled = OURS[kind](tol=1e-11).fit(X, y, sample_weight=weights)
    spread = OURS[kind](tol=1e-11).fit(X, y, sites=SITES, sample_weight=weights)
    np.testing.assert_allclose(pooled.coef_, spread.coef_, atol=1e-9)


def test_several_classes_sum_to_zero():
    X, y, _ = rows("classes")
    model = FederatedLogisticRegression().fit(X, y, sites=SITES)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0, atol=1e-14)
    assert abs(model.intercept_.sum()) < 1e-14


@pytest.mark.parametrize("of", [lambda f: f, polars.from_pandas, pyarrow.Table.from_pandas])
def test_frames_of_any_kind_give_what_arrays_give(of):
    X, y, _ = rows("poisson")
    frame = of(pandas.DataFrame(X, columns=["age", "dose", "weight", "height"]))
    plain = FederatedPoissonRegressor().fit(X, y, sites=SITES)
    framed = FederatedPoissonRegressor().fit(frame, y, sites=SITES)
    assert list(framed.feature_names_in_) == ["age", "dose", "weight", "height"]
    np.testing.assert_array_equal(framed.coef_, plain.coef_)
    np.testing.assert_allclose(framed.predict(frame), plain.predict(X), rtol=1e-14)
    other = of(pandas.DataFrame(X[:, ::-1], columns=["height", "weight", "dose", "age"]))
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        framed.predict(other)


def test_csr_is_never_densified(monkeypatch):
    X, y, _ = rows("binary")
    X = X * (np.abs(X) > 0.8)
    dense = FederatedLogisticRegression().fit(X, y, sites=SITES)

    def refuse(*args, **kwargs):
        raise AssertionError("densified")

    sparse = csr_array(X)
    monkeypatch.setattr(csr_array, "todense", refuse)
    monkeypatch.setattr(csr_array, "toarray", lambda self, *a: refuse() if self.shape[0] > 10 else None)
    model = FederatedLogisticRegression(algorithm="lbfgs", tol=1e-9).fit(sparse, y, sites=SITES)
    np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-6)
    assert (model.predict(sparse) == dense.predict(X)).all()


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_sites_travel_through_pipelines_and_searches():
    X, y, weights = rows("binary")
    model = FederatedLogisticRegression().set_fit_request(sites=True, sample_weight=True)
    model = model.set_score_request(sample_weight=True)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    search = GridSearchCV(
        make_pipeline(scaler, model), {"federatedlogisticregression__l2": [1e-4, 1e-2, 1.0]}, cv=3
    )
    search.fit(X, y, sites=SITES, sample_weight=weights)
    assert len(search.best_estimator_[-1].result_.trace[0:]) > 1
    plain = GridSearchCV(
        make_pipeline(scaler, model), {"federatedlogisticregression__l2": [1e-4, 1e-2, 1.0]}, cv=3
    ).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], atol=1e-12
    )


def test_an_offset_is_used_in_fitting_and_predicting():
    X, _, _ = rows("poisson")
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.1, 1.0, 500)
    y = rng.poisson(exposure * np.exp(X @ [0.4, -0.5, 0.2, 0.0] + 1.0))
    counts = FederatedPoissonRegressor(l2=0.0).fit(X, y, sites=SITES, offset=np.log(exposure))
    rates = PoissonRegressor(alpha=0.0, **TIGHT).fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(counts.coef_, rates.coef_, rtol=1e-5)
    np.testing.assert_allclose(
        counts.predict(X, offset=np.log(exposure)), exposure * counts.predict(X, offset=0.0)
    )


def shifted(kind):
    """Rows whose response is mostly due to the offset, which X does not know."""
    rng = np.random.default_rng(2)
    X, offset = rng.normal(size=(500, 4)), rng.normal(size=500) * (10 if kind == "linear" else 1)
    z = X @ [0.4, -0.5, 0.2, 0.0] + 0.3 + offset
    y = response(LOSS[kind], z, rng, cuts=(-0.3, 0.3, 1.0))
    return X, np.unique(y, return_inverse=True)[1] if kind == "binary" else y, offset


OFFSET = [kind for kind in OURS if kind != "classes"]
USES = ("score", "predict", "predict_proba", "predict_log_proba", "decision_function")


def uses(model, X, y):
    """Everything that an estimator computes from rows, as functions of the offset."""
    return {
        name: (
            lambda offset, name=name: getattr(model, name)(
                X, *([y] if name == "score" else []), offset=offset
            )
        )
        for name in USES
        if hasattr(model, name)
    }


@pytest.mark.parametrize("kind", OFFSET)
def test_a_model_with_an_offset_predicts_and_scores_with_it_or_not_at_all(kind):
    """An offset is a column whose coefficient is 1."""
    X, y, offset = shifted(kind)
    model = OURS[kind](l2=0.0).fit(X, y, sites=SITES, offset=offset)
    other = OURS[kind]().fit(np.column_stack([X, offset]), y, sites=SITES)
    other.coef_ = np.append(model.coef_, 1.0).reshape(*model.coef_.shape[:-1], 5)
    other.intercept_ = model.intercept_
    theirs = uses(other, np.column_stack([X, offset]), y)
    for name, use in uses(model, X, y).items():
        np.testing.assert_allclose(use(offset), theirs[name](None), err_msg=name)
        np.testing.assert_allclose(use(np.full(500, 0.5)), use(0.5), err_msg=name)
        with pytest.raises(ValueError, match="was fitted with an offset: give offset="):
            use(None)


@pytest.mark.parametrize("kind", OFFSET)
@pytest.mark.parametrize("of", [lambda o: o[:, None], lambda o: o[:3], lambda o: o[None, :], lambda o: o[:2]])
def test_an_offset_of_another_shape_is_refused(kind, of):
    X, y, offset = shifted(kind)
    model = OURS[kind]().fit(X, y, sites=SITES)
    for use in uses(model, X, y).values():
        with pytest.raises(
            fedshed.ConfigError, match=r"offset has shape .* one number per row, shape \(500,\)"
        ):
            use(of(offset))


def test_offsets_that_are_no_numbers_are_refused():
    X, y, offset = shifted("linear")
    model = FederatedLinearRegression().fit(X, y)
    with pytest.raises(fedshed.ConfigError, match="one number per row"):
        model.predict(X, offset=["many"] * 500)
    with pytest.raises(fedshed.ConfigError, match="finite numbers only"):
        model.predict(X, offset=np.where(offset > 0, np.nan, 0.0))
    X, y, _ = rows("classes")
    several = FederatedLogisticRegression().fit(X, y)
    with pytest.raises(fedshed.ConfigError, match="would shift all classes equally"):
        several.predict_proba(X, offset=0.0)


@pytest.mark.parametrize("kind", OFFSET)
def test_cross_validation_scores_with_the_offset_or_says_that_it_does_not(kind):
    X, y, offset = shifted(kind)
    model = OURS[kind](l2=0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = model.set_fit_request(offset=True).set_score_request(offset=True)
        scores = cross_val_score(routed, X, y, cv=3, params={"offset": offset})
    expected = []
    for train, test in check_cv(3, y, classifier=kind == "binary").split(X, y):
        part = OURS[kind](l2=0.0).fit(X[train], y[train], offset=offset[train])
        expected.append(part.score(X[test], y[test], offset=offset[test]))
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    with pytest.warns(UserWarning, match="was fitted with an offset"):
        assert np.isnan(cross_val_score(OURS[kind](l2=0.0), X, y, cv=3, params={"offset": offset})).all()
    scoring = "neg_log_loss" if kind == "binary" else "neg_mean_squared_error"
    with pytest.warns(UserWarning, match="was fitted with an offset"):
        cross_val_score(OURS[kind](l2=0.0), X, y, cv=3, params={"offset": offset}, scoring=scoring)


def test_a_saved_model_remembers_that_it_needs_an_offset(tmp_path):
    X, y, offset = shifted("linear")
    path = FederatedLinearRegression().fit(X, y, offset=offset).save(tmp_path / "model.json")
    with pytest.raises(fedshed.ConfigError, match="was fitted with an offset"):
        fedshed.estimators.load(path).predict(X)
    plain = FederatedLinearRegression().fit(X, y).save(path)
    assert '"offset"' not in plain.read_text()  # as older versions read it
    assert fedshed.estimators.load(path).predict(X).shape == (500,)


def test_with_all_rows_in_this_process_auto_takes_newton():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 40))
    model = FederatedLogisticRegression().fit(
        X, X[:, 0] + rng.logistic(size=300) > 0, sites=np.arange(300) % 3
    )
    assert model.result_.algorithm.startswith("newton: all sites are in this process")


def test_a_run_that_does_not_converge_warns():
    X, y, _ = rows("binary")
    with pytest.warns(ConvergenceWarning, match="max_iterations = 1 reached"):
        model = FederatedLogisticRegression(max_iter=1).fit(X, y, sites=SITES)
    assert not model.converged_
    with pytest.warns(ConvergenceWarning, match="separated: .* x0"):
        FederatedLogisticRegression(l2=0.0).fit(X[:, :1], X[:, 0] > 0.1)


@pytest.mark.parametrize("scale", [1e-4, 1e4, 1e8])
def test_columns_in_any_unit_converge_to_rounding(scale):
    """With one site no other site's gradient shows the Master how large rounding is; a stall does."""
    X, y, _ = rows("linear")
    model = FederatedLinearRegression(l2=0.0).fit(X * scale, 1e3 * y)
    np.testing.assert_allclose(model.coef_, LinearRegression().fit(X * scale, 1e3 * y).coef_, rtol=1e-8)
    assert model.converged_


def test_the_number_of_sites_must_be_that_of_rows():
    X, y, _ = rows("linear")
    with pytest.raises(fedshed.DataError, match="sites has 3"):
        FederatedLinearRegression().fit(X, y, sites=["a", "b", "c"])


def test_a_ridge_for_each_column_leaves_the_intercept_free():
    X, y, _ = rows("linear")
    one = FederatedLinearRegression(l2=[0.1, 0.2, 0.3, 0.4]).fit(X, y, sites=SITES)
    other = FederatedLinearRegression(l2=[0.1, 0.2, 0.3, 0.4, 0.0]).fit(X, y, sites=SITES)
    np.testing.assert_array_equal([*one.coef_, one.intercept_], [*other.coef_, other.intercept_])


def test_an_exposure_given_as_an_offset_is_refused_with_what_was_meant():
    X, y, _ = rows("poisson")
    with pytest.raises(fedshed.DataError, match="logarithm of the exposure as the offset"):
        FederatedPoissonRegressor().fit(X, y, sites=SITES, offset=np.full(len(y), 1000.0))


# --- summaries and files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OURS)
def test_a_saved_estimator_predicts_and_prints_as_before(kind, tmp_path):
    X, y, _ = rows(kind)
    frame = pandas.DataFrame(X, columns=["age", "dose", "weight", "height"])
    model = OURS[kind](l2=np.full(5, 1e-3)).fit(frame, y, sites=SITES)
    again = fedshed.estimators.load(model.save(tmp_path / "model.json"))
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert str(again.summary()) == str(model.summary())
    np.testing.assert_array_equal(again.get_params()["l2"], model.l2)
    assert list(again.feature_names_in_) == ["age", "dose", "weight", "height"]


def test_the_summary_has_a_row_for_each_coefficient_of_each_class():
    X, y, _ = rows("classes")
    frame = FederatedLogisticRegression().fit(X, y, sites=SITES).summary().to_frame()
    assert frame.loc["x2 [top]", "std err"] > 0
    assert len(frame) == 3 * 5  # against the first class
    binary = FederatedLogisticRegression().fit(X, y == "top", sites=SITES)
    assert list(binary.summary().to_frame().index) == ["x0", "x1", "x2", "x3", "intercept"]


def test_what_is_no_estimator_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"fedshed_model": 1}')
    with pytest.raises(fedshed.ConfigError, match="not an estimator that fedshed wrote"):
        fedshed.estimators.load(path)
    with pytest.raises(fedshed.ConfigError, match="No such file"):
        fedshed.estimators.load(tmp_path / "none.json")
    X, y, _ = rows("linear")
    model = FederatedLinearRegression(inference=False).fit(X, y)
    with pytest.raises(fedshed.ConfigError, match="fitted without inference"):
        model.summary()
    saved = json.loads(model.save(path).read_text())
    path.write_text(json.dumps({**saved, "coef": saved["coef"][1:]}))
    with pytest.raises(fedshed.ConfigError, match="the shapes of coef and intercept do not fit"):
        fedshed.estimators.load(path)
    text = model.save(path).read_text().replace('"fedshed_estimator": 2', '"fedshed_estimator": 1')
    path.write_text(text)
    with pytest.raises(fedshed.ConfigError, match="has schema 1"):
        fedshed.estimators.load(path)
