"""A newcomer's algorithm, as docs/extend.md writes it: what it reports is true, whatever its step does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fedshed
from conftest import well_conditioned
from fedshed import Federation
from fedshed.algorithms.base import Info, advance, gradient
from fedshed.objectives import FAMILIES
from pages import blocks

PAGE = Path(__file__).parents[2] / "docs/extend.md"


def page_module(name):
    """The code of the page as a module; families that it registers are taken out again."""
    module = sys.modules[name] = ModuleType(name)
    before = dict(FAMILIES)
    for code in blocks(PAGE):
        exec(compile(code, name, "exec"), module.__dict__)
    FAMILIES.clear()
    FAMILIES.update(before)
    return module


page = page_module("extend")
DiagonalNewton, FixedStep = page.DiagonalNewton, page.FixedStep


class Forgetful(FixedStep, frozen=True):
    """Moves theta and t, and does not think of what the state says about the agents' answers."""

    def step(self, problem, state):
        g, d = gradient(problem, state), self.diagonal(problem, state)
        return replace(state, t=state.t + 1, theta=state.theta - self.eta * g / d), Info(self.eta, rounds=1)


class Standing(FixedStep, frozen=True):
    """Moves theta but not t."""

    def step(self, problem, state):
        return replace(state, theta=state.theta - 0.1 * gradient(problem, state)), Info(0.1, rounds=1)


def test_the_page_fits_in_forty_lines():
    (code,) = (block for block in blocks(PAGE) if "class DiagonalNewton(" in block)
    body = code[code.index("class DiagonalNewton") : code.index("federation =")]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 40


def test_the_page_runs_as_printed(capsys):
    page_module("extend_again")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["True", "True"]


@given(seed=st.integers(0, 10**6), sites=st.integers(1, 4))
@settings(deadline=None, max_examples=15)
def test_a_step_with_and_one_without_a_line_search_reach_the_pooled_optimum(seed, sites):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3))
    y = np.where(X @ rng.normal(size=3) + rng.logistic(size=60) > 0, 1, -1)
    y[:2] = 1, -1
    federation = Federation.from_arrays(X, y, sites=np.arange(60) % sites)
    theta, f_star = fedshed.optimum(federation, l2=0.1)
    for algorithm in (DiagonalNewton(), FixedStep(eta=0.3)):
        result = fedshed.optimize(federation, algorithm=algorithm, l2=0.1, tol=1e-8, f_star=f_star)
        assert result.converged, result.reason
        np.testing.assert_allclose(result.theta, theta, rtol=0, atol=1e-6)
        assert min(result.trace.column("gap")) > -1e-12  # no curve goes below the optimum


@pytest.mark.parametrize("algorithm", [DiagonalNewton(), FixedStep(), Forgetful()])
def test_every_row_of_the_trace_is_the_cost_of_its_theta(algorithm):
    """f(theta^t) in the trace is that of the pooled rows, for a step that forgets to call `advance` too."""
    federation, points = well_conditioned("logistic"), [np.zeros(5)]
    result = fedshed.optimize(
        federation, algorithm=algorithm, l2=0.1, max_iterations=20, tol=0.0,
        watch=lambda progress: points.append(progress.state.theta),
    )  # fmt: skip
    table = federation.pooled()
    sign = np.where(table.y == "yes", 1.0, -1.0)
    for theta, row in zip(points, result.trace, strict=True):
        f = np.logaddexp(0, -sign * (table.X @ theta)).mean() + 0.05 * theta @ theta
        assert row.f == pytest.approx(f, rel=1e-12)


def test_a_step_that_does_not_count_is_refused_by_name():
    with pytest.raises(fedshed.ProtocolError, match=r"Standing\.step went from iteration 1 to 1.*advance\("):
        fedshed.optimize(well_conditioned("logistic"), algorithm=Standing(), l2=0.1)


def test_a_step_that_changes_theta_in_place_is_an_error_that_names_it():
    """What the agents said belongs to the array that they were asked at."""

    class InPlace(DiagonalNewton, frozen=True):
        def step(self, problem, state):
            g = gradient(problem, state)
            theta = state.theta
            theta -= 0.1 * g
            return advance(state, theta, g), Info(0.1, rounds=1)

    with pytest.raises(fedshed.ProtocolError, match=r"InPlace\.step failed .*read-only.*advance"):
        fedshed.optimize(well_conditioned("logistic"), algorithm=InPlace(), l2=1e-1)


def test_a_step_that_returns_nothing_is_an_error_that_names_it():
    class Nothing(DiagonalNewton, frozen=True):
        def step(self, problem, state):
            return None

    with pytest.raises(fedshed.ProtocolError, match=r"Nothing\.step failed .*advance"):
        fedshed.optimize(well_conditioned("logistic"), algorithm=Nothing(), l2=1e-1)


# a family of one's own


@pytest.fixture
def rain(monkeypatch):
    monkeypatch.setitem(FAMILIES, "rainfall", page.FAMILY)
    rng = np.random.default_rng(7)
    made = {}
    for site, rows in {"a": 40, "b": 90, "c": 200}.items():
        X, years = rng.normal(size=(rows, 2)), rng.uniform(0.5, 2.0, size=rows)
        amounts = rng.poisson(years * np.exp(0.3 + X @ [0.5, -0.4])) * rng.gamma(2.0, 0.5, size=rows)
        made[site] = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "years": years, "y": amounts})
    return made


def test_a_family_of_the_page_gives_what_statsmodels_gives(rain):
    """Coefficients, standard errors, deviance and dispersion, with an offset."""
    study = fedshed.Study(family="rainfall", target="y", exposure="years")
    model = fedshed.fit(rain, study)
    pooled = pd.concat(rain.values())
    family = sm.families.Tweedie(link=sm.families.links.Log(), var_power=1.5)
    X = sm.add_constant(pooled[["u", "v"]], prepend=False)
    expected = sm.GLM(pooled["y"], X, family=family, offset=np.log(pooled["years"])).fit(
        scale="X2", tol=1e-12
    )
    assert model.converged
    np.testing.assert_allclose(model.inference.coef, expected.params, rtol=1e-7)
    np.testing.assert_allclose(model.inference.std_err(), expected.bse, rtol=1e-6)
    np.testing.assert_allclose(model.inference.deviance, expected.deviance, rtol=1e-8)
    np.testing.assert_allclose(model.inference.dispersion, expected.scale, rtol=1e-7)
    assert "Tweedie (1.5)" in str(model.summary())


def test_a_response_that_the_family_does_not_know_is_refused_by_name(rain):
    rain["b"].loc[3, "y"] = -1.0
    with pytest.raises(fedshed.DataError, match=r"site 'b'.*'y' is negative in 1 of 90 rows.*an amount >= 0"):
        fedshed.fit(rain, fedshed.Study(family="rainfall", target="y", columns=("u",)))


def test_the_derivatives_of_the_page_are_those_of_its_loss():
    rng = np.random.default_rng(1)
    y, z, h = rng.gamma(2.0, size=50) * (rng.random(50) > 0.3), rng.normal(size=50), 1e-6
    model = page.Tweedie(np.ones((50, 1)), y)
    np.testing.assert_allclose(
        (model.losses(z + h) - model.losses(z - h)) / (2 * h), model.slopes(z), atol=1e-8
    )
    np.testing.assert_allclose(
        (model.slopes(z + h) - model.slopes(z - h)) / (2 * h), model.curvatures(z), atol=1e-8
    )
    least = 4 * np.sqrt(y)  # the loss of a mean that is y
    np.testing.assert_allclose(model.excess(z), model.losses(z) - least, atol=1e-12)
