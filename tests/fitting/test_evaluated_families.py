"""An evaluation of any family is about what its model predicts: no measure has a formula of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from sklearn import metrics

import fedshed
from fedshed.objectives import FAMILIES
from fedshed.preparation.holdout import NOT_EVALUATED, held_out
from fedshed.tables.frames import Frame

ROWS = {"a": 60, "b": 150, "c": 300}


def response(name: str, z: Any, rng: np.random.Generator) -> Any:
    """A response that suits a family."""
    family = FAMILIES[name]
    if family.classes in ("many", "ordered"):
        return np.digitize(z + rng.logistic(size=len(z)), [-0.7, 0.6])
    if family.classes == "two" or family.grouped:
        return (z + rng.logistic(size=len(z)) > 0).astype(int)
    if family.link == "identity":
        return z + rng.normal(size=len(z))
    if family.positive:
        return rng.gamma(2.0, np.exp(z) / 2)
    return rng.poisson(np.exp(z + 1))


@pytest.mark.parametrize("name", [loss for loss, one in FAMILIES.items() if one.name not in NOT_EVALUATED])
def test_the_evaluation_of_a_family_is_that_of_its_predictions(name: str) -> None:
    rng = np.random.default_rng(3)
    tables = {}
    for site, rows in ROWS.items():
        X = rng.normal(size=(rows, 2))
        tables[site] = {"u": X[:, 0], "v": 10 * X[:, 1], "y": response(name, X @ [0.6, -0.4], rng)}
    study = fedshed.Study(family=FAMILIES[name].name, target="y", holdout=0.3, standardize=True)
    model = fedshed.fit(tables, study)
    held = {}
    for site, table in tables.items():
        out = held_out(study, Frame(table), site)
        held[site] = {column: np.asarray(values)[out] for column, values in table.items()}
    plain = fedshed.evaluate(model, held)
    y = np.concatenate([table["y"] for table in held.values()])
    predicted = np.concatenate([model.predict(table) for table in held.values()])
    for found in (model.evaluation.pooled, plain.pooled):
        if model.plan.classes:
            p = np.concatenate([model.predict_proba(table) for table in held.values()])
            assert found["log_loss"].value == pytest.approx(metrics.log_loss(y, p), rel=1e-8)
            assert found["accuracy"].value == pytest.approx(metrics.accuracy_score(y, predicted))
        else:
            assert found["rmse"].value == pytest.approx(
                metrics.root_mean_squared_error(y, predicted), rel=1e-8
            )
            assert found["mae"].value == pytest.approx(metrics.mean_absolute_error(y, predicted), rel=1e-8)
            assert found["d2"].value < 1
    assert plain.rows == model.evaluation.rows == len(y)
    for measure, one in plain.pooled.items():
        if one.value is not None:
            assert model.evaluation.pooled[measure].value == pytest.approx(one.value, rel=1e-6, abs=1e-9), (
                measure
            )


def test_survival_times_are_not_held_out() -> None:
    for name in NOT_EVALUATED:
        with pytest.raises(fedshed.ConfigError, match="no evaluation of held-out rows"):
            replace(fedshed.Study(family=name, time="t", event="d", columns=("u",)), holdout=0.2)
