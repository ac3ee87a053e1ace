"""Cross-validation by scikit-learn with sites gives the numbers of our own evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import make_scorer, roc_auc_score
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, cross_val_score

import fedshed
from pages import play

X, Y = load_breast_cancer(return_X_y=True)
X = X[:, [1, 4, 8]]
X = (X - X.mean(axis=0)) / X.std(axis=0)
SITES = np.repeat(["a", "b", "c"], (60, 160, 349))
TABLES = {
    site: {**{f"x{j}": X[site == SITES, j] for j in range(3)}, "y": Y[site == SITES]}
    for site in ("a", "b", "c")
}


def test_leave_one_group_out_of_the_estimator_is_leave_one_site_out() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = fedshed.FederatedLogisticRegression(l2=0.0, tol=1e-10).set_fit_request(sites=True)
        params = {"sites": SITES, "groups": SITES}
        scores = {
            name: cross_val_score(model, X, Y, cv=LeaveOneGroupOut(), scoring=name, params=params)
            for name in ("roc_auc", "neg_log_loss", "neg_brier_score")
        }
    found = fedshed.leave_one_site_out(TABLES, fedshed.Study(family="logistic", target="y")).evaluation.sites
    for k, site in enumerate("abc"):
        measures = found[site].measures
        assert measures["auc"].value == pytest.approx(scores["roc_auc"][k], abs=1e-9)
        assert measures["log_loss"].value == pytest.approx(-scores["neg_log_loss"][k], rel=1e-6)
        assert measures["brier"].value == pytest.approx(-scores["neg_brier_score"][k], rel=1e-6)


def test_auc_within_sites_is_that_of_an_evaluation_and_a_scorer_of_cross_validation() -> None:
    study = fedshed.Study(family="logistic", target="y")
    model = fedshed.fit(TABLES, study)
    p = np.concatenate([model.predict_proba(TABLES[site])[:, 1] for site in "abc"])
    expected = fedshed.evaluate(model, TABLES).pooled["auc_within"].value
    assert fedshed.auc_within_sites(Y, p, SITES) == pytest.approx(expected, abs=1e-12)
    assert fedshed.auc_within_sites(Y, p, np.zeros(len(Y))) == pytest.approx(roc_auc_score(Y, p))
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(fedshed.auc_within_sites, response_method="decision_function")
        estimator = fedshed.FederatedLogisticRegression().set_fit_request(sites=True)
        scores = cross_val_score(
            estimator, X, Y, cv=GroupKFold(3), scoring=scorer.set_score_request(sites=True),
            params={"sites": SITES, "groups": np.arange(len(Y)) // 3},
        )  # fmt: skip
    assert scores.min() > 0.8


def test_the_page_on_evaluation_prints_what_it_shows() -> None:
    play(Path(__file__).parents[2] / "docs/evaluation.md")


def test_rows_without_a_pair_are_refused() -> None:
    with pytest.raises(fedshed.DataError, match="both classes"):
        fedshed.auc_within_sites([0, 1], [0.2, 0.1], ["a", "b"])
    with pytest.raises(fedshed.DataError, match="one score, one site and one weight for each row"):
        fedshed.auc_within_sites([0, 1], [0.2, 0.1], ["a"])
