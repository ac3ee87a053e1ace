"""Studies and estimators whose parts meet: each combination is right, or is refused with a sentence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nbinom

import fedshed
from fedshed.tables import Federation


def sites(count: int = 6, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    rng, tables = np.random.default_rng(seed), {}
    for k in range(count):
        rows = 20 + 10 * k
        x, z, b = rng.normal(size=rows), rng.normal(size=rows), rng.normal()
        p = 1 / (1 + np.exp(-(0.8 * x + b)))
        tables[f"s{k}"] = {
            "x": x, "z": z, "ill": (rng.random(rows) < p).astype(int),
            "count": rng.poisson(np.exp(0.3 * x + b)),
            "y": x + b + rng.normal(size=rows), "grade": np.digitize(x + rng.logistic(size=rows), [-1, 1]),
            "days": rng.exponential(np.exp(-x)), "death": (rng.random(rows) < 0.8).astype(int),
        }  # fmt: skip
    return tables


def pooled(tables: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([t[name] for t in tables.values()]) for name in tables["s0"]}


def design(rows: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([rows["x"], rows["z"]])


def study(family: str, target: str, **more: object) -> fedshed.Study:
    return fedshed.Study(family=family, target=target, columns=("x", "z"), **more)  # type: ignore[arg-type]


def test_log_loss_of_a_random_intercept_is_that_of_its_predictions() -> None:
    """The marginal cost of a site is no loss of a row: it would be too small, without any error."""
    tables = sites()
    model = fedshed.fit(tables, study("logistic", "ill", random_intercept=True))
    assert model.inference.nuisance.value > 0.3
    found, rows = fedshed.evaluate(model, tables), pooled(tables)
    p = model.predict_proba(rows)[:, 1]
    losses = -np.log(np.where(rows["ill"] == 1, p, 1 - p))
    assert found.pooled["log_loss"].value == pytest.approx(losses.mean(), abs=1e-12)
    assert found.pooled["log_loss"].std_err == pytest.approx(losses.std(ddof=1) / len(p) ** 0.5, rel=1e-9)
    assert all(one.measures["log_loss"].std_err > 0 for one in found.sites.values())


@pytest.mark.parametrize(("family", "target"), [("binomial", "ill"), ("poisson", "count")])
def test_deviance_of_a_random_intercept_is_that_of_its_predictions(family: str, target: str) -> None:
    tables = sites()
    mixed = fedshed.fit(tables, study(family, target, random_intercept=True))
    found, rows = fedshed.evaluate(mixed, tables), pooled(tables)
    mu, y = np.asarray(mixed.predict(rows)), rows[target]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(y > 0, y * np.log(y / mu), 0.0)
        rest = np.where(y < 1, -np.log(1 - mu), 0.0) if family == "binomial" else mu - y
    assert found.pooled["deviance"].value == pytest.approx(2 * np.mean(parts + rest), abs=1e-12)


@pytest.mark.parametrize(("family", "target"), [("linear", "y"), ("logistic", "ill"), ("poisson", "count")])
def test_one_site_has_no_random_intercept(family: str, target: str) -> None:
    with pytest.raises(fedshed.ConfigError, match="only one site; leave random_intercept out"):
        fedshed.fit(sites(1), study(family, target, random_intercept=True))


def test_an_estimator_of_one_site_has_no_random_intercept() -> None:
    rows = pooled(sites(2))
    with pytest.raises(fedshed.ConfigError, match="only one site"):
        fedshed.FederatedClassifier(random_intercept=True).fit(design(rows), rows["ill"])


@pytest.mark.parametrize("family", ["gamma", "negative-binomial", "negative-binomial(0.5)", "cox", "ordinal"])
def test_families_without_a_random_intercept_say_which_have_one(family: str) -> None:
    words = (
        "is for linear, logistic, binomial, poisson, not for the [a-z-]+ family; leave random_intercept out"
    )
    with pytest.raises(fedshed.ConfigError, match=words):
        study(family, "y", random_intercept=True)


def test_the_absolute_penalty_of_ordered_classes_is_that_of_the_study() -> None:
    """In an estimator and in optimize, where thresholds are free as well."""
    tables = sites(3)
    rows, names = pooled(tables), np.repeat(list(tables), [len(t["x"]) for t in tables.values()])
    fitted = list(fedshed.fit(tables, study("ordinal", "grade", l1=0.2)).coefficients.values())
    estimator = fedshed.FederatedClassifier("ordinal", l2=0.0, l1=0.2)
    estimator.fit(design(rows), rows["grade"], sites=names)
    np.testing.assert_allclose([*estimator.coef_[0], *estimator.thresholds_], fitted, atol=1e-6)
    federation = Federation.from_arrays(design(rows), rows["grade"], names)
    one = fedshed.optimize(federation, loss="ordinal", l2=0.0, l1=[0.2, 0.2], algorithm="newton")
    np.testing.assert_allclose(one.theta, fitted, atol=1e-6)
    assert fitted[1] == 0.0 != fitted[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"firth": True, "l1": 0.1}, "give firth or l1, not both"),
        (
            {"random_intercept": True, "l1": 0.1},
            "a fit with random_intercept cannot have an absolute penalty",
        ),
    ],
)
def test_estimators_refuse_what_studies_refuse(more: dict[str, object], words: str) -> None:
    tables = sites(2)
    rows, names = pooled(tables), np.repeat(list(tables), [len(t["x"]) for t in tables.values()])
    with pytest.raises(fedshed.ConfigError, match=words):
        fedshed.FederatedClassifier(**more).fit(design(rows), rows["ill"], sites=names)  # type: ignore[arg-type]


def test_a_linear_estimator_with_a_random_intercept_needs_no_other_setting() -> None:
    """The default ridge of estimators is not one that somebody asked for."""
    tables = sites()
    rows, names = pooled(tables), np.repeat(list(tables), [len(t["x"]) for t in tables.values()])
    estimator = fedshed.FederatedRegressor(random_intercept=True).fit(design(rows), rows["y"], sites=names)
    model = fedshed.fit(tables, study("linear", "y", random_intercept=True))
    assert estimator.coef_[0] == pytest.approx(model.coefficients["x"], abs=1e-8)
    with pytest.raises(fedshed.ConfigError, match="set l2 = 0"):
        fedshed.FederatedRegressor(random_intercept=True, l2=0.1).fit(design(rows), rows["y"], sites=names)


def test_a_formula_of_a_survival_model_may_leave_out_its_time() -> None:
    tables = sites(3)
    said = fedshed.Study(family="cox", time="days", event="death", formula="days ~ x + z")
    short = fedshed.Study(family="cox", time="days", event="death", formula="x + z")
    assert fedshed.fit(tables, short).coefficients == fedshed.fit(tables, said).coefficients
    with pytest.raises(fedshed.ConfigError, match="write the terms alone"):
        fedshed.Study(family="cox", time="days", event="death", formula="Surv(days, death) ~ x")


@pytest.mark.parametrize(
    ("family", "target"), [("logistic", "ill"), ("poisson", "count"), ("ordinal", "grade")]
)
def test_an_evaluation_fits_a_terminal_of_80_columns(family: str, target: str) -> None:
    tables = {site: {**rows, "count": 900 * rows["count"]} for site, rows in sites(3).items()}
    found = fedshed.leave_one_site_out(tables, study(family, target)).evaluation
    assert max(map(len, found.summary().splitlines())) <= 80


def test_a_summary_with_an_absolute_penalty_has_no_p_value_and_fits_a_terminal() -> None:
    """The likelihood ratio of estimates that a penalty shrank, and of columns that it chose, is not chi2."""
    times = fedshed.Study(family="cox", time="days", event="death", columns=("x", "z"), l1=0.05)
    text = str(fedshed.fit(sites(3), times).summary())
    assert "LR chi2" not in text
    assert "P (LR" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_meta_analysis_of_hazard_ratios_fits_a_terminal() -> None:
    times = fedshed.Study(family="cox", time="days", event="death", columns=("x", "z"))
    text = fedshed.meta_analysis(sites(3), times).to_text(exp=True)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("l1", [0.03, 0.3])
def test_alpha_beside_an_absolute_penalty_is_the_best_one(l1: float) -> None:
    """The slope of the likelihood in log alpha is 0 at the estimates, whatever the penalty does to theta."""
    tables = sites(4, seed=3)
    model = fedshed.fit(tables, study("negative-binomial", "count", l1=l1))
    rows, theta, found = pooled(tables), list(model.coefficients.values()), model.inference.nuisance
    mu = np.exp(design(rows) @ theta[:2] + theta[2])

    def cost(alpha: float) -> float:
        size = 1 / alpha
        return -float(nbinom.logpmf(rows["count"], size, size / (size + mu)).mean())

    best, step = found.value, 1e-4
    assert abs(cost(best * np.exp(step)) - cost(best * np.exp(-step))) / (2 * step) < 1e-7


@pytest.mark.parametrize(
    ("family", "target", "more", "words"),
    [
        ("ordinal", "grade", {}, "the ordinal family does not have; fit it at penalties that you choose"),
        ("negative-binomial", "count", {}, "one value of alpha; give it"),
        ("logistic", "ill", {"random_intercept": True}, "a path cannot have a random intercept"),
        ("logistic", "ill", {"l1": 0.1}, "a path sets l1 itself"),
    ],
)
def test_a_path_refuses_what_it_would_get_wrong(
    family: str, target: str, more: dict[str, object], words: str
) -> None:
    with pytest.raises(fedshed.ConfigError, match=words):
        fedshed.path(sites(3), study(family, target, **more))


@pytest.mark.parametrize(("family", "target"), [("tweedie", "count"), ("cox", "days"), ("poisson", "count")])
def test_a_summary_of_ratios_fits_a_terminal(family: str, target: str) -> None:
    more = {"event": "death"} if family == "cox" else {}
    text = str(fedshed.fit(sites(3), study(family, target, **more)).summary(exp=True))
    assert max(map(len, text.splitlines())) <= 80
