"""Rows that a study holds out are not fitted, and are evaluated where they are, by their site's rules."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from sklearn import metrics
from sklearn.datasets import load_breast_cancer

import fedshed
from fedshed.fitting.terms import Terms
from fedshed.preparation.holdout import held_out
from fedshed.tables.frames import Frame

X, Y = load_breast_cancer(return_X_y=True)
COLUMNS = {"radius": X[:, 0] / 10, "texture": X[:, 1] / 10, "smooth": X[:, 4] * 10, "ill": 1 - Y}
WHOLE = {"north": np.arange(60), "south": np.arange(60, 200), "west": np.arange(200, 569)}
TABLES = {site: {name: values[rows] for name, values in COLUMNS.items()} for site, rows in WHOLE.items()}
STUDY = fedshed.Study(family="logistic", target="ill")


def parts(study: fedshed.Study) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows that are fitted, and those that are held out."""
    fitted, held = {}, {}
    for site, table in TABLES.items():
        out = held_out(study, Frame(table), site)
        fitted[site] = {name: np.asarray(values)[~out] for name, values in table.items()}
        held[site] = {name: np.asarray(values)[out] for name, values in table.items()}
    return fitted, held


def test_a_study_with_rows_held_out_is_the_fit_of_the_others_and_its_evaluation_that_of_these() -> None:
    study = replace(STUDY, holdout=0.3)
    model = fedshed.fit(TABLES, study)
    fitted, held = parts(study)
    other = fedshed.fit(fitted, STUDY)
    assert list(model.coefficients.values()) == pytest.approx(list(other.coefficients.values()), rel=1e-9)
    assert model.inference.rows == sum(len(table["ill"]) for table in fitted.values())
    y = np.concatenate([table["ill"] for table in held.values()])
    p = np.concatenate([model.predict_proba(table)[:, 1] for table in held.values()])
    found = model.evaluation
    assert found.rows == len(y) == sum(round(0.3 * len(rows)) for rows in WHOLE.values())
    assert found.pooled["auc"].value == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
    assert found.pooled["log_loss"].value == pytest.approx(metrics.log_loss(y, p), rel=1e-9)


def test_a_site_draws_the_same_rows_again_and_others_for_another_seed_or_name() -> None:
    frame = Frame(TABLES["south"])
    drawn = [
        held_out(replace(STUDY, holdout=0.25, holdout_seed=seed), frame, site)
        for seed, site in ((0, "south"), (0, "south"), (1, "south"), (0, "east"))
    ]
    assert (drawn[0] == drawn[1]).all()
    assert all((drawn[0] != other).any() for other in drawn[2:])
    assert {int(out.sum()) for out in drawn} == {35}


def test_rows_of_one_cluster_are_held_out_together() -> None:
    patients = np.repeat(np.arange(20), 3)
    table = {**TABLES["north"], "patient": patients}
    out = held_out(replace(STUDY, holdout=0.3, cluster="patient"), Frame(table), "north")
    assert {len(set(out[patients == k].tolist())) for k in range(20)} == {1}
    assert 18 <= out.sum() <= 20


def test_a_column_marks_the_rows_that_are_held_out_and_is_no_predictor() -> None:
    marked = {
        site: {**table, "later": np.arange(len(table["ill"])) % 4 == 0} for site, table in TABLES.items()
    }
    model = fedshed.fit(marked, replace(STUDY, holdout="later"))
    assert "later" not in model.coefficients
    assert model.evaluation.rows == sum(int(table["later"].sum()) for table in marked.values())
    wrong = {**marked, "north": {**marked["north"], "later": np.arange(60)}}
    with pytest.raises(fedshed.DataError, match=r"north.*'later'.*booleans"):
        fedshed.fit(wrong, replace(STUDY, holdout="later"))


def test_processes_say_the_same_within_the_bound_of_their_bins() -> None:
    study = replace(STUDY, holdout=0.3)
    here = fedshed.fit(TABLES, study, algorithm="newton")
    there = fedshed.fit(TABLES, study, algorithm="newton", over=fedshed.ProcessSites())
    for name, one in here.evaluation.pooled.items():
        other = there.evaluation.pooled[name]
        assert abs(one.value - other.value) <= other.bound + 1e-9, name
    assert here.evaluation.exchanges == there.evaluation.exchanges


def test_a_protected_study_evaluates_by_masked_sums_and_tells_of_no_site() -> None:
    study = replace(
        STUDY, holdout=0.3, protected=True, columns=("radius", "texture", "smooth"), classes=(0, 1)
    )
    found = fedshed.fit(TABLES, study).evaluation
    plain = fedshed.fit(TABLES, replace(STUDY, holdout=0.3)).evaluation
    assert found.sites == {}
    assert found.rows == plain.rows
    for name, one in plain.pooled.items():
        other = found.pooled[name]
        assert abs(one.value - other.value) <= other.bound + 1e-6, name
    assert found.pooled["auc"].bound > 0
    assert sum(group.weight for group in found.calibration) == pytest.approx(found.rows)


def test_a_model_keeps_its_evaluation_in_its_file(tmp_path: Any) -> None:
    model = fedshed.fit(TABLES, replace(STUDY, holdout=0.3))
    again = fedshed.Model.load(model.save(tmp_path / "model.json"))
    assert again.evaluation == model.evaluation
    plain = fedshed.fit(TABLES, STUDY)
    assert "evaluation" not in msgspec.json.decode(plain.save(tmp_path / "plain.json").read_bytes())


def test_a_site_left_out_is_predicted_by_the_model_of_the_others() -> None:
    found = fedshed.leave_one_site_out(TABLES, STUDY)
    others = {site: TABLES[site] for site in ("north", "west")}
    model = fedshed.fit(others, STUDY)
    p = model.predict_proba(TABLES["south"])[:, 1]
    measures = found.evaluation.sites["south"].measures
    assert measures["auc"].value == pytest.approx(metrics.roc_auc_score(TABLES["south"]["ill"], p), abs=1e-9)
    assert measures["brier"].value == pytest.approx(metrics.brier_score_loss(TABLES["south"]["ill"], p))
    assert found.evaluation.rows == 569
    assert set(found.models) == set(TABLES)


def test_what_cannot_be_held_out_is_refused_before_anything_is_sent() -> None:
    for wrong in (0.0, 1.0, -0.5, True):
        with pytest.raises(fedshed.ConfigError, match="holdout"):
            replace(STUDY, holdout=wrong)
    with pytest.raises(fedshed.ConfigError, match="private study has no evaluation"):
        fedshed.Study(
            family="logistic", target="ill", columns=("radius",), classes=(0, 1), protected=True, holdout=0.2,
            privacy=fedshed.Privacy(epsilon=1.0, delta=1e-6, clip=3.0),
        )  # fmt: skip
    with pytest.raises(fedshed.DataError, match=r"site 'tiny'.*no row is held out"):
        fedshed.fit(
            {**TABLES, "tiny": {name: v[:2] for name, v in TABLES["west"].items()}},
            replace(STUDY, holdout=0.2),
        )
    with pytest.raises(fedshed.ConfigError, match="three sites"):
        fedshed.leave_one_site_out({"north": TABLES["north"]}, STUDY)
    with pytest.raises(fedshed.ConfigError, match="leave holdout, protected and privacy out"):
        fedshed.leave_one_site_out(TABLES, replace(STUDY, holdout=0.2))


def test_studies_without_rows_held_out_keep_their_name() -> None:
    terms = Terms(protocol=1, study=STUDY, sites=("a",), algorithm="auto", tolerance=1e-9, max_iterations=10)
    assert b"holdout" not in msgspec.json.encode(terms)
