"""Measures of federated evaluations equal scikit-learn's on pooled rows, or lie within their bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

import fedshed
from against_r import R, rows_of
from fedshed.exchange.sites import LocalSites, Stage
from fedshed.exchange.wire import Traffic
from fedshed.inference.evaluation import Evaluation, evaluation_of
from fedshed.objectives.build import held_objective
from fedshed.objectives.ranking import edges_of
from fedshed.protocol.conversation import Problem
from fedshed.solve.evaluating import Evaluating
from fedshed.solve.run import play
from fedshed.solve.stages import evaluate
from fedshed.tables import split
from fedshed.tables.stored import Table

COLUMNS = ["x0", "x1", "x2", "x3"]


def cut(X: Any, y: Any, *bounds: int) -> dict[str, dict[str, Any]]:
    """Very unequal sites of the first rows, with the columns x0, x1, ... and y."""
    parts = np.split(np.arange(len(y)), bounds)
    return {
        f"site{k}": {**{f"x{j}": X[rows, j] for j in range(X.shape[1])}, "y": y[rows]}
        for k, rows in enumerate(parts)
    }


def pooled(model: fedshed.Model, tables: dict[str, dict[str, Any]]) -> tuple[Any, Any]:
    """All responses, and what the model predicts for them."""
    predicted = [
        model.predict_proba(table) if model.plan.classes else model.predict(table)
        for table in tables.values()
    ]
    return np.concatenate([table["y"] for table in tables.values()]), np.concatenate(predicted)


@pytest.fixture(scope="module")
def cancer() -> tuple[fedshed.Model, dict[str, dict[str, Any]]]:
    """A model of four columns over sites with 30, 120 and 419 rows."""
    X, y = load_breast_cancer(return_X_y=True)
    tables = cut(X[:, [1, 4, 8, 9]], y, 30, 150)
    return fedshed.fit(tables, fedshed.Study(family="logistic", target="y")), tables


def delong(y: Any, scores: Any) -> float:
    """DeLong's standard error, written out over all pairs."""
    ups, downs = scores[y == 1], scores[y == 0]
    wins = (ups[:, None] > downs) + 0.5 * (ups[:, None] == downs)
    parts = wins.mean(axis=1).var(ddof=1) / len(ups) + wins.mean(axis=0).var(ddof=1) / len(downs)
    return float(np.sqrt(parts))


def test_two_classes_are_measured_as_scikit_learn_does_on_pooled_rows(cancer) -> None:
    model, tables = cancer
    found = fedshed.evaluate(model, tables)
    y, p = pooled(model, tables)
    p = p[:, 1]
    expected = {
        "log_loss": metrics.log_loss(y, p), "brier": metrics.brier_score_loss(y, p),
        "auc": metrics.roc_auc_score(y, p), "accuracy": metrics.accuracy_score(y, p > 0.5),
        "sensitivity": metrics.recall_score(y, p > 0.5),
        "specificity": metrics.recall_score(y, p > 0.5, pos_label=0), "d2": metrics.d2_log_loss_score(y, p),
    }  # fmt: skip
    for name, value in expected.items():
        assert found.pooled[name].value == pytest.approx(value, abs=1e-12), name
        assert found.pooled[name].bound == 0
    assert found.pooled["auc"].std_err == pytest.approx(delong(y, p), rel=1e-10)
    assert found.confusion.counts == tuple(map(tuple, metrics.confusion_matrix(y, p > 0.5).tolist()))
    for site, table in tables.items():
        own = model.predict_proba(table)[:, 1]
        measures = found.sites[site].measures
        assert measures["auc"].value == pytest.approx(metrics.roc_auc_score(table["y"], own), abs=1e-12)
        assert measures["auc"].std_err == pytest.approx(delong(table["y"], own), rel=1e-10)
        assert measures["brier"].value == pytest.approx(metrics.brier_score_loss(table["y"], own))


def test_the_roc_curve_of_exact_scores_is_that_of_scikit_learn(cancer) -> None:
    model, tables = cancer
    found = fedshed.evaluate(model, tables).roc
    y, p = pooled(model, tables)
    false, true, _ = metrics.roc_curve(y, p[:, 1], drop_intermediate=False)
    ours = set(zip(np.round(found.false_positive, 12), np.round(found.true_positive, 12), strict=True))
    assert ours <= set(zip(np.round(false, 12), np.round(true, 12), strict=True))
    assert found.true_positive[0] == found.false_positive[0] == 0
    assert found.true_positive[-1] == found.false_positive[-1] == 1


