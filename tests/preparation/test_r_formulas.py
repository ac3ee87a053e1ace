"""Formulas as R writes them: the fits of R's lm on its own data, or one plain sentence."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import fedshed
from fedshed import ConfigError, Study
from fedshed._utils.errors import ProtocolError
from fedshed.preparation import Preparer, prepare
from fedshed.preparation.formulas import parse
from fedshed.preparation.r_formulas import all_columns, from_r

ORACLE = json.loads(Path(__file__).with_name("r_formulas.json").read_text())
DATA = {name: pd.DataFrame(columns) for name, columns in ORACLE["data"].items()}
FITS = {f"{fit['data']}: {fit['formula']}": fit for fit in ORACLE["fits"]}


def sites_of(name: str, count: int = 3) -> dict[str, pd.DataFrame]:
    """The rows in turn to each site."""
    frame = DATA[name]
    return {f"s{k}": frame.iloc[k::count].reset_index(drop=True) for k in range(count)}


def with_r_order(values: np.ndarray, study: Study) -> np.ndarray:
    """The intercept first, where there is one."""
    return values if "- 1" in (study.formula or "") or not study.intercept else np.roll(values, 1)


@pytest.mark.parametrize(
    "name", [name for name, fit in FITS.items() if not fit["aliased"] and "ear^2" not in name]
)
def test_a_formula_of_r_has_the_fit_of_r(name):
    fit = FITS[name]
    study = Study(family="linear", formula=fit["formula"])
    found = fedshed.fit(sites_of(fit["data"]), study, tol=1e-10).inference
    signs = np.abs if "poly(" in name else np.asarray  # polynomials are those of R up to signs
    np.testing.assert_allclose(
        signs(with_r_order(found.coef, study)), signs(fit["coef"]), rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(with_r_order(found.std_err(), study), fit["std_err"], rtol=1e-7)


@pytest.mark.parametrize("name", [name for name, fit in FITS.items() if fit["aliased"]])
def test_empty_cells_of_an_interaction_are_left_out_as_in_r(name):
    """Of wool and tension, and of cylinders and gears."""
    fit = FITS[name]
    model = fedshed.fit(sites_of(fit["data"]), Study(family="linear", formula=fit["formula"]), tol=1e-10)
    np.testing.assert_allclose(np.roll(model.inference.coef, 1), fit["coef"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(np.roll(model.inference.std_err(), 1), fit["std_err"], rtol=1e-7)
    (left_out,) = model.plan.aliased
    assert len(fit["aliased"]) == 1
    said = " ".join(str(model.summary()).split())
    assert f"{left_out!r} is left out, because no row of any site has this combination" in said
    frame = DATA[fit["data"]]
    residuals = frame[model.plan.study.target] - model.predict(frame)
    np.testing.assert_allclose(residuals @ residuals, fit["deviance"], rtol=1e-9)


def test_a_site_refuses_a_plan_without_a_column_that_it_needs():
    study = Study(family="linear", formula="mpg ~ cyl * gear")
    frames = sites_of("gears")
    plan = prepare(frames, study).plan
    lying = msgspec.structs.replace(plan, aliased=("cyl[c6]:gear[g4]",), names=(), terms=())
    with pytest.raises(ProtocolError, match="leaves out columns that are not those of empty cells"):
        Preparer("s0", frames["s0"]).ready(lying)
    assert fedshed.preparation.DesignPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", [name for name in FITS if "ear^2" in name])
def test_a_year_and_its_square_converge_to_the_fit_of_r(name):
    """Lake Huron's level over a century, and Longley's employment: collinear to ten digits if not centred."""
    fit = FITS[name]
    model = fedshed.fit(sites_of(fit["data"]), Study(family="linear", formula=fit["formula"]), tol=1e-10)
    assert model.converged, model.run.reason
    np.testing.assert_allclose(np.roll(model.inference.coef, 1), fit["coef"], rtol=1e-5)
    np.testing.assert_allclose(np.roll(model.inference.std_err(), 1), fit["std_err"], rtol=1e-5)


def test_a_cubic_spline_has_the_fit_of_ns_with_the_same_knots():
    formula = "Ozone ~ cr(Wind, knots=[8, 11], lower_bound=2, upper_bound=21)"
    model = fedshed.fit(sites_of("air"), Study(family="linear", formula=formula))
    assert ORACLE["spline"]["knots"] == [8, 11]
    np.testing.assert_allclose(model.predict(DATA["air"]), ORACLE["spline"]["fitted"], rtol=1e-7)


def test_columns_with_dots_keep_their_names():
    study = Study(family="linear", formula="Ozone ~ log(Solar.R) + poly(Solar.R, 2) + factor(Month)")
    names = fedshed.preparation.prepare(sites_of("air"), study).plan.names
    assert names[:3] == ("log(Solar.R)", "poly(Solar.R, 2)[1]", "poly(Solar.R, 2)[2]")
    assert names[3] == "Month[6]"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("log(Solar.R) + 1.5e3 + .5", "log(`Solar.R`) + 1.5e3 + .5"),
        ("(a + b)^2 + I(a^2) + {b^3}", "(a + b)^2 + I(a**2) + {b**3}"),
        ("I((a.b + c)^2)", "I((`a.b` + c)**2)"),
        ("`a.b (kg)` + `a^b`", "`a.b (kg)` + `a^b`"),
        ("bs(x, extrapolation='a.b')", "bs(x, extrapolation='a.b')"),
        ("factor(a.b):as.factor(c)", "C(`a.b`):C(c)"),
        ("(x).real + x.__class__ + 'a'.join", "(x).real + x.__class__ + 'a'.join"),
        ("np.exp(x)", "np.exp(x)"),
    ],
)
def test_only_names_powers_and_factors_are_rewritten(written, read):
    assert from_r(written) == read


@pytest.mark.parametrize(
    ("right", "without", "intercept"),
    [(" . ", (), True), (".-1", (), False), (". - `a - b` - c.d", ("a - b", "c.d"), True)],
)
def test_a_dot_stands_for_all_other_columns(right, without, intercept):
    assert all_columns(right) == (without, intercept)
    study = Study(family="linear", formula=f"y ~ {right}", exclude=("e",))
    assert study == Study(family="linear", target="y", exclude=("e", *without), intercept=intercept)


REFUSED = {
    "y ~ . + x": "a dot alone stands for all other columns",
    "y ~ a ~ .": "one target",
    "y ~ x + offset(log(years))": "exposure = 'x'",
    "y ~ ns(x, 3)": r"write cr\(x, df=4\) in place of ns",
    "y ~ cut(x, 3)": r"write I\(x > 25\)",
    "y ~ s(x)": "natural cubic spline",
    "y ~ relevel(g, ref='b')": "references",
    "y ~ as.numeric(x)": "convert the column",
    "y ~ (1 | site)": "random_intercept",
    "y ~ x^2": r"the square of a column x is I\(x\^2\)",
    "y ~ I(1 < x < 2)": "a comparison is one of two numbers",
    "y ~ I(x > 'a')": "text is not allowed beside numbers; a column g of levels is written g or C",
    "y ~ I(x == 'a')": "text is not allowed beside numbers",
    "y ~ I(x and z)": "this is not allowed in a formula: only columns, numbers, arithmetic",
    "y ~ I(x % 2)": "this operator is not allowed",
    "y ~ I(x.__class__ > 1)": "not allowed",
    "y ~ (x).real": "cannot be read|not allowed",
    "log(y) ~ x": "transform it beforehand, in a new column",
    "cbind(a, b) ~ x": "trials",
    "y ~ (": "cannot be read",
    "y ~ x +* z": "cannot be read",
    "y ~ log(x": "cannot be read",
    "y ~ a$b": "cannot be read",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_plain_sentence(formula):
    with pytest.raises(ConfigError, match=REFUSED[formula]) as caught:
        parse(formula)
    sentence = str(caught.value)
    assert sentence.isprintable(), "no escape codes and no line breaks"
    assert "⧛" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_an_empty_cell_at_a_reference_level_is_named_with_a_remedy_that_works(family):
    """Wool A and tension H, both of them references, have no row; all other cells have means of their own."""
    frames, formula = sites_of("emptyref"), "breaks ~ wool * tension"
    with pytest.raises(fedshed.SingularError) as caught:
        fedshed.fit(frames, Study(family=family, formula=formula))
    said = str(caught.value)
    assert "no row of any site has wool = A and tension = H (an empty cell at a reference level)" in said
    assert "--reference wool=B --reference tension=L" in said
    others = {"wool": "B", "tension": "L"}
    model = fedshed.fit(frames, Study(family=family, formula=formula, references=others), tol=1e-10)
    cells = DATA["emptyref"].groupby(["wool", "tension"])["breaks"].transform("mean")
    np.testing.assert_allclose(model.predict(DATA["emptyref"]), cells, rtol=1e-6)


def test_an_empty_cell_at_one_reference_level_needs_one_other_reference():
    frame = DATA["breaks"]
    frame = frame[(frame["wool"] != "A") | (frame["tension"] != "M")]
    frames = {f"s{k}": frame.iloc[k::3].reset_index(drop=True) for k in range(3)}
    with pytest.raises(fedshed.SingularError, match="has wool = A and tension = M") as caught:
        fedshed.fit(frames, Study(family="linear", formula="breaks ~ wool * tension"))
    assert "(references = {'wool': 'B'}, --reference wool=B)" in str(caught.value)


def test_a_prediction_in_an_empty_cell_comes_with_a_warning(caplog):
    frames = sites_of("empty")
    model = fedshed.fit(frames, Study(family="linear", formula="breaks ~ wool * tension"))
    model.predict(DATA["empty"])
    assert "no row of the fit had" not in caplog.text
    model.predict(pd.DataFrame({"wool": ["A", "B"], "tension": ["M", "M"]}))
    assert (
        "1 of 2 rows have a combination of levels that no row of the fit had (wool[B]:tension[M]"
        in caplog.text
    )
