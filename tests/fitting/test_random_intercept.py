"""A random intercept per site: against quadrature and optimisation that share nothing with the package."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit, gammaln
from scipy.stats import norm
from typer.testing import CliRunner

import fedshed
from fedshed import ConfigError, Model, Study
from fedshed.cli import app

SIZES, LEVELS = [2, 3, 5, 8, 20, 60], [0.4, -1.1, 1.2, -1.3, 0.9, -0.7]


def made(kind, seed=2):
    """Six sites of very unequal size."""
    rng, tables = np.random.default_rng(seed), {}
    for i, rows in enumerate(SIZES):
        x = rng.normal(size=rows)
        z, trials = 0.4 + 0.7 * x + LEVELS[i], rng.integers(1, 6, rows)
        y = {
            "logistic": lambda z=z: (rng.random(len(z)) < expit(z)) * 1,
            "poisson": lambda z=z: rng.poisson(np.exp(z)),
            "binomial": lambda z=z, trials=trials: rng.binomial(trials, expit(z)),
        }[kind]()
        tables[f"s{i}"] = pd.DataFrame({"x": x, "y": y, "trials": trials})
    return tables


def study_of(kind, **more):
    trials = {"trials": "trials"} if kind == "binomial" else {}
    return Study(family=kind, target="y", columns=("x",), random_intercept=True, **trials, **more)


@cache
def fitted(kind):
    return fedshed.fit(made(kind), study_of(kind))


def row_likelihoods(kind, table, z):
    """log p(y | z) of each row, constants included; z may have a row for each of many points."""
    y, n = table["y"].to_numpy(), table["trials"].to_numpy()
    if kind == "poisson":
        return y * z - np.exp(z) - gammaln(y + 1)
    n = np.ones_like(n) if kind == "logistic" else n
    ways = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
    return y * z - n * np.logaddexp(0, z) + ways


PANELS = 60
PART, SHARES = np.polynomial.legendre.leggauss(20)
NODES = ((np.arange(PANELS)[:, None] + (PART + 1) / 2) * (2 / PANELS) - 1).ravel()  # in (-1, 1)
WEIGHTS = np.tile(SHARES / PANELS, PANELS)


def likelihood(kind, tables, slope, level, log_tau):
    """The marginal log-likelihood by Gauss and Legendre's rule on 60 panels of nine standard deviations."""
    tau, total = np.exp(log_tau), 0.0
    b = 9 * tau * NODES
    for table in tables.values():
        z = level + slope * table["x"].to_numpy()
        heights = row_likelihoods(kind, table, z + b[:, None]).sum(axis=1) - np.square(b / tau) / 2
        top = heights.max()
        area = 9 * tau * (WEIGHTS @ np.exp(heights - top))
        total += top + np.log(area / (np.sqrt(2 * np.pi) * tau))
    return total


def test_the_rule_that_the_others_rest_on_is_scipys_adaptive_quadrature():
    for table in made("poisson").values():

        def integrand(b, table=table):
            z = 0.4 + 0.7 * table["x"].to_numpy() + b
            return np.exp(row_likelihoods("poisson", table, z).sum()) * norm.pdf(b, scale=0.8)

        area, _ = quad(integrand, -7.2, 7.2, points=np.linspace(-2, 2, 9), epsabs=0, epsrel=1e-12, limit=300)
        dense = likelihood("poisson", {"one": table}, 0.7, 0.4, np.log(0.8))
        assert np.log(area) == pytest.approx(dense, abs=1e-9)


def differences(function, at, h=2e-3):
    """Gradient and Hessian by central differences of fourth and second order."""
    n, unit = len(at), np.eye(len(at)) * h
    gradient = [
        (8 * (function(at + e) - function(at - e)) - function(at + 2 * e) + function(at - 2 * e)) / (12 * h)
        for e in unit
    ]
    hessian = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            u, v = unit[i], unit[j]
            corners = (
                function(at + u + v) - function(at + u - v) - function(at - u + v) + function(at - u - v)
            )
            hessian[i, j] = corners / (4 * h * h)
    return np.array(gradient), hessian


@pytest.mark.parametrize("kind", ["logistic", "binomial", "poisson"])
def test_estimates_errors_and_likelihood_are_those_of_an_independent_quadrature(kind):
    tables = made(kind)
    model = fitted(kind)
    it = model.inference
    assert model.converged, model.run.reason
    found = np.array([*it.coef, np.log(it.nuisance.value)])

    def of(point):
        return likelihood(kind, tables, *point)

    gradient, hessian = differences(of, found)
    assert it.log_likelihood == pytest.approx(of(found), abs=1e-9)
    distance = np.linalg.solve(-hessian, gradient)
    np.testing.assert_allclose(distance, 0.0, atol=1e-7)  # how far the optimum is, by Newton's step
    errors = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    np.testing.assert_allclose([*it.std_err(), it.nuisance.log_error], errors, rtol=1e-4)


def test_an_optimiser_that_knows_only_likelihoods_ends_at_the_same_point():
    tables, model = made("logistic"), fitted("logistic")
    best = minimize(
        lambda p: -likelihood("logistic", tables, *p), [0.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-6}
    )
    found = [*model.inference.coef, np.log(model.inference.nuisance.value)]
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    assert -model.inference.log_likelihood <= best.fun + 1e-9


def test_another_algorithm_finds_the_same_tau():
    tables = made("poisson")
    usual = fitted("poisson")
    other = fedshed.fit(tables, study_of("poisson"), algorithm="fib-shed")
    assert other.converged, other.run.reason
    assert other.inference.nuisance.value == pytest.approx(usual.inference.nuisance.value, abs=1e-7)
    np.testing.assert_allclose(other.inference.coef, usual.inference.coef, atol=1e-7)