def test_calibration_groups_are_the_means_of_rows_with_similar_scores(cancer) -> None:
    model, tables = cancer
    found = fedshed.evaluate(model, tables)
    y, p = pooled(model, tables)
    order = np.argsort(p[:, 1])
    ends = np.cumsum([0, *(round(group.weight) for group in found.calibration)])
    for group, start, end in zip(found.calibration, ends[:-1], ends[1:], strict=True):
        rows = order[start:end]
        assert group.predicted == pytest.approx(p[rows, 1].mean(), abs=1e-12)
        assert group.observed == pytest.approx(y[rows].mean(), abs=1e-12)
        assert group.low <= group.observed <= group.high


def test_recalibration_is_the_logistic_regression_of_the_outcome_on_the_log_odds() -> None:
    import statsmodels.api as sm

    X, y = load_breast_cancer(return_X_y=True)
    tables = cut(X[:, [1, 4, 8, 9]], y, 60, 200)
    model = fedshed.fit(
        {"one": tables["site0"], "two": tables["site1"]}, fedshed.Study(family="logistic", target="y")
    )
    found = fedshed.evaluate(model, tables)
    labels, p = pooled(model, tables)
    for rows, measures in (
        (slice(None), found.pooled), (slice(200, None), found.sites["site2"].measures)
    ):  # fmt: skip
        odds = np.log(p[rows, 1] / p[rows, 0])
        fit = sm.Logit(labels[rows], sm.add_constant(odds)).fit(disp=0, tol=1e-12)
        for name, k in (("calibration_intercept", 0), ("calibration_slope", 1)):
            assert measures[name].value == pytest.approx(fit.params[k], abs=1e-7)
            assert measures[name].std_err == pytest.approx(fit.bse[k], rel=1e-6)


