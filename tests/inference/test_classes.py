"""A multinomial model against a reference class, as R's nnet::multinom: Chile's voters, Canadian women."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import fedshed
from against_r import R, tables_of
from fedshed import ConfigError, Study
from fedshed.inference import per_class, reference_class

VOTERS = Study(family="multinomial", target="vote", columns=("education", "age", "sex"))
WOMEN = Study(family="multinomial", target="partic", columns=("hincome", "children"))
NAMES = {
    "(Intercept)": "intercept", "educationPS": "education[PS]", "educationS": "education[S]",
    "sexM": "sex[M]", "childrenpresent": "children[present]",
}  # fmt: skip


def voters():
    return tables_of("chile", "region")


def women():
    return tables_of("womenlf", "region")


def agree(inference, theirs, rtol=1e-6):
    """Coefficients and errors by name."""
    ours = {
        name: (coef, error)
        for name, coef, error in zip(inference.names, inference.coef, inference.std_err(), strict=True)
    }
    expected = {
        f"{NAMES.get(name, name)} [{label}]": (coef, error)
        for label, coefs, errors in zip(theirs["classes"], theirs["coef"], theirs["std_err"], strict=True)
        for name, coef, error in zip(theirs["names"], coefs, errors, strict=True)
    }
    assert set(ours) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(ours[name], values, rtol=rtol, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def fitted():
    return fedshed.fit(voters(), VOTERS, tol=1e-11)


def test_voters_are_compared_with_the_first_class_which_the_summary_names(fitted):
    agree(fitted.inference, R["chile_A"])
    assert fitted.inference.aic == pytest.approx(R["chile_A"]["aic"], rel=1e-9)
    text = str(fitted.summary(exp=True))
    assert "Reference class: A" in text
    assert "odds ratio" in text
    ratio = fitted.summary(exp=True).to_frame().loc["education[S] [N]", "odds ratio"]
    assert ratio == pytest.approx(np.exp(R["chile_A"]["coef"][0][2]), rel=1e-6)


def test_references_and_the_order_of_classes_choose_the_reference_class():
    named = fedshed.fit(voters(), replace(VOTERS, references={"vote": "Y"}), tol=1e-11)
    agree(named.inference, R["chile_Y"])
    listed = fedshed.fit(voters(), replace(VOTERS, classes=("Y", "N", "A", "U")), tol=1e-11)
    agree(listed.inference, R["chile_Y"])
    assert [name for name in listed.inference.names if name.startswith("age")] == [
        "age [N]", "age [A]", "age [U]"
    ]  # fmt: skip
    rows = voters()["M"]
    np.testing.assert_allclose(
        listed.predict_proba(rows)[:, [2, 1, 3, 0]], named.predict_proba(rows), atol=1e-9
    )
    assert (listed.predict(rows) == named.predict(rows)).all()
    assert named.facts()["reference"] == "Y"


def test_a_fitted_model_changes_its_reference_class(fitted):
    agree(reference_class(fitted.inference, reference="Y"), R["chile_Y"])
    agree(reference_class(fitted.inference, ["A", "N", "U", "Y"], None, "Y"), R["chile_Y"])
    back = reference_class(per_class(fitted.inference))
    np.testing.assert_allclose(back.coef, fitted.inference.coef, atol=1e-12)
    np.testing.assert_allclose(back.covariance(), fitted.inference.covariance(), atol=1e-12)
    shown = fitted.summary(reference_class="Y")
    agree(shown.inference, R["chile_Y"])
    assert "Reference class: Y" in str(shown)


def test_women_who_do_not_work_are_the_reference_class():
    study = replace(WOMEN, references={"partic": "not.work", "children": "absent"})
    agree(fedshed.fit(women(), study, tol=1e-11).inference, R["womenlf"])


def test_coefficients_that_sum_to_zero_are_labelled_and_are_no_odds_ratios(fitted):
    shown = fitted.summary(exp=True, sum_to_zero=True)
    assert shown.columns[0] == "exp(coef)"
    text = " ".join(str(shown).split())
    assert "odds ratio" not in text
    assert "sum to 0 over the classes" in text
    sums = shown.inference.coef.reshape(4, -1).sum(axis=0)
    np.testing.assert_allclose(sums, 0, atol=1e-12)
    with pytest.raises(ConfigError, match="give reference_class or sum_to_zero, not both"):
        fitted.summary(reference_class="Y", sum_to_zero=True)


def test_predictions_evaluation_and_wald_tests_do_not_depend_on_the_reference_class(fitted, tmp_path):
    other = fedshed.fit(voters(), replace(VOTERS, references={"vote": "U"}), tol=1e-11)
    rows = voters()["S"]
    np.testing.assert_allclose(fitted.predict_proba(rows), other.predict_proba(rows), atol=1e-9)
    np.testing.assert_allclose(fitted.predict_proba(rows).sum(axis=1), 1)
    one, two = (fedshed.evaluate(model, voters()).pooled["log_loss"].value for model in (fitted, other))
    assert one == pytest.approx(two, rel=1e-9)
    for term in ("education", "age", "sex"):
        assert fitted.anova()[term].statistic == pytest.approx(other.anova()[term].statistic, rel=1e-7)
        assert fitted.anova()[term].df == other.anova()[term].df
    loaded = fedshed.Model.load(other.save(tmp_path / "model.json"))
    assert loaded.inference == other.inference
    np.testing.assert_array_equal(loaded.predict_proba(rows), other.predict_proba(rows))
    lines = fitted.to_csv().splitlines()
    assert lines[2].startswith("education[S] [N],education,S,N,")
    assert len(lines) == 1 + 15
    assert len(fitted.to_csv(sum_to_zero=True).splitlines()) == 1 + 20


def test_an_estimator_keeps_scikit_learns_coefficients_and_compares_classes_in_its_summary():
    rows = tables_of("womenlf", "region")
    X = np.concatenate([one[["hincome"]].to_numpy(float) for one in rows.values()])
    X = np.column_stack([X, np.concatenate([one["children"] == "present" for one in rows.values()])])
    y = np.concatenate([one["partic"] for one in rows.values()])
    sites = np.repeat(list(rows), [len(one) for one in rows.values()])
    model = fedshed.FederatedLogisticRegression(l2=0.0, tol=1e-11).fit(X, y, sites=sites)
    assert model.coef_.shape == (3, 2)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0, atol=1e-12)
    shown = model.summary(reference_class="not.work")
    theirs = np.array(R["womenlf"]["coef"])[:, [1, 2, 0]]
    np.testing.assert_allclose(shown.inference.coef, theirs.ravel(), rtol=1e-6)
    assert "Reference class: fulltime" in str(model.summary())
    sums = model.summary(sum_to_zero=True).inference.coef.reshape(3, 3)
    np.testing.assert_allclose(sums[:, :2], model.coef_, atol=1e-12)


AGES = {"target": "age", "columns": ("sex",), "family": "linear"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"references": {"vote": "X"}}, "references names 'X', which is no class of 'vote'"),
        ({"family": "logistic", "references": {"vote": "Y"}}, "positive = "),
        ({**AGES, "references": {"age": 3}}, "has no reference class"),
    ],
)
def test_a_reference_class_that_cannot_be_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        fedshed.fit(voters(), replace(VOTERS, **changes))


def test_only_models_of_several_classes_have_a_reference_class(fitted):
    linear = fedshed.fit(tables_of("mtcars", "cyl"), Study(family="linear", formula="mpg ~ wt"))
    with pytest.raises(ConfigError, match="family = 'multinomial'"):
        linear.summary(reference_class="A")
    with pytest.raises(ConfigError, match="there is no class 'X'"):
        reference_class(fitted.inference, reference="X")
    with pytest.raises(ConfigError, match="the classes of this model are A, N, U, Y"):
        reference_class(fitted.inference, ["N", "A", "U", "Y"])
