"""FederatedClassifier: each family of classes as an estimator, equal to its study, saved and read back."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import fedshed
from fedshed import ConfigError, FederatedClassifier, Study

SITES = np.repeat(["a", "b", "c"], [4, 46, 150])
ORDER = ["low", "mid", "high"]


def rows(two):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    place = np.digitize(X @ [1.0, -0.5, 0.0] + rng.logistic(size=200), [0.0] if two else [-0.5, 1.0])
    return X, np.array(ORDER)[place]


@pytest.mark.parametrize("family", ["logistic", "probit", "cloglog", "multinomial", "ordinal"])
def test_an_estimator_is_the_study_of_its_family(family, tmp_path):
    two = family in ("logistic", "probit", "cloglog")
    X, y = rows(two)
    order = ORDER if family == "ordinal" else None
    estimator = FederatedClassifier(family, l2=0.0, tol=1e-10, order=order).fit(X, y, sites=SITES)
    frames = {
        site: {"y": y[mine], **{f"x{j}": X[mine, j] for j in range(3)}}
        for site in "abc"
        for mine in [site == SITES]
    }
    study = Study(family=family, target="y", classes=tuple(order or ()))
    model = fedshed.fit(frames, study, tol=1e-10)
    frame = {f"x{j}": X[:, j] for j in range(3)}
    assert estimator.converged_, estimator.reason_
    np.testing.assert_allclose(estimator.predict_proba(X), model.predict_proba(frame), atol=1e-7)
    assert estimator.classes_.tolist() == list(model.plan.classes)
    assert np.array_equal(estimator.predict(X), model.predict(frame))
    assert estimator.score(X, y) > 0.5
    assert len(estimator.inference_.names) == len(model.inference.names)
    again = fedshed.estimators.load(estimator.save(tmp_path / "it.json"))
    np.testing.assert_array_equal(again.predict_proba(X), estimator.predict_proba(X))
    assert str(again.summary()) == str(estimator.summary())


def test_protected_classifiers_have_the_same_estimates():
    X, y = rows(two=False)
    plain, masked = (
        FederatedClassifier("ordinal", order=ORDER, protected=protected, tol=1e-10).fit(X, y, sites=SITES)
        for protected in (False, True)
    )
    np.testing.assert_allclose(masked.coef_, plain.coef_, atol=1e-7)
    np.testing.assert_allclose(masked.thresholds_, plain.thresholds_, atol=1e-7)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"family": "probitt"}, "did you mean 'probit'"),
        ({"family": "probit"}, "has two classes, and y has 3"),
        ({"family": "ordinal"}, "classes that are text have no known order"),
        ({"family": "ordinal", "order": ["low", "mid"]}, "each class of y exactly once"),
        ({"family": "ordinal", "order": ORDER, "fit_intercept": False}, "in place of an intercept"),
        ({"family": "logistic", "order": ORDER}, "order applies to the ordinal family only"),
    ],
)
def test_what_a_family_cannot_have_is_refused(parameters, words):
    X, y = rows(two=False)
    with pytest.raises(ConfigError, match=words):
        FederatedClassifier(**parameters).fit(X, y)


@pytest.mark.parametrize("family", ["logistic", "multinomial", "probit", "cloglog", "ordinal"])
@pytest.mark.parametrize("ask", ["predict", "predict_proba", "decision_function"])
def test_what_is_not_fitted_says_so(family, ask):
    with pytest.raises(NotFittedError):
        getattr(FederatedClassifier(family), ask)(np.zeros((2, 3)))


def test_thresholds_before_the_fit_say_so():
    with pytest.raises(NotFittedError):
        _ = FederatedClassifier("ordinal").thresholds_