def test_sites_that_do_not_differ_give_the_fit_without_a_random_intercept():
    tables = dict.fromkeys(("a", "b", "c"), made("logistic")["s5"])
    model = fedshed.fit(tables, study_of("logistic"))
    plain = fedshed.fit(tables, Study(family="logistic", target="y", columns=("x",)))
    assert model.inference.nuisance.value == 0.0
    np.testing.assert_allclose(model.inference.coef, plain.inference.coef, atol=1e-9)
    np.testing.assert_allclose(model.inference.std_err(), plain.inference.std_err(), rtol=1e-9)
    assert "tau, the standard deviation of the random intercept, is 0" in " ".join(
        str(model.summary()).split()
    )


def test_few_sites_are_warned_of_and_predictions_are_of_a_site_without_a_deviation(tmp_path):
    tables = made("logistic")
    many = fitted("logistic")
    few = fedshed.fit(dict(list(tables.items())[-4:]), study_of("logistic"))
    assert "4 sites are few" in " ".join(str(few.summary()).split())
    assert "sites are few" not in " ".join(str(many.summary()).split())
    new = pd.DataFrame({"x": [0.0, 1.0]})
    z = many.coefficients["intercept"] + many.coefficients["x"] * new["x"]
    np.testing.assert_allclose(many.predict_proba(new)[:, 1], expit(z))
    again = Model.load(many.save(tmp_path / "model.json"))
    np.testing.assert_array_equal(again.predict_proba(new), many.predict_proba(new))
    assert again.inference.nuisance == many.inference.nuisance


def test_what_a_random_intercept_cannot_have_is_refused_by_name():
    with pytest.raises(ConfigError, match="per site is for linear, logistic, binomial, poisson"):
        Study(family="gamma", target="y", random_intercept=True)
    with pytest.raises(ConfigError, match="a random intercept varies about the common intercept"):
        Study(family="poisson", target="y", random_intercept=True, intercept=False)
    with pytest.raises(ConfigError, match="a protected study cannot estimate the random intercept's tau"):
        Study(family="poisson", target="y", random_intercept=True, protected=True)
    with pytest.raises(ConfigError, match="not independent"):
        fedshed.fit(made("poisson"), study_of("poisson"), errors="HC1")


def test_the_command_line_and_the_estimator_fit_what_a_study_fits(tmp_path):
    tables = made("logistic")
    paths = []
    for site, table in tables.items():
        paths.append(tmp_path / f"{site}.csv")
        table.drop(columns="trials").to_csv(paths[-1], index=False)
    model = fitted("logistic")
    out = tmp_path / "out"
    command = ["fit", *map(str, paths), "--target", "y", "--random-intercept", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    saved = json.loads((out / "model.json").read_text())
    assert saved["plan"]["study"]["random_intercept"] is True
    assert saved["inference"]["nuisance"]["value"] == pytest.approx(model.inference.nuisance.value, rel=1e-6)
    assert "tau" in done.output
    rows = pd.concat(tables.values(), keys=tables, names=["site"]).reset_index(level="site")
    ours = fedshed.FederatedLogisticRegression(l2=0.0, random_intercept=True)
    ours.fit(rows[["x"]].to_numpy(), rows["y"].to_numpy(), sites=rows["site"].to_numpy())
    np.testing.assert_allclose(ours.coef_.ravel(), model.inference.coef[:1], atol=1e-7)
    assert ours.inference_.nuisance.value == pytest.approx(model.inference.nuisance.value, rel=1e-7)


# New cases of contagious bovine pleuropneumonia and sizes of 15 herds in four periods (Lesnoff et al. 2004,
# Preventive Veterinary Medicine 64:27; data set cbpp of R's lme4); "-" where a herd was not seen.
HERDS = (
    "2/14 3/12 4/9 0/5, 3/22 1/18 1/21 -, 8/22 2/16 0/16 2/20, 2/10 0/10 2/9 0/6, 5/18 0/25 0/24 1/4,"
    "3/17 0/17 0/18 1/20, 8/16 1/10 3/9 0/5, 12/34 - - -, 2/9 0/6 0/8 0/6, 1/22 1/22 0/18 2/22,"
    "0/25 5/27 3/22 1/22, 2/10 1/8 0/6 0/5, 1/21 2/24 0/19 0/23, 11/19 0/2 0/3 0/2, 1/19 1/15 1/15 0/15"
)


def herds():
    tables = {}
    for k, herd in enumerate(HERDS.split(","), 1):
        seen = [
            (f"p{p}", *map(int, cell.split("/"))) for p, cell in enumerate(herd.split(), 1) if cell != "-"
        ]
        tables[f"herd {k:02d}"] = pd.DataFrame(seen, columns=["period", "incidence", "size"])
    return tables


def test_herds_of_cattle_give_what_glmer_gives_with_25_nodes():
    """Coefficients and deviance of lme4's own tests (tests/lmer-1.R), there to 1e-5 and 1e-9:
    glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, nAGQ = 25)."""
    study = Study(
        family="binomial", target="incidence", trials="size", columns=("period",), random_intercept=True
    )
    tables = herds()
    assert sum(map(len, tables.values())) == 56
    model = fedshed.fit(tables, study)
    found = [model.coefficients[name] for name in ("intercept", "period[p2]", "period[p3]", "period[p4]")]
    expected = [-1.39922533406847, -0.991407294757321, -1.12782184600404, -1.57946627431248]
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert model.inference.deviance == pytest.approx(100.010030538022, abs=1e-6)
    assert model.inference.nuisance.value == pytest.approx(0.6475, abs=1e-4)
