"""The elastic net against glum and scikit-learn on real rows of very unequal sites."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet

import fedshed
from fedshed import Study
from fedshed._utils.errors import ConfigError
from fedshed.exchange import InProcess
from fedshed.fitting.conduct import conduct
from fedshed.fitting.process_sites import TableHost
from fedshed.fitting.sites import HostedTables
from fedshed.fitting.stages import PROTOCOL
from fedshed.fitting.terms import Terms
from pages import blocks

glum = pytest.importorskip("glum")
PENALTIES = [(0.02, 0.0), (0.03, 0.02), (0.002, 0.001)]


def sites(rows: int) -> np.ndarray:
    return np.repeat(["a", "b", "c"], [20, 89, rows - 109])


def tables(frame, target: str) -> dict[str, object]:
    name = sites(len(frame))
    return {site: frame[name == site].rename(columns={"target": target}) for site in "abc"}


def cancer():
    frame = load_breast_cancer(as_frame=True).frame
    return frame.rename(columns=lambda name: name.replace(" ", "_"))


def standardised(frame):
    X = frame.drop(columns="target").to_numpy()
    return (X - X.mean(axis=0)) / X.std(axis=0)


def mean_cost(X, y, family, theta, b, l1, l2):
    z = X @ theta + b
    losses = {
        "logistic": np.logaddexp(0, z) - y * z,
        "poisson": np.exp(z) - y * z,
        "linear": (z - y) ** 2 / 2,
    }[family]
    return losses.mean() + l1 * np.abs(theta).sum() + l2 * theta @ theta / 2


def pooled(family, X, y, l1, l2):
    """The optimum by glum or scikit-learn, from all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if family == "linear":
            fit = ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-14, max_iter=100_000).fit(X, y)
        else:
            fit = glum.GeneralizedLinearRegressor(
                alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), gradient_tol=1e-9, max_iter=200,
                family="binomial" if family == "logistic" else family,
            ).fit(X, y)  # fmt: skip
    return fit.coef_, fit.intercept_


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_objective_and_zeros_are_those_of_the_pooled_rows(family, l1, l2):
    frame = cancer() if family == "logistic" else load_diabetes(as_frame=True).frame
    frame = frame.assign(target=np.round(frame.target / 10)) if family == "poisson" else frame
    scale = {"linear": 100.0, "poisson": 10.0}.get(family, 1.0)  # penalties of the size of the scores
    X, y = standardised(frame), frame.target.to_numpy(dtype=float)
    theta, b = pooled(family, X, y, scale * l1, scale * l2)
    study = Study(family=family, target="y", standardize=True, l1=scale * l1, l2=scale * l2)
    model = fedshed.fit(tables(frame, "y"), study)
    beta = model.inference.coef[:-1] * X_scales(frame)
    mine = (
        model.inference.coef[-1] + model.inference.coef[:-1] @ frame.drop(columns="target").mean().to_numpy()
    )
    ours, theirs = (
        mean_cost(X, y, family, *each, scale * l1, scale * l2) for each in ((beta, mine), (theta, b))
    )
    assert model.converged
    assert ours == pytest.approx(theirs, rel=1e-10)
    assert ours <= theirs + 1e-12 * abs(theirs)
    assert np.array_equal(beta == 0, theta == 0) or ours < theirs - 1e-12
    assert 0 < (beta == 0).sum() < len(beta) or l1 < 0.01


def X_scales(frame):
    return frame.drop(columns="target").to_numpy().std(axis=0)


def test_masked_sums_give_the_same_model():
    study = Study(
        family="logistic", target="y", standardize=True, l1=0.02, columns=tuple(cancer().columns[:6])
    )
    here = fedshed.fit(tables(cancer(), "y"), study)
    masked = fedshed.fit(tables(cancer(), "y"), protected(study))
    assert masked.converged
    assert masked.inference.selected == here.inference.selected
    assert masked.inference.coef == pytest.approx(here.inference.coef, rel=1e-9, abs=1e-12)


