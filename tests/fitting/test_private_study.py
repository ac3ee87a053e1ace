"""A private study from end to end: noised sums only, charged once, refused where it would be noise."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from fedshed._utils.errors import ConfigError, DataError
from fedshed.fitting.all_sites import PREPARATION, AllTables
from fedshed.fitting.nested import likelihood_ratio
from fedshed.privacy.private import Privacy
from fedshed.solve.stages import PRIVATE

PROMISE = Privacy(epsilon=4.0, delta=1e-6, clip=3.0)
STUDY = fedshed.Study(
    family="logistic", target="y", columns=("u", "v", "w"), classes=("no", "yes"), protected=True,
    privacy=PROMISE,
)  # fmt: skip


def tables(rows=1500, sites=4, seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for k in range(sites):
        X = rng.normal(size=(rows, 3))
        y = np.where(X @ [0.5, -0.5, 0.2] + 0.3 + rng.logistic(size=rows) > 0, "yes", "no")
        made[f"site{k}"] = {"u": X[:, 0], "v": X[:, 1], "w": X[:, 2], "y": y}
    return made


@pytest.fixture
def told(monkeypatch):
    """What every site adds to the sums: the label, the request, the numbers and the noise."""
    found, whole = [], AllTables.addends

    def addends(self, label, request, parts, weight=1.0):
        answer = whole(self, label, request, parts, weight)
        found.append((label, [type(part).__name__ for part in request.parts], answer[1]))
        return answer

    monkeypatch.setattr(AllTables, "addends", addends)
    return found


def test_every_number_of_a_private_study_has_noise_or_is_public(told):
    model = fedshed.fit(tables(), STUDY)
    plain = fedshed.fit(tables(), replace(STUDY, privacy=None, protected=False))
    errors = np.sqrt(np.diag(plain.inference.covariance()))
    far = np.abs(np.array(model.inference.coefficients) - plain.inference.coefficients) / errors
    assert far.min() > 0
    assert far.max() < 3
    assert {name for label, names, _ in told if label == PREPARATION for name in names} == {
        "Describe",
        "Build",
    }
    assert {label for label, _, _ in told} == {PREPARATION, PRIVATE}
    for label, _, addends in told:
        if label == PRIVATE:
            assert len(addends.noise) == len(addends.wide)
            assert not len(addends.slim)
            assert np.count_nonzero(addends.noise) == len(addends.noise)


def test_the_preparation_of_a_private_study_tells_rows_and_nothing_of_columns(told):
    fedshed.fit(tables(), STUDY)
    known = {1500.0, 0.0}
    for label, _, addends in told:
        if label == PREPARATION:
            assert set(np.abs(addends.wide)) <= known


def test_two_runs_of_a_private_study_have_other_noise():
    one, other = (fedshed.fit(tables(), STUDY).inference.coefficients for _ in range(2))
    assert one != other


def test_a_private_model_says_what_it_promises_and_nothing_that_was_not_released(tmp_path):
    model = fedshed.fit(tables(), STUDY)
    said = str(model.summary())
    assert "epsilon = 4, delta = 1e-06, clip = 3" in said
    assert "Standard errors include the noise" in " ".join(said.split())  # wherever the line breaks
    for absent in ("Deviance", "AIC", "Heterogeneity", "gradient norm", "Log-likelihood"):
        assert absent not in said
    again = fedshed.Model.load(model.save(tmp_path / "model.json"))
    assert str(again.summary()) == said
    with pytest.raises(ConfigError, match="private model"):
        likelihood_ratio(replace_columns(model), model)


def replace_columns(model):
    """The same study with one column less."""
    return fedshed.fit(tables(), replace(STUDY, columns=("u", "v")))


def test_errors_include_the_noise():
    model = fedshed.fit(tables(), STUDY)
    whole = np.sqrt(np.diag(model.inference.covariance()))
    assert (np.array(model.inference.promise.noise) < whole).all()
    strict = fedshed.fit(tables(), replace(STUDY, privacy=Privacy(epsilon=2.0, delta=1e-6, clip=3.0)))
    assert min(strict.inference.promise.noise) > 1.3 * max(model.inference.promise.noise)


def test_a_private_study_that_would_be_noise_is_refused_before_anything_is_spent(told):
    with pytest.raises(ConfigError, match="which is only noise"):
        fedshed.fit(tables(rows=60), STUDY)
    assert {label for label, _, _ in told} == {PREPARATION}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protected": False}, "protected = true"),
        ({"family": "linear", "classes": ()}, "logistic family"),
        ({"missing": "drop"}, "missing = 'refuse'"),
        ({"standardize": True}, "cannot standardise"),
    ],
)
def test_a_study_that_cannot_be_private_says_why(change, said):
    with pytest.raises(ConfigError, match=said):
        replace(STUDY, **change)


def test_a_term_that_needs_moments_is_refused_in_a_private_study(told):
    study = replace(STUDY, columns=None, formula="y ~ center(u) + v")
    with pytest.raises(ConfigError, match="public numbers instead"):
        fedshed.fit(tables(), study)
    assert {name for _, names, _ in told for name in names} == {"Describe"}


def test_delta_is_below_one_over_the_rows():
    with pytest.raises(ConfigError, match="below 1 / rows"):
        fedshed.fit(tables(), replace(STUDY, privacy=Privacy(epsilon=4.0, delta=1e-3, clip=3.0)))


def test_how_many_rows_miss_a_value_does_not_leave_a_private_study(told):
    made = tables()
    made["site1"]["u"][:7] = np.nan
    with pytest.raises(DataError, match="a private study needs complete rows"):
        fedshed.fit(made, STUDY)
    assert all(set(addends.wide) <= {1500.0, 0.0} for _, _, addends in told)


def test_errors_that_would_be_released_without_noise_are_refused(told):
    with pytest.raises(ConfigError, match="leave out errors"):
        fedshed.fit(tables(), STUDY, errors="HC3")
    assert not told