OTHER_ROWS = {
    "birthwt": ("calibration_birthwt", "low", ("age", "lwt", "smoke"), lambda rows: rows["race"] == "white"),
    "womenlf": (
        "calibration_womenlf", "work", ("hincome", "children"),
        lambda rows: rows["region"].isin(["Ontario", "Quebec"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_calibration_in_the_large_has_slope_1_and_the_joint_intercept_has_its_slope(name) -> None:
    """R's glm(y ~ offset(s)) and glm(y ~ s), for a model that was fitted to other rows."""
    values, target, columns, fitted = OTHER_ROWS[name]
    rows = rows_of(name)
    site = "race" if name == "birthwt" else "region"
    if target == "work":
        rows = rows.assign(work=(rows["partic"] != "not.work").astype(int))
    mine = fitted(rows)
    study = fedshed.Study(family="logistic", target=target, columns=columns)
    model = fedshed.fit(split(rows[mine], site), study, tol=1e-11)
    found, theirs = fedshed.evaluate(model, split(rows[~mine], site)), R[values]
    large = found.pooled["calibration_in_the_large"]
    np.testing.assert_allclose(
        [large.value, large.std_err], [theirs["large"], theirs["large_error"]], rtol=1e-6
    )
    joint = [found.pooled[name] for name in ("calibration_intercept", "calibration_slope")]
    np.testing.assert_allclose([one.value for one in joint], theirs["joint"], rtol=1e-6)
    np.testing.assert_allclose([one.std_err for one in joint], theirs["joint_error"], rtol=1e-6)
    text = str(found)
    assert "Calibration in the large" in text
    assert "Joint intercept (a + b s)" in text


def test_one_class_has_no_calibration_in_the_large(cancer) -> None:
    model, tables = cancer
    target = model.plan.study.target
    one = {
        site: {name: values[table[target] == 1] for name, values in table.items()}
        for site, table in tables.items()
    }
    assert fedshed.evaluate(model, one).pooled["calibration_in_the_large"].value is None


def test_numbers_are_measured_as_scikit_learn_does_on_pooled_rows() -> None:
    X, y = load_diabetes(return_X_y=True)
    tables = cut(X[:, :4], y, 20, 120)
    deviances = {
        "linear": metrics.mean_squared_error, "poisson": metrics.mean_poisson_deviance,
        "gamma": metrics.mean_gamma_deviance,
    }  # fmt: skip
    shares = {
        "linear": metrics.r2_score, "poisson": lambda y, p: metrics.d2_tweedie_score(y, p, power=1),
        "gamma": lambda y, p: metrics.d2_tweedie_score(y, p, power=2),
    }  # fmt: skip
    for family, deviance in deviances.items():
        model = fedshed.fit(tables, fedshed.Study(family=family, target="y"))
        found = fedshed.evaluate(model, tables).pooled
        target, p = pooled(model, tables)
        assert found["deviance"].value == pytest.approx(deviance(target, p), rel=1e-10)
        assert found["d2"].value == pytest.approx(shares[family](target, p), rel=1e-9)
        assert found["r2"].value == pytest.approx(metrics.r2_score(target, p), rel=1e-10)
        assert found["rmse"].value == pytest.approx(metrics.root_mean_squared_error(target, p), rel=1e-12)
        assert found["mae"].value == pytest.approx(metrics.mean_absolute_error(target, p), rel=1e-12)
        errors = np.abs(target - p)
        assert found["mae"].std_err == pytest.approx(errors.std(ddof=1) / np.sqrt(len(errors)), rel=1e-6)


def test_several_classes_have_log_loss_accuracy_and_a_confusion_matrix() -> None:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    tables = cut(X[order], np.array(["s", "ve", "vi"])[y[order]], 20, 60)
    model = fedshed.fit(tables, fedshed.Study(family="multinomial", target="y", l2=0.01, standardize=True))
    found = fedshed.evaluate(model, tables)
    labels, p = pooled(model, tables)
    predicted = np.array(model.plan.classes)[p.argmax(axis=1)]
    assert found.pooled["log_loss"].value == pytest.approx(metrics.log_loss(labels, p), rel=1e-10)
    assert found.pooled["accuracy"].value == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert found.confusion.counts == tuple(map(tuple, metrics.confusion_matrix(labels, predicted).tolist()))
    assert "accuracy" in found.sites["site0"].measures


def measured(scores: dict[str, Any], labels: dict[str, Any], bins: int, least: int) -> Evaluation:
    """An evaluation of rows whose scores are given: a model with one column and the coefficient 1."""
    models = {
        site: held_objective(
            site,
            Table(np.asarray(z, dtype=float)[:, None], np.asarray(labels[site])),
            "logistic",
            (0, 1),
            False,
            least,
        )
        for site, z in scores.items()
    }
    weights = {site: model.weight for site, model in models.items()}
    problem = Problem(np.zeros(1), weights, "logistic", ("z",), False, {})
    told, _ = evaluate(LocalSites({}, held=models), problem, np.ones(1), bins)
    return evaluation_of(told, "two", classes=(0, 1))


@st.composite
def sites(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scores with many ties, sites of one row or one class."""
    scores, labels = {}, {}
    for k in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 30))
        kind = draw(st.sampled_from(["any", "zeros", "ones"]))
        scores[f"s{k}"] = draw(st.lists(st.integers(-3, 3), min_size=rows, max_size=rows))
        drawn = draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
        labels[f"s{k}"] = {"any": drawn, "zeros": [0] * rows, "ones": [1] * rows}[kind]
    return scores, labels


@settings(max_examples=25, deadline=None)
@given(sites(), st.sampled_from([2, 7, 1000]), st.integers(1, 6))
def test_auc_is_exact_or_within_its_bound_whatever_ties_and_tiny_sites_there_are(
    drawn: tuple[dict[str, Any], dict[str, Any]], bins: int, least: int
) -> None:
    scores, labels = drawn
    z, y = (np.concatenate([part[site] for site in scores]) for part in (scores, labels))
    exact, binned = measured(scores, labels, 0, 1), measured(scores, labels, bins, least)
    if len(np.unique(y)) < 2:
        assert exact.pooled["auc"].value is binned.pooled["auc"].value is None
        return
    true = metrics.roc_auc_score(y, z)
    assert exact.pooled["auc"].value == pytest.approx(true, abs=1e-12)
    area = binned.pooled["auc"]
    assert abs(area.value - true) <= area.bound + 1e-12
    share = binned.pooled["sensitivity"]
    assert abs(share.value - metrics.recall_score(y, z > 0)) <= share.bound + 1e-12


def test_every_cell_that_leaves_has_no_row_or_enough_of_them() -> None:
    rng = np.random.default_rng(5)
    for least in (2, 5, 12):
        z = rng.normal(size=200).round(1)
        y = (z + rng.normal(size=200) > 0.5).astype(int)
        model = held_objective("a", Table(z[:, None], y), "logistic", (0, 1), False, least)
        rows = model.scored(np.ones(1))
        for counts, ends in rows.by_bin(edges_of(0.1, 1.0, 1000, 0.0), 0.0):
            assert ends[-1] == len(edges_of(0.1, 1.0, 1000, 0.0)) + 1
            assert ((counts == 0) | (counts >= least)).all()
        sums, _ = rows.groups(edges_of(0.1, 1.0, 10))
        events, others = sums[:, 1], sums[:, 0] - sums[:, 1]
        for cells in (events, others):
            assert ((cells == 0) | (cells >= least)).all()
        assert sums[:, 0].sum() == 200


def test_the_model_of_a_file_is_evaluated_with_its_offset_weights_and_scale() -> None:
    rng = np.random.default_rng(1)
    x, years = rng.normal(size=120), rng.uniform(0.5, 2, size=120)
    claims, weight = rng.poisson(years * np.exp(0.3 * x)), rng.integers(1, 4, size=120)
    columns = {"x": 100 * x, "years": years, "claims": claims, "w": weight}
    tables = {"a": {k: v[:25] for k, v in columns.items()}, "b": {k: v[25:] for k, v in columns.items()}}
    study = fedshed.Study(
        family="poisson",
        target="claims",
        exposure="years",
        weight="w",
        weight_type="frequency",
        standardize=True,
        columns=("x",),
    )
    model = fedshed.fit(tables, study)
    predicted = model.predict(columns)
    found = fedshed.evaluate(model, tables)
    expected = metrics.mean_poisson_deviance(claims, predicted, sample_weight=weight)
    assert found.pooled["deviance"].value == pytest.approx(expected, rel=1e-9)
    assert found.pooled["bias"].value == pytest.approx(
        0, abs=1e-8
    )  # of a fit with an intercept, on its own rows


def test_what_cannot_be_evaluated_is_refused_with_a_sentence(cancer) -> None:
    model, tables = cancer
    with pytest.raises(fedshed.ConfigError, match="threshold"):
        fedshed.evaluate(model, tables, threshold=1.0)
    with pytest.raises(fedshed.ConfigError, match="bins"):
        fedshed.evaluate(model, tables, least=5)
    with pytest.raises(fedshed.DataError, match="site 'here': there is no column 'x0'"):
        fedshed.evaluate(model, {"here": {"y": [0, 1]}})
    with pytest.raises(fedshed.DataError, match=r"site 'here'.*class"):
        fedshed.evaluate(model, {"here": {**{c: [1.0, 2.0] for c in COLUMNS}, "y": [0, 7]}})


def test_answers_that_no_rows_can_have_are_refused() -> None:
    class Lying(Evaluating, frozen=True, tag=True):
        """A site that changes one of its answers."""

        kind: str = ""

        def respond(self, agent: Any, cache: Any, part: Any, own_part: Any) -> tuple[None, Any]:
            _, answer = super().respond(agent, cache, part, own_part)
            if type(answer).__name__ != self.kind:
                return None, answer
            return None, replace(answer, **LIES[self.kind])

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=40), np.arange(40) % 2
    model = held_objective("a", Table(z[:, None], y), "logistic", (0, 1), False)
    problem = Problem(np.zeros(1), {"a": 40.0}, "logistic", ("z",), False, {})
    for kind in LIES:
        stage = Stage(30, Lying(kind=kind), held=True)
        flow = Evaluating().flow(problem, np.ones(1), 20)
        with pytest.raises(fedshed.Error):
            play(LocalSites({}, held={"a": model}), stage, problem, flow, Traffic(), 1)


LIES = {
    "Evaluated": {"sums": np.zeros(3)},
    "Tabulated": {"pairs": 1e9},
    "Recalibrated": {"sums": np.zeros(4)},
}


@pytest.mark.parametrize("site", ["n", "north", "site-000", "university hospital of the northern district"])
def test_no_line_of_an_evaluation_is_wider_than_a_terminal(site):
    """The table of the sites was 83 wide where a name has eight letters."""
    rng = np.random.default_rng(0)
    tables = {
        f"{site}{k}": {"x": x, "ill": x + rng.logistic(size=60) > 0}
        for k in range(3)
        for x in [rng.normal(size=60)]
    }
    model = fedshed.fit(tables, fedshed.Study(family="logistic", target="ill"))
    found = fedshed.evaluate(model, tables)
    lines = found.summary().splitlines()
    assert max(map(len, lines)) <= 80
    (own,) = (line for line in lines if line.startswith(f"{site}0"))
    assert (own != f"{site}0") == (len(site) < 12)  # a short name has its numbers beside it


def test_what_rounds_to_zero_has_no_sign(cancer) -> None:
    found = fedshed.evaluate(*cancer)
    tiny = {name: replace(one, value=-1e-9, std_err=1e-9) for name, one in found.pooled.items()}
    sites = {name: replace(one, measures=tiny) for name, one in found.sites.items()}
    text = replace(found, pooled=tiny, sites=sites).summary()
    assert " 0.0000" in text
    assert "-0.0000" not in text
