"""What a fitted model is read for, against statsmodels on the pooled rows."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import fedshed
from fedshed import ConfigError, Study

RNG = np.random.default_rng(3)
N = 500
FRAME = pd.DataFrame(
    {
        "x": RNG.normal(size=N), "z": RNG.normal(size=N), "arm": RNG.choice(["a", "b", "c"], N),
        "site": RNG.choice(["north", "south", "west"], N, p=[0.1, 0.3, 0.6]),
    }
)  # fmt: skip
LINEAR = 0.6 * FRAME.x + (FRAME.arm == "b") * 0.5 - 0.2
FRAME["ill"] = np.where(RNG.random(N) < 1 / (1 + np.exp(-LINEAR)), "case", "control")
FRAME["visits"] = RNG.poisson(np.exp(LINEAR))
FRAME["days"] = LINEAR + RNG.normal(size=N)
FORMULA = "~ x + z + C(arm)"
FAMILIES = {
    "logistic": ("ill", sm.families.Binomial()),
    "poisson": ("visits", sm.families.Poisson()),
    "linear": ("days", sm.families.Gaussian()),
}
TABLES = {site: part.drop(columns="site") for site, part in FRAME.groupby("site")}


def ours(family, formula=FORMULA, tables=TABLES, **more):
    target = FAMILIES[family][0]
    more |= {"positive": ("case",)} if family == "logistic" else {}
    return fedshed.fit(tables, Study(family=family, formula=f"{target} {formula}", **more), tol=1e-11)


def theirs(family, formula=FORMULA, frame=FRAME):
    target, kind = FAMILIES[family]
    frame = frame.assign(ill=(frame.ill == "case").astype(float))
    fitted = smf.glm(f"{target} {formula}", frame, family=kind).fit(tol=1e-14, use_t=family == "linear")
    return fitted


@pytest.mark.parametrize("family", FAMILIES)
def test_ratios_contrasts_and_terms_are_those_of_statsmodels(family):
    model, pooled = ours(family), theirs(family)
    exp = model.summary(exp=True).to_frame()
    assert exp.equals(model.summary().to_frame(exp=True))
    expected = np.exp([pooled.params["x"], *pooled.conf_int().loc["x"]])
    np.testing.assert_allclose(exp.loc["x"].iloc[[0, -2, -1]], expected, rtol=1e-6)
    found = model.contrast("arm[c] - arm[b]")
    test = pooled.t_test("C(arm)[T.c] - C(arm)[T.b] = 0")
    np.testing.assert_allclose(
        [found.estimate, found.standard_error, found.p_value, found.low, found.high],
        [test.effect.item(), test.sd.item(), test.pvalue.item(), *test.conf_int()[0]], rtol=1e-6,
    )  # fmt: skip
    doubled = model.contrast("-2*x + z")
    test = pooled.t_test("-2 * x + z = 0")
    np.testing.assert_allclose(
        [doubled.estimate, doubled.standard_error], [test.effect.item(), test.sd.item()]
    )
    terms = pooled.wald_test_terms(scalar=True).table
    for ours_, theirs_ in (("x", "x"), ("z", "z"), ("arm", "C(arm)")):
        np.testing.assert_allclose(model.anova()[ours_].statistic, terms.loc[theirs_].iloc[0], rtol=1e-6)
        np.testing.assert_allclose(model.anova()[ours_].p_value, terms.loc[theirs_, "pvalue"], rtol=1e-5)


def test_the_exponential_is_named_by_its_family():
    names = {family: ours(family).summary(exp=True).columns[0] for family in FAMILIES}
    assert names == {"logistic": "odds ratio", "poisson": "rate ratio", "linear": "exp(coef)"}


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_the_likelihood_ratio_is_twice_the_difference_of_the_log_likelihoods(family):
    from scipy.stats import chi2

    small, large = ours(family, "~ x"), ours(family)
    found = fedshed.likelihood_ratio(small, large)
    statistic = 2 * (theirs(family).llf - theirs(family, "~ x").llf)
    np.testing.assert_allclose([found.statistic, found.df], [statistic, 3], rtol=1e-8)
    np.testing.assert_allclose(found.p_value, chi2.sf(statistic, 3), rtol=1e-7)
    np.testing.assert_allclose(
        2 * (large.inference.log_likelihood - small.inference.log_likelihood), statistic
    )


def test_with_an_estimated_dispersion_it_is_the_f_test_of_least_squares():
    found = fedshed.likelihood_ratio(ours("linear", "~ x"), ours("linear"))
    large, small = (smf.ols(f"days {formula}", FRAME).fit() for formula in (FORMULA, "~ x"))
    np.testing.assert_allclose(
        [found.statistic, found.p_value, found.df], large.compare_f_test(small), rtol=1e-6
    )


def test_each_term_left_out_is_a_test_of_its_own():
    study = Study(family="poisson", formula=f"visits {FORMULA}")
    found = fedshed.drop_one(TABLES, study, tol=1e-11)
    without = {"x": "~ z + C(arm)", "z": "~ x + C(arm)", "arm": "~ x + z"}
    assert [one.name for one in found.tests] == list(without)
    for term, formula in without.items():
        expected = 2 * (theirs("poisson").llf - theirs("poisson", formula).llf)
        np.testing.assert_allclose(found[term].statistic, expected, rtol=1e-7)
    plain = Study(family="poisson", target="visits", columns=("x", "z", "arm"))
    again = fedshed.drop_one(TABLES, plain, tol=1e-11)
    np.testing.assert_allclose(again["arm"].statistic, found["arm"].statistic, rtol=1e-8)


def test_models_of_other_rows_or_not_nested_or_penalised_are_not_compared():
    large = ours("poisson")
    holes = FRAME.assign(z=FRAME.z.where(FRAME.index % 50 > 0))
    fewer = {site: part.drop(columns="site") for site, part in holes.groupby("site")}
    with pytest.raises(ConfigError, match="used different rows in the two models"):
        fedshed.likelihood_ratio(ours("poisson", "~ x"), ours("poisson", tables=fewer, missing="drop"))
    with pytest.raises(ConfigError, match="not nested"):
        fedshed.likelihood_ratio(ours("poisson", "~ x + I(x**2)"), large)
    with pytest.raises(ConfigError, match="not nested: they have the same"):
        fedshed.likelihood_ratio(large, large)
    with pytest.raises(ConfigError, match="without a penalty"):
        fedshed.likelihood_ratio(ours("poisson", "~ x", l2=0.1), large)
    with pytest.raises(ConfigError, match="different families or targets"):
        fedshed.likelihood_ratio(ours("linear", "~ x"), large)
    other = {site: part.iloc[::-1] if site == "west" else part for site, part in TABLES.items()}
    with pytest.raises(ConfigError, match="site 'west' used different rows"):
        fedshed.likelihood_ratio(ours("poisson", "~ x", tables=other), large)


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_have_the_errors_and_intervals_of_statsmodels(family):
    model, pooled = ours(family), theirs(family)
    new = FRAME.head(20)
    found = model.predict_interval(new.drop(columns=["site"]), level=0.9)
    expected = pooled.get_prediction(new).summary_frame(alpha=0.1)
    np.testing.assert_allclose(found.mean, expected["mean"], rtol=1e-7)
    np.testing.assert_allclose(found.std_err, expected["mean_se"], rtol=1e-6)
    np.testing.assert_allclose(found.low, expected["mean_ci_lower"], rtol=1e-6)
    np.testing.assert_allclose(found.high, expected["mean_ci_upper"], rtol=1e-6)


def test_a_combination_that_cannot_be_read_says_where():
    model = ours("poisson")
    for text, said in (
        ("arm[d]", "no coefficient 'arm\\[d\\]'"),
        ("x z", "no coefficient 'x z'"),
        ("", "no coeff"),
    ):
        with pytest.raises(ConfigError, match=said):
            model.contrast(text)


def test_the_summary_says_which_class_is_modelled_against_which_reference():
    text = str(ours("logistic").summary())
    assert "Modelled: the probability that ill is case, not any other value" in text
    assert "Reference levels: arm = a" in text
    plain = fedshed.fit(TABLES, Study(family="logistic", formula="ill ~ x"))
    assert "the probability that ill is control, not case" in str(plain.summary())
    assert plain.facts()["modelled"] == "control"
    assert plain.facts()["reference"] == "case"


def test_the_csv_of_coefficients_has_terms_levels_and_ratios(tmp_path):
    model = ours("logistic")
    rows = list(csv.DictReader(io.StringIO(model.to_csv())))
    arm = next(row for row in rows if row["name"] == "arm[b]")
    assert (arm["term"], arm["level"]) == ("arm", "b")
    np.testing.assert_allclose(float(arm["exp_estimate"]), np.exp(model.coefficients["arm[b]"]))
    np.testing.assert_allclose(
        float(arm["p_value"]), model.inference.p_values()[model.inference.names.index("arm[b]")]
    )
    loaded = fedshed.Model.load(model.save(tmp_path / "model.json"))
    assert loaded.to_csv() == model.to_csv()
    assert loaded.rows == model.rows


def test_dropped_rows_are_counted_by_site_and_column():
    holes = FRAME.assign(
        x=FRAME.x.where(FRAME.index % 10 > 0),
        arm=FRAME.arm.where((FRAME.index % 7 > 0) | (FRAME.site == "west")),
    )
    tables = {site: part.drop(columns="site") for site, part in holes.groupby("site")}
    model = ours("poisson", tables=tables, missing="drop")
    for site, part in tables.items():
        used = part[["x", "z", "arm", "visits"]].dropna()
        count = model.rows[site]
        assert (count.used, count.dropped) == (len(used), len(part) - len(used))
        lost = {name: int(n) for name, n in part[["x", "arm"]].isna().sum().items() if n}
        assert count.missing == lost
    text = " ".join(str(model.summary()).split())
    lost = sum(count.dropped for count in model.rows.values())
    assert f"Rows with a missing value were dropped: {lost};" in text
    assert f"x in {holes.x.isna().sum()}" in text
    assert "dropped" in text
    assert json.dumps({site: count.dropped for site, count in model.rows.items()})
    assert "dropped" not in str(ours("poisson").summary())


def test_terms_of_an_interaction_are_not_left_out_on_their_own():
    found = fedshed.drop_one(TABLES, Study(family="poisson", formula="visits ~ x * C(arm) + z"), tol=1e-11)
    assert {one.name for one in found.tests} == {"z", "x:arm"}
    expected = 2 * (theirs("poisson", "~ x * C(arm) + z").llf - theirs("poisson", "~ x + C(arm) + z").llf)
    np.testing.assert_allclose(found["x:arm"].statistic, expected, rtol=1e-6)


def test_a_smaller_model_that_fits_better_is_of_other_predictors():
    changed = {site: part.assign(x=RNG.normal(size=len(part))) for site, part in TABLES.items()}
    with pytest.raises(
        ConfigError, match="smaller model fits better than the larger one, so that they are not nested"
    ):
        fedshed.likelihood_ratio(ours("poisson", "~ x"), ours("poisson", "~ x + z", tables=changed))


def test_the_mark_of_rows_cannot_be_made_without_the_key(monkeypatch):
    from fedshed.preparation import protocol

    first = ours("poisson", "~ x")
    monkeypatch.setattr(protocol, "user_secret", lambda: b"another")
    second = ours("poisson", "~ x")
    assert all(first.rows[site].digest != second.rows[site].digest for site in TABLES)
    assert "digest" not in str(first.facts()["rows"])