def test_hosts_with_terms_that_name_the_penalty_give_the_same_model():
    study = Study(
        family="logistic", target="y", standardize=True, l1=0.02, columns=tuple(cancer().columns[:6])
    )
    data = tables(cancer(), "y")
    terms = Terms(
        protocol=PROTOCOL,
        study=study,
        sites=("a", "b", "c"),
        algorithm="auto",
        tolerance=1e-9,
        max_iterations=50,
    )
    hosts = InProcess({site: TableHost(site, table) for site, table in data.items()})
    there = conduct(study, HostedTables(hosts, tuple(data), terms), terms.goal).model
    assert there.converged
    assert there.inference.coef.tobytes() == fedshed.fit(data, study).inference.coef.tobytes()
    assert terms.digest != replace(terms, study=replace(study, l1=0.03)).digest


def protected(study):
    return replace(study, protected=True, classes=(0, 1))


def test_the_summary_says_the_penalty_and_gives_no_errors():
    study = Study(family="logistic", target="y", standardize=True, l1=0.02)
    model = fedshed.fit(tables(cancer(), "y"), study)
    text = str(model.summary())
    assert "0.02 (1 free)" in text
    assert "Not zero:" in text
    assert "No standard errors" in text
    assert np.isnan(model.inference.std_err()).all()
    assert model.inference.parameters == len(model.inference.selected)


def test_a_penalty_by_name_leaves_the_others_free():
    columns = ("mean_radius", "mean_texture", "mean_smoothness")
    study = Study(family="logistic", target="y", columns=columns, standardize=True, l1={"mean_texture": 10.0})
    model = fedshed.fit(tables(cancer(), "y"), study)
    without = fedshed.fit(
        tables(cancer(), "y"),
        Study(family="logistic", target="y", columns=("mean_radius", "mean_smoothness"), standardize=True),
    )
    assert model.coefficients["mean_texture"] == 0
    for name, value in without.coefficients.items():
        assert model.coefficients[name] == pytest.approx(value, rel=1e-6)
    with pytest.raises(ConfigError, match="l1 names 'mean_textur', which is no coefficient"):
        fedshed.fit(
            tables(cancer(), "y"),
            Study(family="logistic", target="y", columns=columns, l1={"mean_textur": 1.0}),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l1": -1.0}, "l1 must be finite and at least 0"),
        ({"l1": 0.1, "family": "multinomial"}, "one linear predictor"),
    ],
)
def test_impossible_penalties_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Study(**{"family": "logistic", "target": "y", **changes})


def test_errors_by_rows_and_algorithms_without_a_step_are_refused_before_anything_is_sent():
    study = Study(family="logistic", target="y", l1=0.1)
    with pytest.raises(ConfigError, match=r"absolute penalty \(l1\) cannot have errors"):
        fedshed.fit({"a": {}}, study, errors="HC3")
    with pytest.raises(ConfigError, match="no step for an absolute penalty"):
        fedshed.fit({"a": {}}, study, algorithm="lbfgs")


def test_an_estimator_with_both_penalties_is_scikit_learns_elastic_net():
    X, y = load_diabetes(return_X_y=True)
    model = fedshed.FederatedLinearRegression(l1=0.3, l2=0.1).fit(X, y, sites=sites(len(y)))
    theirs = ElasticNet(alpha=0.4, l1_ratio=0.75, tol=1e-14).fit(X, y)
    assert model.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    assert np.array_equal(model.coef_ == 0, theirs.coef_ == 0)


def test_the_code_of_the_page_runs_as_printed():
    for code in blocks(Path(__file__).parents[2] / "docs/selection.md"):
        exec(compile(code, "selection.md", "exec"), {})


def test_the_digest_of_a_study_without_the_penalty_has_not_changed():
    import msgspec

    assert b"l1" not in msgspec.json.encode(Study(family="logistic", target="y"))
